#!/usr/bin/env python3
"""Files and weights against PyPI `gguf` and `safetensors`: what they write is read, what is written here
they read, and every type decodes to the same bits, on more data than the committed golden files hold."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from importlib.metadata import version

import gguf
import numpy as np
from safetensors.numpy import load_file, save_file

PROGRAM = os.environ["TOUCHSTONE_PROGRAM"]
TYPES = ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"]
LEGACY = ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"]
ROWS, COLUMNS = 257, 2048
checks = failures = 0


def check(condition, what):
    global checks, failures
    checks += 1
    if not condition:
        failures += 1
    print(("ok    " if condition else "WRONG ") + what)


def run(*arguments):
    done = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, arguments))}: {done.returncode}\n{done.stderr}")
    return done.stdout


def decode(tensor):
    return gguf.dequantize(tensor.data, tensor.tensor_type)


def random_blocks(rng, kind):
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (ROWS, COLUMNS // elements, size), dtype=np.uint8)
    scales = {"Q6_K": [208], "Q4_1": [0, 2], "Q5_1": [0, 2], "Q4_K": [0, 2], "Q5_K": [0, 2]}
    for offset in [] if kind.name in ("F16", "BF16") else scales.get(kind.name, [0]):
        # No NaN and no infinity: what their payloads become is nobody's promise.
        blocks[..., offset + 1] &= 0xBF
    if kind.name in ("F16", "BF16"):
        blocks[..., 1] &= 0xBF
    return blocks.reshape(ROWS, -1)


def foreign_gguf(folder, rng):
    path = folder / "foreign.gguf"
    writer = gguf.GGUFWriter(path, "none")
    for name in TYPES:
        kind = gguf.GGMLQuantizationType[name]
        writer.add_tensor(name, random_blocks(rng, kind), raw_dtype=kind)
    writer.add_tensor("F32", rng.standard_normal((3, 5)).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def split_gguf(folder, rng):
    """A model in several files, as the package writes it."""
    values = {f"t{i}": rng.standard_normal((3, 32)).astype(np.float32) for i in range(5)}
    writer = gguf.GGUFWriter(folder / "parts.gguf", "none", split_max_tensors=2)
    for name, value in values.items():
        writer.add_tensor(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    listed = json.loads(run("inspect", folder / "parts-00001-of-00003.gguf", "--json", "--checksums"))
    save_file(values, folder / "values.safetensors")
    whole = json.loads(run("inspect", folder / "values.safetensors", "--json", "--checksums"))
    sums = [{t["name"]: t["checksum"] for t in side["tensors"]} for side in (listed, whole)]
    check(len(listed["files"]) == 3 and sums[0] == sums[1], "a GGUF model in three files is read as one")


def main():
    rng = np.random.default_rng(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        foreign = foreign_gguf(folder, rng)
        listed = json.loads(run("inspect", foreign, "--json"))
        check(len(listed["tensors"]) == len(TYPES) + 1, "a foreign GGUF file is listed")
        split_gguf(folder, rng)
        # Random blocks of every type. The package always writes an architecture; renamed, its key makes
        # the file one of tensors, which keep their names.
        blocks = folder / "blocks.gguf"
        blocks.write_bytes(foreign.read_bytes().replace(b"general.architecture", b"general.architectura", 1))
        run("convert", "--force", blocks, folder / "blocks.safetensors", "--type", "f32")
        ours = load_file(folder / "blocks.safetensors")
        for tensor in gguf.GGUFReader(foreign).tensors:
            same = np.array_equal(decode(tensor).view(np.uint32), ours[tensor.name].view(np.uint32))
            check(same, f"{tensor.name}: random blocks decoded to the same bits")
        values = {k: rng.standard_normal((ROWS, COLUMNS)).astype(np.float32) for k in ("a", "b")}
        values["c"] = rng.standard_normal((7, 32)).astype(np.float32)
        save_file(values, folder / "values.safetensors")
        for kind in ["F32"] + TYPES:
            run("convert", "--force", folder / "values.safetensors", folder / "out.gguf", "--type", kind.lower())
            reader = {t.name: t for t in gguf.GGUFReader(folder / "out.gguf").tensors}
            check(set(reader) == set(values), f"{kind}: written here, read by gguf")
            run("convert", "--force", folder / "out.gguf", folder / "back.safetensors", "--type", "f32")
            back = load_file(folder / "back.safetensors")
            check(all(np.array_equal(decode(reader[k]).view(np.uint32), back[k].view(np.uint32)) for k in values),
                  f"{kind}: decoded to the same bits")
            if kind in LEGACY:
                expected = gguf.quantize(values["a"], gguf.GGMLQuantizationType[kind])
                check(np.array_equal(reader["a"].data.view(np.uint8), np.ascontiguousarray(expected).view(np.uint8)),
                      f"{kind}: encoded to the same bytes")
    print(f"gguf {version('gguf')}, safetensors {version('safetensors')}: {checks} comparisons, {failures} differ")
    raise SystemExit(1 if failures else 0)


if __name__ == "__main__":
    main()
