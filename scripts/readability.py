#!/usr/bin/env python3
"""Readability of sampled text: log-likelihood under a larger model, and repeated 4-grams.

    scripts/readability.py PROGRAM JUDGE MODEL... [--text FILE] [--samples 100] [--tokens 128]

Samples texts from every MODEL (temperature 0.8, seeds 0, 1, ..., from twenty openings), and takes as many
pieces of FILE, the training text. Prints for each source the mean log-probability per token that JUDGE
(SmolLM2) gives to its texts, and the share of 4-grams of words that occurred before in the same text.
"""
import argparse
import concurrent.futures
import json
import os
import subprocess
import sys

OPENINGS = ["Once upon a time", "The river", "Dear friend,", "To make bread,", "The main reason is",
            "In the morning", "She opened the door and", "There are three kinds of", "The city of",
            "When I was young,", "A good plan begins with", "The history of", "He said that",
            "Scientists have found", "The best way to learn", "On the other hand,", "Every year",
            "It is important to", "The old man", "First,"]


def run(command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def sampled(args, model):
    prompts = [word for opening in OPENINGS for word in ("-p", opening)]
    each = max(1, args.samples // len(OPENINGS))
    lines = run([args.program, "generate", "-m", model, *prompts, "-n", str(args.tokens), "--samples",
                 str(each), "--temperature", "0.8", "--json", *args.device]).splitlines()
    answers = [json.loads(line) for line in lines]
    return [OPENINGS[answer["prompt"]] + answer["text"] for answer in answers][:args.samples]


def pieces(args):
    with open(args.text, encoding="utf-8") as file:
        text = file.read()
    step = max(1, len(text) // args.samples)
    size = args.tokens * 4
    starts = [text.find(" ", i * step) + 1 for i in range(args.samples)]
    return [text[start:start + size] for start in starts if start > 0]


def log_probability(args, text):
    result = json.loads(run([args.program, "score", "-m", args.judge, "--json", "--threads", "1", text]))
    return -result["loss"], result["scored"]


def repeated(text):
    words = text.lower().split()
    seen, again, grams = set(), 0, max(0, len(words) - 3)
    for i in range(grams):
        gram = tuple(words[i:i + 4])
        again += gram in seen
        seen.add(gram)
    return again, grams


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("judge")
    parser.add_argument("models", nargs="*")
    parser.add_argument("--text")
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--device", nargs=argparse.REMAINDER, default=[])
    args = parser.parse_args()
    sources = [(model, lambda model=model: sampled(args, model)) for model in args.models]
    if args.text:
        sources.append((args.text, lambda: pieces(args)))
    print(f"{'source':48} {'texts':>6} {'log p':>8} {'repeated 4-grams':>17}")
    for name, texts_of in sources:
        texts = [text for text in texts_of() if len(text.split()) > 1]
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            scores = list(pool.map(lambda text: log_probability(args, text), texts))
        total = sum(score for score, _ in scores) / sum(count for _, count in scores)
        again = sum(repeated(text)[0] for text in texts) / max(1, sum(repeated(text)[1] for text in texts))
        print(f"{name[-48:]:48} {len(texts):6} {total:8.3f} {again:17.4f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
