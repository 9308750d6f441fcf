#!/usr/bin/env python3
"""`touchstone generate` and `score` on SmolLM2 (make real-model) beside smollm2_reference.py, live."""
import json
import os
import pathlib
import subprocess
import sys

import numpy as np

from smollm2_reference import Model, greedy, window_nll

PROMPTS = ["Rivers flow to", "def add(a, b):\n    return", "The best way to learn is"]
TEXT = ("The lighthouse keeper wrote down the weather every morning: wind from the west, a calm sea, "
        "and three ships on their way to the harbor before noon.")
COUNT = 24


def folder():
    if "TOUCHSTONE_MODELS" in os.environ:
        return pathlib.Path(os.environ["TOUCHSTONE_MODELS"])
    cache = os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")
    return pathlib.Path(cache) / "touchstone/models"


def main():
    path = folder() / "SmolLM2-135M-Instruct.Q4_1.gguf"
    if not path.exists():
        print(f"SKIPPED: no real model at {path}; `make real-model` brings it")
        return 0
    program = os.environ["TOUCHSTONE_PROGRAM"]

    def run(*arguments, given=""):
        out = subprocess.run([program, *arguments], input=given, check=True, capture_output=True,
                             text=True).stdout
        return [json.loads(line) for line in out.splitlines()]

    def ids(text):
        return run("tokenize", "-m", path, "--lines", given=json.dumps(text) + "\n")[0]

    model = Model(path)
    expected, margins = greedy(model, [ids(prompt) for prompt in PROMPTS], COUNT)
    flags = [word for prompt in PROMPTS for word in ("-p", prompt)]
    lines = run("generate", "-m", path, "-n", str(COUNT), "--ignore-eos", "--json", "-q", *flags)
    failures = 0
    for line, tokens, margin in zip(lines, expected, margins):
        same = line["tokens"] == tokens
        failures += not same
        print(f"{'equal' if same else 'DIFFERENT'}: {COUNT} tokens, least margin {margin:.3g}")
    nll = window_nll(model, ids(TEXT))
    scored = run("score", "-m", path, "--json", TEXT)[0]
    change = np.expm1((scored["loss"] - nll) / scored["scored"])
    print(f"perplexity {scored['perplexity']:.5f}, off by {change:.2e}")
    return 1 if failures or abs(change) > 1e-3 else 0


if __name__ == "__main__":
    sys.exit(main())
