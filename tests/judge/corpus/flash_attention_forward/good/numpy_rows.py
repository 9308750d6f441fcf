"""Blocks of 64 queries against all their keys, with NumPy's products; float32."""
import numpy as np


def flash_attention_forward(batch, query_heads, kv_heads, queries, keys, dim, causal, scale, q, k, v):
    if kv_heads < 1 or query_heads % kv_heads or dim < 1:
        raise ValueError("heads")
    out = np.zeros((batch, query_heads, queries, dim), np.float32)
    lse = np.full((batch, query_heads, queries), -np.inf, np.float32)
    group = query_heads // kv_heads
    for b in range(batch):
        for h in range(query_heads):
            for first in range(0, queries, 64):
                rows = np.arange(first, min(first + 64, queries))
                last = rows[-1] + keys - queries + 1 if causal else keys
                if last <= 0:
                    continue
                key, value = k[b, h // group, :last], v[b, h // group, :last]
                s = (q[b, h, rows] @ key.T) * np.float32(scale)
                if causal:
                    unseen = np.arange(last)[None, :] > rows[:, None] + (keys - queries)
                    s[unseen] = -np.inf
                top = s.max(axis=1, keepdims=True)
                w = np.exp(s - np.where(np.isfinite(top), top, 0))
                total = w.sum(axis=1, keepdims=True)
                some = total[:, 0] > 0
                # A key that only some rows see may hold NaN: 0 * NaN would reach the others.
                clean = np.where(np.isfinite(value), value, 0) if causal else value
                out[b, h, rows[some]] = (w @ clean)[some] / total[some]
                lse[b, h, rows[some]] = (top + np.log(total))[some, 0]
    return out, lse
