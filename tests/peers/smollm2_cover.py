#!/usr/bin/env python3
"""The same text in any setting: SmolLM2 in a pairwise cover of batch, rows per step, page size, temperature and cache format,
tokens and log-probabilities to the last digit printed.

  smollm2_cover.py PROGRAM MODEL.gguf [cpu|cuda]
"""
import itertools
import json
import subprocess
import sys
import tempfile

PROGRAM, MODEL = sys.argv[1:3]
DEVICE = sys.argv[3] if len(sys.argv) > 3 else "cpu"
SUBJECTS = ("a cat,a king,rain,a ship,two friends,a storm,the sea,a baker,an old man,a river,music,a train,snow,a dog,a garden,the moon,"
            "a doctor,a bird,fire,a mountain,a letter,bread,a bridge,a clock,a farm,a school,a road,a lamp,a window,a song,a race,a map,a door")
PROMPTS = ["Once upon a time" + (" there was " if i % 3 else " ") + s for i, s in enumerate(SUBJECTS.split(","))]
ROWS, PAGES, BATCHES = (16, 64, 512), (8, 16, 48), (1, 7, 33)
FORMATS = ((0, "bf16"), (0.8, "int8"), (0, "int8"), (0.8, "bf16"))


def run(batch, rows, page, temperature, cache):
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(PROMPTS[:batch]) + "\n")
        file.flush()
        command = [PROGRAM, "generate", "-m", MODEL, "--device", DEVICE, "--compute", "bf16", "--prompts", file.name, "-n", "40",
                   "--ignore-eos", "--json", "-q", "--max-rows", str(rows), "--page-tokens", str(page), "--temperature",
                   str(temperature), "--seed", "5", "--cache", cache, "--log-probs", "0"]
        out = subprocess.run(command, capture_output=True, text=True)
    if out.returncode != 0:
        sys.exit(f"exit {out.returncode}: {out.stderr[-300:]}")
    lines = [json.loads(line) for line in out.stdout.splitlines()]
    return [(line["tokens"], [token["log_prob"] for token in line["log_probs"]]) for line in lines]


def main():
    reference = {key: run(33, 512, 16, *key) for key in FORMATS}
    differ = 0
    for i, (rows, page) in enumerate(itertools.product(ROWS, PAGES)):
        batch, key = BATCHES[(i + i // 3) % 3], FORMATS[i % 4]
        if run(batch, rows, page, *key) != reference[key][:batch]:
            differ += 1
            print(f"differs: batch {batch}, rows {rows}, pages of {page}, temperature {key[0]}, cache {key[1]}")
    print(f"{'not ' if differ else ''}ok    SmolLM2 on {DEVICE}: {len(ROWS) * len(PAGES)} settings, {differ} differ")
    sys.exit(1 if differ else 0)


main()
