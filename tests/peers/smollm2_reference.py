#!/usr/bin/env python3
"""SmolLM2 in float32 with NumPy, on the weights that PyPI `gguf` dequantizes: the reference for greedy
tokens and perplexities of the real model (scripts/real_model.sh).

    smollm2_reference.py greedy MODEL PROMPTS.json OUT.json     {"prompts": [{"text", "ids"}]}
    smollm2_reference.py score MODEL WINDOWS.json OUT.json      {"windows": [[ids]]}

Written from the definition of the architecture: nothing of it is shared with the C++ code. Rows of q
and k stay as the file has them, so pairs that are rotated lie side by side.
"""
import hashlib
import json
import pathlib
import sys

import gguf
import numpy as np


class Model:
    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        field = lambda name: reader.fields[f"llama.{name}"].contents()
        self.layers, self.heads = field("block_count"), field("attention.head_count")
        self.kv_heads, self.width = field("attention.head_count_kv"), field("embedding_length")
        self.eps, self.theta = field("attention.layer_norm_rms_epsilon"), field("rope.freq_base")
        self.dim = self.width // self.heads
        self.w = {t.name: np.ascontiguousarray(gguf.dequantize(t.data, t.tensor_type).astype(np.float32))
                  for t in reader.tensors}
        self.head = self.w.get("output.weight", self.w["token_embd.weight"])
        self.frequencies = self.theta ** (-2.0 * np.arange(self.dim // 2) / self.dim)

    def norm(self, x, name):
        return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(self.eps)) * self.w[name]

    def rotate(self, x, positions):
        """x [.., T, heads, dim], positions [T]."""
        angle = positions[:, None, None] * self.frequencies
        cosine, sine = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
        even, odd = x[..., 0::2], x[..., 1::2]
        out = np.empty_like(x)
        out[..., 0::2] = even * cosine - odd * sine
        out[..., 1::2] = odd * cosine + even * sine
        return out

    def attend(self, q, k, v, cache, layer):
        """One sequence: q [T, heads, dim] after the cache, which grows."""
        if cache[layer] is not None:
            k, v = np.concatenate([cache[layer][0], k]), np.concatenate([cache[layer][1], v])
        cache[layer] = (k, v)
        visible = np.arange(len(k))[None, :] <= np.arange(len(k) - len(q), len(k))[:, None]
        mixed = np.empty_like(q)
        for h in range(self.heads):
            g = h // (self.heads // self.kv_heads)
            s = np.where(visible, q[:, h] @ k[:, g].T / np.float32(np.sqrt(self.dim)), -np.inf)
            e = np.exp(s - s.max(axis=1, keepdims=True))
            mixed[:, h] = e @ v[:, g] / e.sum(axis=1, keepdims=True)
        return mixed

    def run(self, steps):
        """steps: [(tokens, cache)] of several sequences: hidden states of all tokens, [rows, width]."""
        starts = [0 if cache[0] is None else len(cache[0][0]) for _, cache in steps]
        positions = np.concatenate([np.arange(at, at + len(t), dtype=np.float64)
                                    for at, (t, _) in zip(starts, steps)])
        ends = np.cumsum([len(t) for t, _ in steps])
        parts = [slice(end - len(t), end) for end, (t, _) in zip(ends, steps)]
        rows = len(positions)
        x = self.w["token_embd.weight"][np.concatenate([t for t, _ in steps])]
        for i in range(self.layers):
            w = lambda name: self.w[f"blk.{i}.{name}.weight"]
            n = self.norm(x, f"blk.{i}.attn_norm.weight")
            q = self.rotate((n @ w("attn_q").T).reshape(rows, self.heads, self.dim), positions)
            k = self.rotate((n @ w("attn_k").T).reshape(rows, self.kv_heads, self.dim), positions)
            v = (n @ w("attn_v").T).reshape(rows, self.kv_heads, self.dim)
            mixed = [self.attend(q[p], k[p], v[p], cache, i) for p, (_, cache) in zip(parts, steps)]
            x = x + np.concatenate(mixed).reshape(rows, -1) @ w("attn_output").T
            n = self.norm(x, f"blk.{i}.ffn_norm.weight")
            gate = n @ w("ffn_gate").T
            x = x + (gate / (1 + np.exp(-gate)) * (n @ w("ffn_up").T)) @ w("ffn_down").T
        return self.norm(x, "output_norm.weight")

    def empty_cache(self):
        return [None] * self.layers


def greedy(model, prompts, count):
    """All prompts side by side: their tokens and least margins between the two best logits."""
    steps = [(list(ids), model.empty_cache()) for ids in prompts]
    out, margins = [[] for _ in prompts], [np.inf] * len(prompts)
    for number in range(count):
        last = np.cumsum([len(t) for t, _ in steps]) - 1
        logits = model.run(steps)[last] @ model.head.T
        for i, row in enumerate(logits):
            second, best = np.argsort(row)[-2:]
            margins[i] = min(margins[i], float(row[best] - row[second]))
            out[i].append(int(best))
        steps = [([tokens[-1]], cache) for tokens, (_, cache) in zip(out, steps)]
        if number % 20 == 0:
            print(f"token {number}", flush=True)
    return out, margins


def window_nll(model, ids):
    """Sum of -log p of tokens 1 .. n - 1, each after all before it."""
    logits = (model.run([(ids, model.empty_cache())])[:-1] @ model.head.T).astype(np.float64)
    top = logits.max(axis=1)
    total = top + np.log(np.exp(logits - top[:, None]).sum(axis=1))
    return float((total - logits[np.arange(len(ids) - 1), ids[1:]]).sum())


def main():
    verb, path, source, target = sys.argv[1:5]
    model = Model(path)
    work = json.loads(pathlib.Path(source).read_text())
    result = {"model_sha256": hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()}
    if verb == "greedy":
        out, margins = greedy(model, [prompt["ids"] for prompt in work["prompts"]], work.get("count", 200))
        result["prompts"] = [{**prompt, "greedy": tokens, "least_margin": margin}
                             for prompt, tokens, margin in zip(work["prompts"], out, margins)]
        print("least margins", " ".join(f"{margin:.3g}" for margin in margins))
    else:
        result["windows"] = []
        for ids in work["windows"]:
            result["windows"].append({"tokens": len(ids), "nll": window_nll(model, ids)})
            print(f"{len(ids)} tokens, perplexity "
                  f"{np.exp(result['windows'][-1]['nll'] / (len(ids) - 1)):.5f}", flush=True)
    pathlib.Path(target).write_text(json.dumps(result, separators=(",", ":")).replace('{"text"', '\n{"text"') + "\n")


if __name__ == "__main__":
    main()
