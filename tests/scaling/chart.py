"""chart.py - draws line charts as SVG: a grid of panels over the number of ranks, one line per series."""

import math
from xml.sax.saxutils import escape

PANEL_W, PANEL_H = 250, 190
LEFT, RIGHT, TOP, BOTTOM = 58, 18, 34, 42  # of a panel, around its axes
HEAD = 84  # title, subtitle, legend

# The colours of Okabe and Ito, which the colour-blind can tell apart. Shapes tell lines apart that coincide.
STYLES = {
    "stage 0": ("#000000", "circle", ""),
    "stage 1": ("#e69f00", "square", ""),
    "stage 2": ("#56b4e9", "triangle", ""),
    "stage 3": ("#d55e00", "diamond", ""),
    "FSDP2, as stage 3": ("#009e73", "cross", "5 3"),
    "FSDP2, as stage 2": ("#cc79a7", "plus", "5 3"),
}
# Later lines have smaller markers, so that all of them show if lines coincide.
SIZES = {"circle": 5.5, "square": 4.5, "triangle": 4.5, "diamond": 3.5, "cross": 4, "plus": 4}


def nice_step(top):
    """Returns 1, 2, 2.5 or 5 times a power of ten, so that 3 to 6 steps reach the top."""
    power = 10 ** math.floor(math.log10(top / 4))
    return next(m * power for m in (1, 2, 2.5, 5, 10) if top / (m * power) <= 5.01)


def number(value):
    return f"{value:,.10g}"


def marker(shape, x, y, colour, title):
    r = SIZES[shape]
    paths = {
        "square": f"M{x - r} {y - r}h{2 * r}v{2 * r}h{-2 * r}z",
        "triangle": f"M{x} {y - r}L{x + r} {y + r}H{x - r}z",
        "diamond": f"M{x} {y - r}L{x + r} {y}L{x} {y + r}L{x - r} {y}z",
        "cross": f"M{x - r} {y - r}l{2 * r} {2 * r}m0 {-2 * r}l{-2 * r} {2 * r}",
        "plus": f"M{x - r} {y}h{2 * r}M{x} {y - r}v{2 * r}",
    }
    stroked = shape in ("cross", "plus")
    paint = f'fill="none" stroke="{colour}" stroke-width="2"' if stroked else f'fill="{colour}"'
    if shape == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{r}" {paint}><title>{escape(title)}</title></circle>'
    return f'<path d="{paths[shape]}" {paint}><title>{escape(title)}</title></path>'


def text(x, y, words, anchor="middle", size=12, colour="#333", more=""):
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {place} font-size="{size}" fill="{colour}" {more}>{escape(words)}</text>'


def draw_panel(panel, ranks, left, top):
    """panel: title, unit, series {name: {ranks: value}}, ideal {ranks: value} or None, bottom (of the axis; 0)."""
    x0, y0, w, h = left + LEFT, top + TOP, PANEL_W - LEFT - RIGHT, PANEL_H - TOP - BOTTOM
    values = [v for line in [*panel["series"].values(), panel.get("ideal") or {}] for v in line.values()]
    bottom, highest = panel.get("bottom", 0), max(values, default=0) or 1
    step = nice_step(highest - bottom)
    n_steps = math.ceil((highest - bottom) / step - 1e-9)

    def at_x(n):
        return x0 + (w / 2 if len(ranks) == 1 else 8 + (w - 16) * ranks.index(n) / (len(ranks) - 1))

    def at_y(value):
        return y0 + h - h * (value - bottom) / (n_steps * step)

    out = [text(left + LEFT - 50, top + 18, panel["title"], "start", 13, "#000", 'font-weight="bold"')]
    for i in range(n_steps + 1):
        y = at_y(bottom + i * step)
        out.append(f'<path d="M{x0} {y:.1f}h{w}" stroke="{"#888" if i == 0 else "#ddd"}"/>')
        out.append(text(x0 - 6, y + 4, number(round(bottom + i * step, 10)), "end", 11))
    for n in ranks:
        out.append(f'<path d="M{at_x(n):.1f} {y0 + h}v4" stroke="#888"/>')
        out.append(text(at_x(n), y0 + h + 17, str(n), size=11))
    out.append(text(x0 + w / 2, y0 + h + 33, "ranks", size=11))
    if not any(panel["series"].values()):
        out.append(text(x0 + w / 2, y0 + h / 2, "not measured", size=11, colour="#888"))
    if panel.get("ideal"):
        points = " ".join(f"{at_x(n):.1f},{at_y(v):.1f}" for n, v in sorted(panel["ideal"].items()))
        out.append(f'<polyline points="{points}" fill="none" stroke="#999" stroke-width="1.5" stroke-dasharray="2 3"/>')
    for name, line in panel["series"].items():
        colour, shape, dashes = STYLES[name]
        points = sorted(line.items())
        joined = " ".join(f"{at_x(n):.1f},{at_y(v):.1f}" for n, v in points)
        paint = f'fill="none" stroke="{colour}" stroke-width="1.8" stroke-dasharray="{dashes}"'
        out.append(f'<polyline points="{joined}" {paint}/>')
        for n, v in points:
            tip = f"{name}, {n} ranks: {number(float(f'{v:.4g}'))} {panel['unit']}"
            out.append(marker(shape, round(at_x(n), 1), round(at_y(v), 1), colour, tip))
    return out


def write(path, title, subtitle, rows, ranks):
    """rows: [(heading, [panel, ...])]; every row has as many panels."""
    names = [name for name in STYLES if any(panel["series"].get(name) for _, panels in rows for panel in panels)]
    width = 20 + PANEL_W * max(len(panels) for _, panels in rows)
    row_h = PANEL_H + 34
    height = HEAD + row_h * len(rows) + 6
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="Helvetica, Arial, DejaVu Sans, sans-serif">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        text(20, 28, title, "start", 18, "#000", 'font-weight="bold"'),
        text(20, 48, subtitle, "start", 12, "#555"),
    ]
    x = 20
    for name in names:
        colour, shape, dashes = STYLES[name]
        out.append(f'<path d="M{x} 68h26" stroke="{colour}" stroke-width="1.8" stroke-dasharray="{dashes}"/>')
        out.append(marker(shape, x + 13, 68, colour, name))
        out.append(text(x + 32, 72, name, "start"))
        x += 48 + 7 * len(name)
    out.append(f'<path d="M{x} 68h26" stroke="#999" stroke-width="1.5" stroke-dasharray="2 3"/>')
    out.append(text(x + 32, 72, "ideal", "start"))
    for i, (heading, panels) in enumerate(rows):
        top = HEAD + i * row_h
        out.append(f'<path d="M20 {top + 4}H{width - 20}" stroke="#bbb"/>')
        out.append(text(20, top + 24, heading, "start", 13, "#000"))
        for k, panel in enumerate(panels):
            out += draw_panel(panel, ranks, 12 + k * PANEL_W, top + 26)
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(out) + "\n</svg>\n")
