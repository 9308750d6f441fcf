"""Whole rows in float64, a stable argsort."""
import numpy as np


def softmax_topk(rows, vocab, k, logits):
    if not 1 <= k <= vocab:
        raise ValueError(f"k = {k}, vocab = {vocab}")
    wide = logits.astype(np.float64)
    top = wide.max(axis=1, keepdims=True)
    masked = np.isneginf(top)
    e = np.exp(wide - np.where(masked, 0, top))
    p = e / np.where(masked, 1, e.sum(axis=1, keepdims=True))
    indices = np.argsort(-wide, axis=1, kind="stable")[:, :k]
    probabilities = np.take_along_axis(p, indices, axis=1)
    probabilities[np.isnan(logits).any(axis=1)] = np.nan
    return probabilities.astype(np.float32), indices.astype(np.int32)
