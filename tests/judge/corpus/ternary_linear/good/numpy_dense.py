"""Whole matrices: padded groups with a count of what is there, dense products."""
import numpy as np


def check(group):
    if group != 0 and not 32 <= group <= 256:
        raise ValueError("group")


def unpack(outputs, inputs, words, packed):
    shifts = 2 * np.arange(16, dtype=np.uint32)
    codes = (packed.view(np.uint32)[:, :, None] >> shifts) & 3
    codes = codes.reshape(outputs, words * 16)[:, :inputs].astype(np.int64)
    if (codes == 3).any():
        raise ValueError("code")
    return codes - 1


def dense(outputs, inputs, group, words, packed, scales):
    check(group)
    size = group or inputs
    return unpack(outputs, inputs, words, packed) * np.repeat(scales.astype(np.float64), size, axis=1)[:, :inputs]


def seen(int8, x):
    x = x.astype(np.float64)
    if not int8 or x.size == 0:
        return x
    step = np.abs(x).max(axis=1, keepdims=True) / 127
    return step * np.rint(x / np.where(step == 0, 1, step))


def ternary_project(outputs, inputs, group, groups, words, absmax, weight):
    check(group)
    if not np.isfinite(weight).all():
        raise ValueError("weight")
    size = group or inputs
    padded = np.zeros((outputs, groups * size))
    padded[:, :inputs] = np.abs(weight.astype(np.float64))
    padded = padded.reshape(outputs, groups, size)
    counts = np.minimum(size, inputs - size * np.arange(groups))
    scale = padded.max(axis=2) if absmax else padded.sum(axis=2) / counts
    stored = np.clip(scale, 2.0**-24, 65504).astype(np.float16).astype(np.float32)
    stored[scale == 0] = 0
    limit = np.repeat(scale, size, axis=1)[:, :inputs]
    codes = np.where(2 * np.abs(weight.astype(np.float64)) > limit, np.sign(weight), 0).astype(np.int64) + 1
    wide = np.zeros((outputs, words * 16), np.uint64)
    wide[:, :inputs] = codes
    shifts = (2 * np.arange(16)).astype(np.uint64)
    packed = (wide.reshape(outputs, words, 16) << shifts).sum(axis=2).astype(np.uint32).view(np.int32)
    return packed, stored


def ternary_linear(rows, outputs, inputs, group, groups, words, int8, packed, scales, x):
    w = dense(outputs, inputs, group, words, packed, scales)
    return (seen(int8, x) @ w.T).astype(np.float32)


def ternary_backward(rows, outputs, inputs, group, groups, words, int8, packed, scales, x, dy):
    w = dense(outputs, inputs, group, words, packed, scales)
    dy = dy.astype(np.float64)
    return (dy @ w).astype(np.float32), (dy.T @ seen(int8, x)).astype(np.float32)
