"""Whole arrays in float64; the cache is a dictionary."""
import numpy as np


def layer_norm_forward(rows, cols, eps, x, gamma, beta):
    wide = x.astype(np.float64)
    mean = wide.mean(axis=1, keepdims=True) if cols else np.zeros((rows, 1))
    centred = wide - mean
    variance = (centred**2).mean(axis=1, keepdims=True) if cols else np.zeros((rows, 1))
    rstd = 1 / np.sqrt(variance + eps)
    y = centred * rstd * gamma + beta
    return y.astype(np.float32), {"mean": mean, "rstd": rstd}


def layer_norm_backward(rows, cols, eps, dy, x, gamma, cache):
    xhat = (x - cache["mean"]) * cache["rstd"]
    wide = dy.astype(np.float64)
    g = wide * gamma
    if cols:
        a, b = g.mean(axis=1, keepdims=True), (g * xhat).mean(axis=1, keepdims=True)
    else:
        a = b = np.zeros((rows, 1))
    dx = cache["rstd"] * (g - a - xhat * b)
    return (dx.astype(np.float32), (wide * xhat).sum(axis=0).astype(np.float32),
            wide.sum(axis=0).astype(np.float32))
