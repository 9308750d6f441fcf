#!/usr/bin/env python3
"""Golden results of training: 20 steps of PyTorch's autograd and AdamW on a small Qwen3.

    train_golden_torch_peer.py [--write]

Compares src/train/testdata/adamw_qwen3.json with what is computed now, or writes it: losses and norms
of the gradient of every step in float64 and float32, and all weights after the last step in float64.
Weights begin as a formula of their index (`start` below, and src/train/adamw_golden_test.cc); every
step sees the same tokens, the learning rate falls, gradients are clipped by their global norm. The
model is written out here, because that of PyPI `transformers` rounds norms and angles to float32.
"""
import json
import math
import pathlib
import sys

import torch

WIDTH, FFN, LAYERS, HEADS, HEAD, VOCABULARY, NORM_EPSILON = 8, 12, 2, 2, 4, 11, 1e-5
ROWS, LENGTH, STEPS = 3, 7, 20
RATE, BETAS, EPSILON, DECAY, CLIP = 0.01, (0.9, 0.95), 1e-8, 0.1, 0.5
GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "src/train/testdata/adamw_qwen3.json"


def start(parameter, element, matrix):
    value = math.sin(0.37 + 1.3 * parameter + 0.61 * element)
    return 0.3 * value if matrix else 1 + 0.1 * value


def token(index, salt):
    return (index * 7 + index // 3 * 5 + salt) % VOCABULARY


def shapes():
    """In the order of the library: matrices layer by layer, then vectors. One KV head."""
    layer = [(HEADS * HEAD, WIDTH), (HEAD, WIDTH), (HEAD, WIDTH), (WIDTH, HEADS * HEAD),
             (FFN, WIDTH), (FFN, WIDTH), (WIDTH, FFN)]
    norms = [(WIDTH,), (HEAD,), (HEAD,), (WIDTH,)]
    return [(VOCABULARY, WIDTH)] + layer * LAYERS + [(VOCABULARY, WIDTH)] + norms * LAYERS + [(WIDTH,)]


def norm(x, weight):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + NORM_EPSILON) * weight


def rotate(x):
    """[rows, length, heads, HEAD], pairs (i, i + HEAD / 2)."""
    half = HEAD // 2
    frequency = 10000.0 ** (-2 * torch.arange(half, dtype=torch.float64) / HEAD)
    angle = torch.arange(x.shape[1], dtype=torch.float64)[:, None] * frequency
    cos, sin = angle.cos().to(x.dtype)[:, None], angle.sin().to(x.dtype)[:, None]
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def logits(p, tokens):
    rows, length = tokens.shape
    x = p[0][tokens]
    hidden = torch.full((length, length), -math.inf, dtype=x.dtype).triu(1)
    for layer in range(LAYERS):
        q, k, v, out, gate, up, down = p[1 + 7 * layer:8 + 7 * layer]
        first, q_norm, k_norm, second = p[2 + 7 * LAYERS + 4 * layer:6 + 7 * LAYERS + 4 * layer]
        n = norm(x, first)
        queries = rotate(norm((n @ q.T).reshape(rows, length, HEADS, HEAD), q_norm))
        keys = rotate(norm((n @ k.T).reshape(rows, length, 1, HEAD), k_norm))
        scores = torch.einsum("rihd,rjd->rhij", queries, keys[:, :, 0]) / math.sqrt(HEAD) + hidden
        mixed = torch.einsum("rhij,rjd->rihd", scores.softmax(-1), n @ v.T)
        x = x + mixed.reshape(rows, length, -1) @ out.T
        n = norm(x, second)
        x = x + (torch.nn.functional.silu(n @ gate.T) * (n @ up.T)) @ down.T
    return norm(x, p[-1]) @ p[1 + 7 * LAYERS].T


def train(dtype):
    p = [torch.tensor([start(i, j, len(shape) == 2) for j in range(math.prod(shape))],
                      dtype=torch.float64).reshape(shape).to(dtype).requires_grad_()
         for i, shape in enumerate(shapes())]
    optimizer = torch.optim.AdamW(
        [{"params": [w for w in p if w.dim() == 2], "weight_decay": DECAY},
         {"params": [w for w in p if w.dim() == 1], "weight_decay": 0.0}],
        lr=RATE, betas=BETAS, eps=EPSILON)
    index = range(ROWS * LENGTH)
    tokens = torch.tensor([token(i, 1) for i in index]).reshape(ROWS, LENGTH)
    targets = torch.tensor([token(i, 4) if i % 5 != 2 else -100 for i in index])
    losses, norms = [], []
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"] = optimizer.param_groups[1]["lr"] = RATE * (1 - step / 40)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(logits(p, tokens).reshape(-1, VOCABULARY), targets)
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(p, CLIP)))
        losses.append(float(loss.detach()))
        optimizer.step()
    return losses, norms, [w.detach().reshape(-1).tolist() for w in p]


def main():
    losses, norms, weights = train(torch.float64)
    losses32, _, _ = train(torch.float32)
    golden = {"torch": torch.__version__, "losses": losses, "norms": norms, "losses_f32": losses32, "weights": weights}
    if "--write" in sys.argv:
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(json.dumps(golden) + "\n")
        print(f"wrote {GOLDEN}: losses {losses[0]:.6f} .. {losses[-1]:.6f}")
        return 0
    held = json.loads(GOLDEN.read_text())
    worst = max(abs(a - b) for p, q in zip(held["weights"], weights) for a, b in zip(p, q))
    print(f"weights after {STEPS} steps: largest difference {worst:.3g}")
    return 0 if worst < 1e-10 else 1


if __name__ == "__main__":
    sys.exit(main())
