"""NumPy attention that lacks something, and says so by an exception or by None.

  PARTIAL(np_no_lse, "lacks=lse", "returns None for the log-sum-exp")
  PARTIAL(np_no_groups, "lacks=grouped_heads", "shapes of grouped heads do not broadcast")
"""
import numpy as np


def run(variant, batch, query_heads, kv_heads, queries, keys, dim, causal, scale, q, k, v):
    if kv_heads < 1 or dim < 1 or query_heads % kv_heads:
        raise ValueError("heads")
    if variant == "np_no_groups" and query_heads != kv_heads:
        raise NotImplementedError("grouped heads")
    group = query_heads // kv_heads
    k = np.repeat(k.astype(np.float64), group, axis=1)
    v = np.repeat(v.astype(np.float64), group, axis=1)
    out = np.zeros((batch, query_heads, queries, dim), np.float32)
    lse = np.full((batch, query_heads, queries), -np.inf, np.float32)
    for i in range(queries):
        seen = min(max(i + keys - queries + 1, 0), keys) if causal else keys
        if seen == 0 or batch == 0:
            continue
        s = np.einsum("bhd,bhtd->bht", q[:, :, i].astype(np.float64), k[:, :, :seen]) * scale
        top = s.max(axis=-1, keepdims=True)
        e = np.exp(s - top)
        total = e.sum(axis=-1, keepdims=True)
        out[:, :, i] = np.einsum("bht,bhtd->bhd", e / total, v[:, :, :seen])
        lse[:, :, i] = (top + np.log(total))[..., 0]
    return out, None if variant == "np_no_lse" else lse


for _name in [line.split("(")[1].split(",")[0] for line in __doc__.splitlines() if "PARTIAL(" in line]:
    globals()[f"flash_attention_forward__{_name}"] = lambda *a, b=_name: run(b, *a)
