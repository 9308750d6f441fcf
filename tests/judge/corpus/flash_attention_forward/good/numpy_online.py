"""An online softmax over tiles of 32 keys, all heads of an item at once; float32."""
import numpy as np


def flash_attention_forward(batch, query_heads, kv_heads, queries, keys, dim, causal, scale, q, k, v):
    if kv_heads < 1 or query_heads % kv_heads or dim < 1:
        raise ValueError("heads")
    out = np.zeros((batch, query_heads, queries, dim), np.float32)
    lse = np.full((batch, query_heads, queries), -np.inf, np.float32)
    group = query_heads // kv_heads
    place = np.arange(queries)[:, None] + (keys - queries)
    for b in range(batch):
        m = np.full((query_heads, queries, 1), -np.inf, np.float32)
        l = np.zeros((query_heads, queries, 1), np.float32)
        o = np.zeros((query_heads, queries, dim), np.float32)
        for first in range(0, keys, 32):
            tile = slice(first, min(first + 32, keys))
            key = np.repeat(k[b, :, tile], group, axis=0)
            value = np.repeat(v[b, :, tile], group, axis=0)
            s = np.einsum("hid,htd->hit", q[b], key) * np.float32(scale)
            if causal:
                t = np.arange(tile.start, tile.stop)[None, :]
                s = np.where(t > place, np.float32(-np.inf), s)
            top = np.maximum(m, s.max(axis=2, keepdims=True))
            safe = np.where(np.isfinite(top), top, np.float32(0))
            w = np.exp(s - safe)
            correction = np.exp(m - safe)
            l = l * correction + w.sum(axis=2, keepdims=True)
            o = o * correction + np.einsum("hit,htd->hid", w, value)
            m = top
        some = l > 0
        by = np.where(some, l, 1)
        out[b] = np.where(some, o / by, 0)
        lse[b] = np.where(some, m + np.log(by), np.float32(-np.inf))[..., 0]
    return out, lse
