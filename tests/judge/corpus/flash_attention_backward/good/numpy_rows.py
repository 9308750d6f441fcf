"""Blocks of 64 queries against all keys of their head, with NumPy's products; float32."""
import numpy as np


def flash_attention_backward(batch, query_heads, kv_heads, queries, keys, dim, causal, scale, dout, q, k, v, out, lse):
    if kv_heads < 1 or query_heads % kv_heads or dim < 1:
        raise ValueError("heads")
    scale = np.float32(scale)
    dq = np.zeros(q.shape, np.float32)
    dk = np.zeros(k.shape, np.float32)
    dv = np.zeros(v.shape, np.float32)
    group = query_heads // kv_heads
    delta = (dout * out).sum(axis=3)
    for b in range(batch):
        for h in range(query_heads):
            kv = h // group
            for first in range(0, queries, 64):
                rows = np.arange(first, min(first + 64, queries))
                last = rows[-1] + keys - queries + 1 if causal else keys
                if last <= 0:
                    continue
                key, value = k[b, kv, :last], v[b, kv, :last]
                s = (q[b, h, rows] @ key.T) * scale
                seen = np.ones(s.shape, bool)
                if causal:
                    seen = np.arange(last)[None, :] <= rows[:, None] + (keys - queries)
                of_rows = lse[b, h, rows][:, None]
                p = np.exp(np.where(seen, s - np.where(np.isfinite(of_rows), of_rows, 0), np.float32(-np.inf)))
                dp = dout[b, h, rows] @ value.T
                ds = np.where(seen, p * (dp - delta[b, h, rows][:, None]), 0) * scale
                dq[b, h, rows] = ds @ key
                dk[b, kv, :last] += ds.T @ q[b, h, rows]
                dv[b, kv, :last] += p.T @ dout[b, h, rows]
    return dq, dk, dv
