"""float32 all the way: logaddexp for the sum, argpartition for the k, row by row."""
import numpy as np


def softmax_topk(rows, vocab, k, logits):
    if k < 1 or k > vocab:
        raise ValueError("k out of range")
    probabilities = np.zeros((rows, k), np.float32)
    indices = np.zeros((rows, k), np.int32)
    for r in range(rows):
        row = logits[r]
        if np.isnan(row).any():
            probabilities[r] = np.nan
            continue
        chosen = np.argpartition(row, vocab - k)[vocab - k:]
        chosen = chosen[np.argsort(row[chosen])[::-1]]
        indices[r] = chosen
        top = row.max()
        if top == -np.inf:
            continue
        e = np.exp(row - top)
        probabilities[r] = e[chosen] / e.sum(dtype=np.float32)
    return probabilities, indices
