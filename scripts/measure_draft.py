#!/usr/bin/env python3
"""Tokens per pass and speed of a block draft on fresh samples of its target.

  scripts/measure_draft.py DRAFT [MODEL]    (default: the built-in model)

Prompts are those of `touchstone generate --corpus` with a seed that training does not use. Each is continued at
T 0.8 by plain decoding and with drafts of at most 8, 16 and 32 nodes, every draft verified and, in the last rows,
as the controller decides; the texts must be equal. Passes do not depend on the machine, speeds do. Environment:
PROMPTS and TOKENS (32 prompts, 256 tokens), THREADS (all cores), OPTIONS (more of generate, such as "--compute bf16"),
TOUCHSTONE_PROGRAM.

Standard library only.
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = os.environ.get("TOUCHSTONE_PROGRAM", str(ROOT / "build/release/touchstone"))
PROMPTS = int(os.environ.get("PROMPTS", "32"))
TOKENS = int(os.environ.get("TOKENS", "256"))
THREADS = os.environ.get("THREADS", "0")
OPTIONS = os.environ.get("OPTIONS", "").split()
SEED = 990001
NODES = (8, 16, 32)


def run(*arguments):
    command = [PROGRAM, "generate", "--threads", THREADS, "--temperature", "0.8", *OPTIONS, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"measure_draft: {' '.join(command)}: {done.stderr}")
    return done


def held_out_prompts(model):
    with tempfile.TemporaryDirectory() as folder:
        run(*model, "--corpus", folder, "--documents", str(PROMPTS), "-n", "1", "--seed", str(SEED))
        lines = sorted(pathlib.Path(folder).glob("*.jsonl"))[0].read_text(encoding="utf-8").splitlines()
        return [json.loads(line)["prompt"] for line in lines]


def repeated_4_grams(text):
    words = text.split()
    grams = [tuple(words[i:i + 4]) for i in range(len(words) - 3)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def continue_prompt(model, prompt, seed, speculation):
    """(text, passes, seconds of decoding); a pass of plain decoding is a token."""
    done = run(*model, "-p", prompt, "-n", str(TOKENS), "--ignore-eos", "--seed", str(seed), *speculation)
    tokens, rate = re.search(r"(\d+) generated, decode ([\d.]+) tokens/s", done.stderr).groups()
    passes = re.search(r"\((\d+) passes", done.stderr)
    return done.stdout, int(passes[1]) if passes else int(tokens), int(tokens) / float(rate)


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    model = ["-m", sys.argv[2]] if len(sys.argv) == 3 else []
    draft = ["--speculate", f"dflash={sys.argv[1]}"]
    variants = {"plain": []}
    for nodes in NODES:
        variants[f"{nodes} nodes"] = [*draft, "--tree-nodes", str(nodes), "--always-speculate"]
    for nodes in NODES:
        variants[f"{nodes} nodes, controller"] = [*draft, "--tree-nodes", str(nodes)]
    passes = dict.fromkeys(variants, 0)
    seconds = dict.fromkeys(variants, 0.0)
    repeated = 0.0
    prompts = held_out_prompts(model)
    for index, prompt in enumerate(prompts):
        texts = set()
        for name, speculation in variants.items():
            text, count, time = continue_prompt(model, prompt, SEED + index, speculation)
            texts.add(text)
            passes[name] += count
            seconds[name] += time
        if len(texts) != 1:
            sys.exit(f"measure_draft: texts differ: {prompt!r}, seed {SEED + index}")
        repeated += repeated_4_grams(text) / len(prompts)
    print(f"{len(prompts)} prompts, {TOKENS} tokens each, all texts equal, {100 * repeated:.1f} % repeated 4-grams of words")
    for name in variants:
        print(f"{name:22} {len(prompts) * TOKENS / passes[name]:5.2f} tokens per pass "
              f"{seconds['plain'] / seconds[name]:5.2f}x plain")


if __name__ == "__main__":
    main()
