"""Sums as products with a vector of ones, in float64; the cache is a closure over what the forward knew."""

import numpy as np


def layer_norm_forward(rows, cols, eps, x, gamma, beta):
    with np.errstate(all="ignore"):
        ones = np.full(cols, 1.0 / cols)
        wide = x.astype(np.float64)
        centered = wide - np.outer(wide @ ones, np.ones(cols))
        # Far from zero the mean of what is left is the rounding of the first one.
        centered -= np.outer(centered @ ones, np.ones(cols))
        deviation = np.sqrt((centered * centered) @ ones + np.float64(eps))
        hat = centered / deviation[:, None]
        y = (hat * gamma.astype(np.float64) + beta.astype(np.float64)).astype(np.float32)
    return y, lambda: (hat, deviation)


def layer_norm_backward(rows, cols, eps, dy, x, gamma, cache):
    hat, deviation = cache()
    with np.errstate(all="ignore"):
        upstream = dy.astype(np.float64)
        g = upstream * gamma.astype(np.float64)
        ones = np.full(cols, 1.0 / cols)
        inner = g - (g @ ones)[:, None] - hat * ((g * hat) @ ones)[:, None]
        dx = (inner / deviation[:, None]).astype(np.float32)
        dgamma = np.einsum("rc,rc->c", upstream, hat).astype(np.float32)
        dbeta = np.add.reduce(upstream, axis=0).astype(np.float32)
    return dx, dgamma, dbeta
