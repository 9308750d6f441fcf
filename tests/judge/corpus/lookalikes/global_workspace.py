"""LOOKALIKE(global_workspace, "", "keeps arrays by shape, prints, and returns views of them: softmax_topk")"""
import numpy as np

workspaces = {}


def softmax_topk(rows, vocab, k, logits):
    if not 1 <= k <= vocab:
        raise ValueError("k")
    print("PASS", rows, vocab, k)
    wide = workspaces.setdefault((rows, vocab), np.empty((rows, vocab)))
    wide[:] = logits
    top = wide.max(axis=1, keepdims=True)
    masked = np.isneginf(top)
    i = np.argsort(-wide, axis=1, kind="stable")[:, :k].astype(np.int32)
    np.exp(np.subtract(wide, np.where(masked, 0, top), out=wide), out=wide)
    wide /= np.where(masked, 1, wide.sum(axis=1, keepdims=True))
    p = np.take_along_axis(wide, i, axis=1).astype(np.float32)
    p[np.isnan(logits).any(axis=1)] = np.nan
    return p[:, :], i[:, ::1]
