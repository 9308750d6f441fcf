"""Group by group, in float32 where it is exact enough, words by masks."""
import numpy as np

CODES = ((np.arange(256)[:, None] >> np.array([0, 2, 4, 6])) & 3).astype(np.int8) - 1


def spans(inputs, group):
    if group < 0 or 0 < group < 32 or group > 256:
        raise ValueError("group")
    size = group if group else inputs
    return [slice(begin, min(begin + size, inputs)) for begin in range(0, inputs, size)]


def codes_of(packed, inputs):
    codes = CODES[np.ascontiguousarray(packed).view(np.uint8)].reshape(len(packed), -1)[:, :inputs]
    if codes.max() > 1:
        raise ValueError("code")
    return codes


def rounded(x):
    out = np.zeros(x.shape, np.float64)
    for r, row in enumerate(x):
        most = float(np.abs(row).max())
        if most:
            out[r] = np.rint(row.astype(np.float64) * (127 / most)) * (most / 127)
    return out


def ternary_project(outputs, inputs, group, groups, words, absmax, weight):
    scales = np.zeros((outputs, groups), np.float32)
    trits = np.zeros((outputs, words * 16), np.uint32)
    for o in range(outputs):
        for g, span in enumerate(spans(inputs, group)):
            w = weight[o, span].astype(np.float64)
            if not np.isfinite(w).all():
                raise ValueError("weight")
            size = np.abs(w)
            s = size.max() if absmax else size.mean()
            if s > 0:
                scales[o, g] = np.float16(min(max(s, 2.0**-24), 65504))
            trits[o, span] = 1 + (w * 2 > s).astype(np.int64) - (w * 2 < -s)
    packed = np.zeros((outputs, words), np.uint32)
    for i in range(16):
        packed |= trits[:, i::16] << np.uint32(2 * i)
    return packed.view(np.int32), scales


def ternary_linear(rows, outputs, inputs, group, groups, words, int8, packed, scales, x):
    codes = codes_of(packed, inputs)
    seen = rounded(x) if int8 else x.astype(np.float64)
    y = np.zeros((rows, outputs))
    for g, span in enumerate(spans(inputs, group)):
        y += (seen[:, span] @ codes[:, span].T.astype(np.float64)) * scales[:, g]
    return y.astype(np.float32)


def ternary_backward(rows, outputs, inputs, group, groups, words, int8, packed, scales, x, dy):
    codes = codes_of(packed, inputs)
    seen = rounded(x) if int8 else x.astype(np.float64)
    dx = np.zeros((rows, inputs), np.float32)
    for g, span in enumerate(spans(inputs, group)):
        dx[:, span] = (dy.astype(np.float64) * scales[:, g]) @ codes[:, span]
    return dx, np.einsum("ro,rc->oc", dy.astype(np.float64), seen).astype(np.float32)
