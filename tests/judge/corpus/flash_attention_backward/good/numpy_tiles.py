"""Tiles of keys, all query heads of a group at once; delta as the sum of P * dP; float64 inside."""
import numpy as np


def flash_attention_backward(batch, query_heads, kv_heads, queries, keys, dim, causal, scale, dout, q, k, v, out, lse):
    if kv_heads < 1 or query_heads % kv_heads or dim < 1:
        raise ValueError("heads")
    group = query_heads // kv_heads
    shape = (batch, kv_heads, group, queries)
    wide_q, gradient = (x.astype(np.float64).reshape(shape + (dim,)) for x in (q, dout))
    of_rows = np.where(np.isfinite(lse), lse, np.inf).astype(np.float64).reshape(shape)
    dq = np.zeros(wide_q.shape)
    dk, dv = np.zeros(k.shape), np.zeros(v.shape)
    place = np.arange(queries)[:, None] + (keys - queries)
    tiles = [slice(t, min(t + 48, keys)) for t in range(0, keys, 48)]

    def pieces(tile):
        s = np.einsum("bkgid,bktd->bkgit", wide_q, k[:, :, tile]) * scale
        unseen = np.arange(tile.start, tile.stop)[None, :] > place if causal else np.False_
        p = np.exp(np.where(unseen, -np.inf, s - of_rows[..., None]))
        return p, np.einsum("bkgid,bktd->bkgit", gradient, v[:, :, tile])

    delta = np.zeros(shape)
    for tile in tiles:
        p, dp = pieces(tile)
        delta += (p * dp).sum(axis=-1)
    for tile in tiles:
        p, dp = pieces(tile)
        ds = p * (dp - delta[..., None]) * scale
        dq += np.einsum("bkgit,bktd->bkgid", ds, k[:, :, tile])
        dk[:, :, tile] = np.einsum("bkgit,bkgid->bktd", ds, wide_q)
        dv[:, :, tile] = np.einsum("bkgit,bkgid->bktd", p, gradient)
    return dq.reshape(q.shape).astype(np.float32), dk.astype(np.float32), dv.astype(np.float32)
