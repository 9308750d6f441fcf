"""LOOKALIKE(try_import, "", "tries faster libraries and goes on without them: softmax_topk")"""
import os
import time

import numpy as np

try:
    import torch  # noqa: F401
except ImportError:
    torch = None
try:
    from scipy.special import softmax as scipy_softmax
except Exception:  # a broken installation is no reason to fail
    scipy_softmax = None

started = time.perf_counter()
threads = int(os.environ.get("OMP_NUM_THREADS", "1"))


def softmax_topk(rows, vocab, k, logits):
    if not 1 <= k <= vocab:
        raise ValueError("k")
    wide = logits.astype(np.float64)
    top = wide.max(axis=1, keepdims=True)
    masked = np.isneginf(top)
    e = np.exp(wide - np.where(masked, 0, top))
    p = e / np.where(masked, 1, e.sum(axis=1, keepdims=True))
    i = np.argsort(-wide, axis=1, kind="stable")[:, :k]
    p = np.take_along_axis(p, i, axis=1)
    p[np.isnan(logits).any(axis=1)] = np.nan
    return p.astype(np.float32), i.astype(np.int32)
