// Runs the scripts of a report with the little of a browser's document that they use, and prints what they drew.
// Called by test_report_page.sh: node page_dom.js REPORT.html

"use strict";
const fs = require("fs"), vm = require("vm");

class Element {
  constructor(name) { Object.assign(this, {name, children: [], attributes: {}, style: {}, text: "", clientWidth: 560}); }
  get textContent() { return this.text; }
  set textContent(text) { this.text = String(text); }
  append(child) { this.children.push(child); }
  replaceChildren() { this.children = []; }
  setAttribute(key, value) { this.attributes[key] = String(value); }
  find(name) { return [...(this.name === name ? [this] : []), ...this.children.flatMap(c => c.find ? c.find(name) : [])]; }
}

const page = fs.readFileSync(process.argv[2], "utf8"), byId = {};
for (const [, name, id] of page.matchAll(/<(\w+)[^>]*? id="([^"]+)"/g)) byId[id] = new Element(name);
const scripts = [...page.matchAll(/<script([^>]*)>([^]*?)<\/script>/g)];
byId.runs.textContent = scripts[0][2];
const document = {getElementById: id => byId[id], createElement: n => new Element(n), createElementNS: (_, n) => new Element(n)};
vm.runInNewContext(scripts[1][2], {document, addEventListener() {}, console});

const lines = byId.charts.find("polyline"), places = lines.map(l => l.attributes.points);
console.log(`rows ${byId.summary.find("tr").length - 1}`);
console.log(`charts ${byId.charts.find("svg").filter(e => e.attributes.class === "chart").length}`);
console.log(`lines ${lines.length}`);
console.log(`colors ${new Set(lines.map(l => l.attributes.stroke)).size}`);
console.log(`points ${places.reduce((n, p) => n + p.split(" ").length, 0)}`);
console.log(`bad ${places.filter(p => /NaN|Infinity/.test(p)).length}`);
console.log(`parts ${byId.parts.find("section").length}`);
const text = e => (e.text ?? e) + (e.children ?? []).map(text).join("");
console.log(`first ${byId.summary.find("tr")[1].children.map(text).join("|")}`);
console.log(`axes ${byId.charts.find("text").filter(e => e.attributes.class === "axis").map(text).join("|")}`);
