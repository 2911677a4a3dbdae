"""What examples/mlp.c, gan.c and own_matrices.c compute, in double precision, for test_example_programs.sh: examples_fp64.py
mlp|gan|own_matrices"""

import math
import struct
import sys


def number(which, i):
    """The examples' number(), which rounds to fp32 after dividing and after subtracting."""
    single = lambda value: struct.unpack("f", struct.pack("f", value))[0]
    return single(single((which * 7919 + i * 104729 + i * i % 8191 * 31) % 2003 / 1001.0) - 1.0)


class Network:
    """Layers of tanh, the last one without. p[l] = weights [out][in] flat, and biases."""

    def __init__(self, widths, fill):
        self.widths, self.t = widths, 0
        self.p = [fill(t, widths[t // 2 + 1] * (widths[t // 2] if t % 2 == 0 else 1)) for t in range(2 * len(widths) - 2)]
        self.m, self.v = ([[0.0] * len(p) for p in self.p] for _ in range(2))
        self.clear()

    def clear(self):
        self.g = [[0.0] * len(p) for p in self.p]

    def forward(self, x):
        acts = [x]
        for l in range(len(self.widths) - 1):
            n = self.widths[l]
            z = [b + sum(self.p[2 * l][o * n + i] * acts[-1][i] for i in range(n)) for o, b in enumerate(self.p[2 * l + 1])]
            acts.append([math.tanh(v) for v in z] if l < len(self.widths) - 2 else z)
        return acts

    def backward(self, acts, grad, keeps=True):
        for l in reversed(range(len(self.widths) - 1)):
            n = self.widths[l]
            if l < len(self.widths) - 2:
                grad = [g * (1 - y * y) for g, y in zip(grad, acts[l + 1])]
            for o, g in enumerate(grad if keeps else []):
                self.g[2 * l + 1][o] += g
                for i in range(n):
                    self.g[2 * l][o * n + i] += g * acts[l][i]
            grad = [sum(self.p[2 * l][o * n + i] * g for o, g in enumerate(grad)) for i in range(n)]
        return grad

    def step(self, lr, decay):
        """AdamW with the defaults of zero_config_default, and their clipping."""
        self.t += 1
        scale = min(1.0, 1.0 / (math.sqrt(sum(g * g for gs in self.g for g in gs)) + 1e-6))
        for t, (p, gs, m, v) in enumerate(zip(self.p, self.g, self.m, self.v)):
            for i, g in enumerate(gs):
                m[i] = 0.9 * m[i] + 0.1 * g * scale
                v[i] = 0.95 * v[i] + 0.05 * (g * scale) ** 2
                p[i] -= lr * decay * (t % 2 == 0) * p[i]
                p[i] -= lr * (m[i] / (1 - 0.9 ** self.t)) / (math.sqrt(v[i] / (1 - 0.95 ** self.t)) + 1e-8)
        self.clear()


def mlp():
    net = Network([5, 9, 3], lambda t, n: [0.5 * number(10 + t, i) for i in range(n)])
    x = [[number(1, s * 5 + i) for i in range(5)] for s in range(101)]
    for epoch in range(1, 13):
        for start in range(0, 101, 16):
            batch = x[start:start + 16]
            loss = 0.0
            for row in batch:
                label = 0 if row[0] * row[1] > 0.1 else 1 if row[2] > 0 else 2
                acts = net.forward(row)
                total = sum(map(math.exp, acts[-1]))
                loss += (math.log(total) - acts[-1][label]) / len(batch)
                net.backward(acts, [(math.exp(z) / total - (c == label)) / len(batch) for c, z in enumerate(acts[-1])])
            net.step(0.02, 0.1)
            print(f"epoch {epoch} batch of {len(batch)} loss {loss:.12g}")


def gan():
    g = Network([3, 6, 2], lambda t, n: [0.6 * number(10 + t, i) for i in range(n)])
    d = Network([2, 8, 1], lambda t, n: [0.6 * number(20 + t, i) for i in range(n)])

    def judge(point, is_real, keeps=True):
        acts = d.forward(point)
        z = acts[-1][0]
        grad = d.backward(acts, [(1 / (1 + math.exp(-z)) - is_real) / 12], keeps)
        return math.log1p(math.exp(-z if is_real else z)) / 12, grad

    for step in range(1, 41):
        noise = [[number(500 + step, s * 3 + i) for i in range(3)] for s in range(12)]
        line = [number(100 + step, s) for s in range(12)]
        judged = sum(judge(g.forward(z)[-1], 0)[0] for z in noise)
        judged += sum(judge([0.5 + 0.4 * t, 0.2 - 0.3 * t], 1)[0] for t in line)
        d.step(0.02, 0.0)
        made = 0.0
        for z in noise:
            acts = g.forward(z)
            loss, grad = judge(acts[-1], 1, keeps=False)
            made += loss
            g.backward(acts, grad)
        g.step(0.01, 0.0)
        print(f"step {step} discriminator {judged:.12g} generator {made:.12g}")


def own_matrices():
    rows, cols, momentum, lr = 25, 43, 0.75, 0.03125
    w, m = ([[0.0] * n for n in (rows * cols, rows)] for _ in range(2))
    for step in range(1, 41):
        loss = 0.0
        for values, means in zip(w, m):
            for i, value in enumerate(values):
                grad = (1 + i % 7) * (value - i % 11 / 4)
                loss += 0.5 * grad * (value - i % 11 / 4)
                means[i] = momentum * means[i] + grad
        for row in range(rows):
            span = range(row * cols, (row + 1) * cols)
            norm = math.sqrt(sum(m[0][i] ** 2 for i in span))
            for i in span:
                w[0][i] -= lr * m[0][i] / norm
            w[1][row] -= lr * m[1][row]
        print(f"step {step} loss {loss:.12g}")


{"mlp": mlp, "gan": gan, "own_matrices": own_matrices}[sys.argv[1]]()
