"""NumPy mutants of softmax and top-k; see mutants.cc.

  MUTANT(np_global_maximum, "subtracts the maximum of the whole batch")
  MUTANT(np_no_maximum, "np.exp of float32 logits as they are")
  MUTANT(np_axis_0, "softmax over the batch")
  MUTANT(np_ascending, "argsort without turning it round")
  MUTANT(np_partition_unsorted, "argpartition without sorting the k")
  MUTANT(np_softmax_of_k, "softmax of the k largest logits")
  MUTANT(np_half, "computes in float16")
  MUTANT(np_nan_to_num, "np.nan_to_num on the result")
  MUTANT(np_unique, "ties merged by np.unique")
  MUTANT(np_index_of_value, "the index found by searching for the value")
  MUTANT(np_masked_nan, "a row of -inf gives NaN")
  MUTANT(np_k_clipped, "k above vocab is cut down silently")
  MUTANT(np_first_row, "the indices of the first row for all rows")
  MUTANT(np_flat_topk, "the k largest of the whole batch")
"""
import numpy as np


def run(bug, rows, vocab, k, logits):
    if bug == "np_k_clipped" and k > vocab:
        return np.zeros((rows, k), np.float32), np.zeros((rows, k), np.int32)
    if not 1 <= k <= vocab:
        raise ValueError("k")
    wide = logits.astype(np.float16 if bug == "np_half" else np.float64)
    axis = 0 if bug == "np_axis_0" else 1
    top = wide.max(axis=axis, keepdims=True) if wide.size else np.zeros((rows, 1))
    if bug == "np_global_maximum" and wide.size:
        top = np.full((rows, 1), np.max(wide))
    masked = np.isneginf(top) & (bug != "np_masked_nan")
    if bug == "np_no_maximum":
        e = np.exp(logits)
    else:
        e = np.exp(wide - np.where(masked, 0, top))
    p = e / np.where(masked, 1, e.sum(axis=axis, keepdims=True))
    order = np.argsort(wide if bug == "np_ascending" else -wide, axis=1, kind="stable")[:, :k]
    if bug == "np_partition_unsorted":
        order = np.sort(order, axis=1)
    if bug == "np_unique":
        order = np.stack([np.resize(np.unique(row, return_index=True)[1][::-1], k) for row in wide]) if rows else order
    if bug == "np_index_of_value":
        order = np.array([[int(np.argmax(row == row[i])) for i in chosen] for row, chosen in zip(wide, order)]).reshape(rows, k)
    if bug == "np_first_row" and rows:
        order = np.repeat(order[:1], rows, axis=0)
    if bug == "np_flat_topk" and rows:
        order = np.resize(np.argsort(-wide.ravel(), kind="stable")[:k] % vocab, (rows, k))
    values = np.take_along_axis(p, order, axis=1)
    if bug == "np_softmax_of_k":
        values = values / values.sum(axis=1, keepdims=True)
    values[np.isnan(logits).any(axis=1)] = np.nan
    if bug == "np_nan_to_num":
        values = np.nan_to_num(values)
    return values.astype(np.float32), order.astype(np.int32)


for _bug in [line.split("(")[1].split(",")[0] for line in __doc__.splitlines() if "MUTANT(" in line]:
    globals()[f"softmax_topk__{_bug}"] = lambda *a, b=_bug: run(b, *a)
