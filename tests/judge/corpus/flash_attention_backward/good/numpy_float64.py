"""Query by query in float64, the softmax made again, delta as the sum of P * dP; heads of a group by einsum."""

import numpy as np


def flash_attention_backward(batch, query_heads, kv_heads, queries, keys, dim, causal, scale,
                             dout, q, k, v, out, lse):
    if kv_heads < 1 or dim < 1 or query_heads % kv_heads != 0:
        raise ValueError("heads")
    group = query_heads // kv_heads
    dq = np.zeros((batch, kv_heads, group, queries, dim))
    dk = np.zeros((batch, kv_heads, keys, dim))
    dv = np.zeros((batch, kv_heads, keys, dim))
    shape = (batch, kv_heads, group, queries, dim)
    wide_q = q.reshape(shape).astype(np.float64)
    wide_dout = dout.reshape(shape).astype(np.float64)
    scale = np.float64(np.float32(scale))
    with np.errstate(all="ignore"):
        for i in range(queries):
            seen = min(keys, max(0, i + keys - queries + 1)) if causal else keys
            if seen == 0 or batch == 0:
                continue
            some_k = k[:, :, :seen].astype(np.float64)
            some_v = v[:, :, :seen].astype(np.float64)
            qi, di = wide_q[:, :, :, i], wide_dout[:, :, :, i]
            scores = scale * np.einsum("bhgd,bhtd->bhgt", qi, some_k)
            weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
            weights /= weights.sum(axis=-1, keepdims=True)
            dp = np.einsum("bhgd,bhtd->bhgt", di, some_v)
            ds = weights * (dp - (weights * dp).sum(axis=-1, keepdims=True))
            dq[:, :, :, i] = scale * np.einsum("bhgt,bhtd->bhgd", ds, some_k)
            dk[:, :, :seen] += scale * np.einsum("bhgt,bhgd->bhtd", ds, qi)
            dv[:, :, :seen] += np.einsum("bhgt,bhgd->bhtd", weights, di)
    dq = dq.reshape(batch, query_heads, queries, dim)
    return dq.astype(np.float32), dk.astype(np.float32), dv.astype(np.float32)
