"""NumPy mutants of attention forward; see mutants.cc.

  MUTANT(np_axis, "softmax over the queries")
  MUTANT(np_no_maximum, "np.exp of float32 scores as they are")
  MUTANT(np_global_maximum, "one maximum for the whole batch")
  MUTANT(np_tril_top_left, "np.tril: the mask begins at the first query")
  MUTANT(np_tril_minus_one, "np.tril(k=-1): a query does not see its own place")
  MUTANT(np_repeat_tile, "heads repeated with np.tile instead of np.repeat")
  MUTANT(np_masked_row_nan, "a row that sees nothing is NaN")
  MUTANT(np_nan_to_num, "NaN and infinity become 0 in lse too")
  MUTANT(np_half, "computes in float16")
  MUTANT(np_scale_fixed, "divides by the square root of dim")
  MUTANT(np_lse_of_weights, "lse is the logarithm of the sum of the normalised weights")
"""
import numpy as np


def run(bug, batch, query_heads, kv_heads, queries, keys, dim, causal, scale, q, k, v):
    if kv_heads < 1 or query_heads % kv_heads or dim < 1:
        raise ValueError("heads")
    group = query_heads // kv_heads
    wide = np.float16 if bug == "np_half" else np.float32 if bug == "np_no_maximum" else np.float64
    if bug == "np_repeat_tile":
        key, value = np.tile(k, (1, group, 1, 1)), np.tile(v, (1, group, 1, 1))
    else:
        key, value = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    if bug == "np_scale_fixed":
        scale = dim ** -0.5
    s = np.einsum("bhid,bhtd->bhit", q.astype(wide), key.astype(wide)) * wide(scale)
    offset = 0 if bug == "np_tril_top_left" else keys - queries
    offset -= bug == "np_tril_minus_one"
    if causal:
        s = np.where(np.tril(np.ones((queries, keys), bool), offset), s, -np.inf)
    axis = 2 if bug == "np_axis" else 3
    if s.size == 0:
        return np.zeros(q.shape, np.float32), np.full(q.shape[:3], -np.inf, np.float32)
    top = s.max(axis=axis, keepdims=True)
    if bug == "np_global_maximum":
        top = np.full_like(top, s.max()).astype(np.float32)
        s = s.astype(np.float32)
    if bug == "np_no_maximum":
        top = np.zeros_like(top)
    safe = top if bug == "np_masked_row_nan" else np.where(np.isfinite(top), top, 0)
    w = np.exp(s - safe)
    total = w.sum(axis=axis, keepdims=True)
    by = total if bug == "np_masked_row_nan" else np.where(total > 0, total, 1)
    w = w / by
    out = np.einsum("bhit,bhtd->bhid", w, value.astype(wide))
    lse = (safe + np.log(total)) if axis == 3 else np.log(w.sum(axis=3, keepdims=True))
    if bug == "np_lse_of_weights":
        lse = np.log(w.sum(axis=3, keepdims=True))
    lse = lse[..., 0].reshape(q.shape[:3])
    if bug == "np_nan_to_num":
        lse = np.nan_to_num(lse, neginf=0.0)
    return out.astype(np.float32), lse.astype(np.float32)


def bound(bug):
    def contender(*arguments):
        with np.errstate(all="ignore"):
            return run(bug, *arguments)
    return contender


for _bug in [line.split("(")[1].split(",")[0] for line in __doc__.splitlines() if "MUTANT(" in line]:
    globals()[f"flash_attention_forward__{_bug}"] = bound(_bug)
