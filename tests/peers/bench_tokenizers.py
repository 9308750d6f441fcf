"""Encoding speed of `touchstone tokenize` and of PyPI `tokenizers`, one thread each, in CPU seconds.

  build/peers/bin/python tests/peers/bench_tokenizers.py TEXT [megabytes]

Takes paragraphs of TEXT again and again up to the size (10). Names as in tokenizers_peer.py; the package
gets the paragraphs as a batch without parallelism, the faster of encode_batch and encode_batch_fast counts.
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


def theirs(tokenizer, paragraphs, rounds=3):
    best = {}
    for name in ("encode_batch", "encode_batch_fast"):
        times = []
        for _ in range(rounds):
            start = time.process_time()
            getattr(tokenizer, name)(paragraphs)
            times.append(time.process_time() - start)
        best[name] = min(times)
    return min(best.values()), best


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
    print("| vocabulary | ours, MB/s | first time | tokenizers, MB/s | ratio | 1 MB of one letter, s |")
    print("|---|---|---|---|---|---|")
    for name, tokenizer, _ in peer.real_tokenizers(names):
        model = folder / "bench.json"
        tokenizer.save(str(model))
        runs = [json.loads(subprocess.run(
            [peer.PROGRAM, "tokenize", "-m", model, "--bench", path, "--rounds", "9", "--json"],
            check=True, capture_output=True).stdout) for path in (text, long_word)]
        seconds, _ = theirs(Tokenizer.from_file(str(model)), paragraphs)
        ours = runs[0]["mb_per_cpu_second"]
        print(f"| {name} | {ours:.1f} | {total / runs[0]['first_cpu_seconds'] / 1e6:.1f} "
              f"| {total / seconds / 1e6:.2f} | {ours / (total / seconds / 1e6):.1f} "
              f"| {runs[1]['first_cpu_seconds']:.3f} |", flush=True)


if __name__ == "__main__":
    main()
