"""NumPy mutants of attention backward; see mutants.cc.

  MUTANT(np_no_delta, "the softmax's own derivative is left out")
  MUTANT(np_delta_axis, "delta is summed over the queries")
  MUTANT(np_dv_from_keys, "dV sums P over the keys")
  MUTANT(np_dk_not_scaled, "dK is not scaled")
  MUTANT(np_group_mean, "gradients of a group are averaged")
  MUTANT(np_group_first, "gradients of the first head of a group only")
  MUTANT(np_tril_top_left, "np.tril: the mask begins at the first query")
  MUTANT(np_masked_row_nan, "rows that see nothing give NaN")
  MUTANT(np_half, "computes in float16")
  MUTANT(np_repeat_tile, "heads repeated with np.tile instead of np.repeat")
"""
import numpy as np


def run(bug, batch, query_heads, kv_heads, queries, keys, dim, causal, scale, dout, q, k, v, out, lse):
    if kv_heads < 1 or query_heads % kv_heads or dim < 1:
        raise ValueError("heads")
    group = query_heads // kv_heads
    wide = np.float16 if bug == "np_half" else np.float64
    scale = wide(scale)
    repeat = (lambda x: np.tile(x, (1, group, 1, 1))) if bug == "np_repeat_tile" else (
        lambda x: np.repeat(x, group, axis=1))
    key, value = repeat(k).astype(wide), repeat(v).astype(wide)
    wide_q, gradient = q.astype(wide), dout.astype(wide)
    s = np.einsum("bhid,bhtd->bhit", wide_q, key) * scale
    if causal:
        offset = 0 if bug == "np_tril_top_left" else keys - queries
        s = np.where(np.tril(np.ones((queries, keys), bool), offset), s, -np.inf)
    of_rows = lse if bug == "np_masked_row_nan" else np.where(np.isfinite(lse), lse, 0)
    p = np.exp(s - of_rows.astype(wide)[..., None])
    dp = np.einsum("bhid,bhtd->bhit", gradient, value)
    delta = (gradient * out.astype(wide)).sum(axis=3, keepdims=True)
    if bug == "np_no_delta":
        delta = np.zeros_like(delta)
    if bug == "np_delta_axis":
        delta = (p * dp).sum(axis=2, keepdims=True)
    ds = np.where(p > 0, p * (dp - delta), 0) if bug != "np_masked_row_nan" else p * (dp - delta)
    dq = np.einsum("bhit,bhtd->bhid", ds, key) * scale
    dk = np.einsum("bhit,bhid->bhtd", ds, wide_q) * (wide(1) if bug == "np_dk_not_scaled" else scale)
    if bug == "np_dv_from_keys":
        dv = np.einsum("bhit,bhtd->bhtd", p, value)
    else:
        dv = np.einsum("bhit,bhid->bhtd", p, gradient)

    def summed(x):
        parts = x.reshape(batch, kv_heads, group, keys, dim)
        if bug == "np_group_first":
            return parts[:, :, 0]
        return parts.mean(axis=2) if bug == "np_group_mean" else parts.sum(axis=2)

    return dq.astype(np.float32), summed(dk).astype(np.float32), summed(dv).astype(np.float32)


def bound(bug):
    def contender(*arguments):
        with np.errstate(all="ignore"):
            return run(bug, *arguments)
    return contender


for _bug in [line.split("(")[1].split(",")[0] for line in __doc__.splitlines() if "MUTANT(" in line]:
    globals()[f"flash_attention_backward__{_bug}"] = bound(_bug)
