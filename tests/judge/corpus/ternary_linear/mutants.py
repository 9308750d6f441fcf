"""NumPy mutants of the ternary linear layer; see mutants.cc.

  MUTANT(np_padded_mean, "the mean of padded groups")
  MUTANT(np_round, "codes by rounding w / (s + 1e-8)")
  MUTANT(np_scale_float, "scales are not rounded to halves")
  MUTANT(np_no_clip, "halves overflow and underflow")
  MUTANT(np_shift_order, "codes in the reversed order of a word")
  MUTANT(np_int8_tensor, "one step for all rows")
  MUTANT(np_float16, "products in float16")
  MUTANT(np_masked_gradient, "dweight is masked by the codes")
  MUTANT(np_latent_x, "dweight takes the float activations")
  MUTANT(np_tiled_scales, "scales are tiled instead of repeated")
"""
import numpy as np


BUG = "none"


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


def spread(scales, size):
    scales = scales.astype(np.float64)
    return np.tile(scales, (1, size)) if BUG == "np_tiled_scales" else np.repeat(scales, size, axis=1)


def dense(outputs, inputs, group, words, packed, scales):
    check(group)
    size = group or inputs
    return unpack(outputs, inputs, words, packed) * spread(scales, size)[:, :inputs]


def seen(int8, x):
    x = x.astype(np.float64)
    if not int8 or x.size == 0:
        return x
    step = np.abs(x).max(axis=None if BUG == "np_int8_tensor" else 1, keepdims=True) / 127
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
    scale = padded.max(axis=2) if absmax else padded.mean(axis=2) if BUG == "np_padded_mean" else padded.sum(axis=2) / counts
    stored = np.clip(scale, 2.0**-24, 65504).astype(np.float16).astype(np.float32)
    if BUG == "np_no_clip":
        with np.errstate(over="ignore"):
            stored = scale.astype(np.float16).astype(np.float32)
    if BUG == "np_scale_float":
        stored = scale.astype(np.float32)
    stored[scale == 0] = 0
    limit = np.repeat(scale, size, axis=1)[:, :inputs]
    codes = np.where(2 * np.abs(weight.astype(np.float64)) > limit, np.sign(weight), 0).astype(np.int64) + 1
    if BUG == "np_round":
        codes = np.clip(np.rint(weight / (limit + 1e-8)), -1, 1).astype(np.int64) + 1
    wide = np.zeros((outputs, words * 16), np.uint64)
    wide[:, :inputs] = codes
    shifts = (2 * np.arange(16)).astype(np.uint64)
    if BUG == "np_shift_order":
        shifts = shifts[::-1]
    packed = (wide.reshape(outputs, words, 16) << shifts).sum(axis=2).astype(np.uint32).view(np.int32)
    return packed, stored


def ternary_linear(rows, outputs, inputs, group, groups, words, int8, packed, scales, x):
    w = dense(outputs, inputs, group, words, packed, scales)
    if BUG == "np_float16":
        return (seen(int8, x).astype(np.float16) @ w.T.astype(np.float16)).astype(np.float32)
    return (seen(int8, x) @ w.T).astype(np.float32)


def ternary_backward(rows, outputs, inputs, group, groups, words, int8, packed, scales, x, dy):
    w = dense(outputs, inputs, group, words, packed, scales)
    dy = dy.astype(np.float64)
    dw = dy.T @ seen(int8 and BUG != "np_latent_x", x)
    if BUG == "np_masked_gradient":
        dw = dw * (w != 0)
    return (dy @ w).astype(np.float32), dw.astype(np.float32)


def named(bug, function):
    def call(*arguments):
        global BUG
        BUG = bug
        return function(*arguments)

    return call


for _bug in [line.split("(")[1].split(",")[0] for line in __doc__.splitlines() if "MUTANT(" in line]:
    globals()[f"ternary_project__{_bug}"] = named(_bug, ternary_project)
    globals()[f"ternary_linear__{_bug}"] = named(_bug, ternary_linear)
    globals()[f"ternary_backward__{_bug}"] = named(_bug, ternary_backward)
