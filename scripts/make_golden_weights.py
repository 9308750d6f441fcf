#!/usr/bin/env python3
"""Makes src/io/testdata/weights.safetensors: blocks of every GGUF type with the values that PyPI
`gguf` decodes from them, and, where it has an encoder, values with the blocks that it encodes.

    build/peers/bin/python scripts/make_golden_weights.py    (the environment of make peers-test)

For each type: <type>.blocks u8 [n, block bytes], <type>.values f32 [n, block elements], and for types
with an encoder <type>.input f32, <type>.encoded u8.
"""
import pathlib

import gguf
import numpy as np
from safetensors.numpy import save_file

TYPES = ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K",
         "TQ1_0", "TQ2_0"]
# Byte offsets of the f16 scales in a block.
SCALES = {"Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q4_K": [0, 2],
          "Q5_K": [0, 2], "Q6_K": [208], "TQ1_0": [52], "TQ2_0": [64]}


def random_blocks(name, rng):
    kind = gguf.GGMLQuantizationType[name]
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    count = 256 if elements == 1 else (16 if elements == 32 else 6)
    blocks = rng.integers(0, 256, (count, size), dtype=np.uint8)
    for offset in SCALES.get(name, []):
        # Any f16 but NaN and infinity: subnormals, zeros of both signs and the largest included.
        bits = rng.integers(0, 1 << 16, count, dtype=np.uint16)
        bits = np.where(bits & 0x7C00 == 0x7C00, bits & 0x83FF, bits)
        bits[:3] = [0x0000, 0x8000, 0x7BFF]
        blocks[:, offset:offset + 2] = bits.astype(np.uint16)[:, None].view(np.uint8)
    if name in ("F16", "BF16"):
        exponent = 0x7C00 if name == "F16" else 0x7F80
        bits = blocks.view(np.uint16)
        bits[bits & exponent == exponent] &= ~np.uint16(exponent)
    return kind, blocks


def main():
    rng = np.random.default_rng(20261116)
    tensors = {}
    for name in TYPES:
        kind, blocks = random_blocks(name, rng)
        flat = blocks.reshape(1, -1)
        data = flat.view(np.float16) if name == "F16" else flat
        with np.errstate(all="ignore"):
            values = gguf.dequantize(data, kind).astype(np.float32)
        key = name.lower()
        tensors[f"{key}.blocks"] = blocks
        tensors[f"{key}.values"] = values.reshape(len(blocks), -1)
        inputs = (rng.standard_normal((6, 32)) * 10.0 ** rng.integers(-3, 3, (6, 1))).astype(np.float32)
        inputs[0] = 0
        inputs[1, 5:9] = inputs[1, 20]
        if name in ("TQ1_0", "TQ2_0"):
            # Ternary groups, one of them of zeros, and values that have to be projected.
            inputs = rng.integers(-1, 2, (6, 256)) * rng.standard_normal((6, 1)).astype(np.float16)
            inputs = inputs.astype(np.float32)
            inputs[0] = 0
            inputs[4:] = rng.standard_normal((2, 256))
            inputs[5, 7] = 0.5 * np.abs(inputs[5]).max()
        if name in ("TQ1_0", "TQ2_0", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"):
            encoded = gguf.quantize(inputs, kind)
            tensors[f"{key}.input"] = inputs
            tensors[f"{key}.encoded"] = np.ascontiguousarray(encoded).view(np.uint8)
    target = pathlib.Path(__file__).resolve().parent.parent / "src/io/testdata/weights.safetensors"
    save_file(tensors, target, metadata={"made_by": "scripts/make_golden_weights.py",
                                         "quote": 'a "quoted"\nline'})


if __name__ == "__main__":
    main()
