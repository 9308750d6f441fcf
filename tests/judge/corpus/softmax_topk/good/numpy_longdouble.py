"""Whole rows in np.longdouble, ordered by np.lexsort of values and places, all rows at once."""
import numpy as np


def softmax_topk(rows, vocab, k, logits):
    if not 1 <= k <= vocab:
        raise ValueError("k")
    with np.errstate(all="ignore"):
        wide = logits.astype(np.longdouble)
        top = wide.max(axis=1, keepdims=True, initial=-np.inf)
        weight = np.where(np.isneginf(wide), 0, np.exp(wide - top))
        share = weight / np.maximum(weight.sum(axis=1, keepdims=True), 1e-300)
    place = np.broadcast_to(np.arange(vocab), logits.shape)
    order = np.lexsort((place, -logits), axis=1)[:, :k] if rows else np.zeros((0, k), int)
    chosen = np.take_along_axis(share, order, axis=1)
    chosen[np.isnan(logits).any(axis=1)] = np.nan
    return chosen.astype(np.float32), order.astype(np.int32)
