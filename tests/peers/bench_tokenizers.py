"""Encoding speed of `touchstone tokenize` and of PyPI `tokenizers`, one thread each, in CPU seconds.

  build/peers/bin/python tests/peers/bench_tokenizers.py TEXT [megabytes]

Takes paragraphs of TEXT again and again up to the size (10). Names as in tokenizers_peer.py; the two take
turns. The package gets the paragraphs as a batch without parallelism, the faster of encode_batch and
encode_batch_fast counts.
"""
import json
import os
import pathlib
import subprocess
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
import tokenizers_peer as peer  # noqa: E402: reads the environment
from tokenizers import Tokenizer  # noqa: E402


def ours(model, path, rounds=3):
    return json.loads(subprocess.run(
        [peer.PROGRAM, "tokenize", "-m", model, "--bench", path, "--rounds", str(rounds), "--json"],
        check=True, capture_output=True).stdout)


def theirs(tokenizer, paragraphs):
    times = []
    for name in ("encode_batch", "encode_batch_fast"):
        start = time.process_time()
        getattr(tokenizer, name)(paragraphs)
        times.append(time.process_time() - start)
    return min(times)


def measure(model, text, paragraphs, rounds=3):
    """CPU seconds, turn by turn: ours with warm caches, ours the first time, theirs; the best of each."""
    tokenizer = Tokenizer.from_file(str(model))
    turns = [(ours(model, text), theirs(tokenizer, paragraphs)) for _ in range(rounds)]
    return (min(mine["median_cpu_seconds"] for mine, _ in turns),
            min(mine["first_cpu_seconds"] for mine, _ in turns), min(their for _, their in turns))


def main():
    size = int(float(sys.argv[2] if len(sys.argv) > 2 else 10) * 1e6)
    source = [p for p in pathlib.Path(sys.argv[1]).read_text().split("\n") if p.strip()]
    paragraphs, total = [], 0
    while total < size:
        for paragraph in source:
            paragraphs.append(paragraph + "\n")
            total += len(paragraphs[-1].encode())
            if total >= size:
                break
    folder = peer.CACHE.parent / "tokenizers"
    folder.mkdir(parents=True, exist_ok=True)
    text = folder / "bench.txt"
    text.write_text("".join(paragraphs))
    long_word = folder / "bench_word.txt"
    long_word.write_text("a" * (1 << 20))
    names = sys.argv[3:] or ["gpt-2", "llama-3", "qwen2", "starcoder", "llama-2", "bert", "deepseek-coder"]
    print("| vocabulary | ours, MB/s | first time | tokenizers, MB/s | ratio | the first time | 1 MB of one letter, s |")
    print("|---|---|---|---|---|---|---|")
    for name, tokenizer, _ in peer.real_tokenizers(names):
        model = folder / "bench.json"
        tokenizer.save(str(model))
        warm, first, package = measure(model, text, paragraphs)
        word = ours(model, long_word, 1)["first_cpu_seconds"]
        print(f"| {name} | {total / warm / 1e6:.1f} | {total / first / 1e6:.1f} | {total / package / 1e6:.2f} "
              f"| {package / warm:.1f} | {package / first:.1f} | {word:.3f} |", flush=True)


if __name__ == "__main__":
    main()
