#!/usr/bin/env python3
"""Checks the layout of the repository: `make lint` and .ci/run call it.

- No include goes against the order of the components (ORDER below, drawn in
  docs/design/layout.md). Tests are exempt: they may look into anything.
- No source file is longer than 600 lines, no directory holds more than 30 files (collections of
  data apart).
- Every directory of the library is in ORDER; every operator has a tuning header.
- The library (src/, include/) does not read the environment.
- Public headers have at most 100 columns, comments included, which clang-format leaves alone.

Prints one line per finding and exits 1 when there is any.
"""
import pathlib
import re
import subprocess
import sys

MAX_LINES = 600
MAX_FILES = 30
MAX_COLUMNS = 100
# Directories that are collections of inputs, not of sources to read one after another.
COLLECTIONS = ("src/model/testdata", "tests/judge/corpus", "contenders", "docs/data", "data", "src/io/testdata")

# Component -> the components it may include, itself apart. A path belongs to the longest prefix.
PUBLIC = {"include/touchstone/core", "include/touchstone/cache", "include/touchstone/ops",
          "include/touchstone"}
FILES = {"include/touchstone/io", "include/touchstone/core"}
BASE = {"src/core", "src/cpu", "src/cuda"} | PUBLIC
OPERATORS = BASE | {"src/cache"}
OUTSIDE = PUBLIC | FILES | {"include/touchstone/plan", "include/touchstone/decode", "include/touchstone/model", "include/touchstone/train", "src/json", "src/report", "src/machine", "src/text"}
ORDER = {
    "include/touchstone/core": {"include/touchstone"},  # version.h
    "include/touchstone/cache": {"include/touchstone/core"},
    "include/touchstone/ops": {"include/touchstone/core", "include/touchstone/cache"},
    "include/touchstone/io": {"include/touchstone/core"},
    "include/touchstone/plan": {"include/touchstone/core", "include/touchstone/cache"},
    "include/touchstone/decode": {"include/touchstone/core", "include/touchstone/io"},
    "include/touchstone/model": PUBLIC | FILES | {"include/touchstone/decode"},
    "include/touchstone/train": PUBLIC | FILES | {"include/touchstone/decode", "include/touchstone/model"},
    "include/touchstone": PUBLIC | FILES | {"include/touchstone/plan", "include/touchstone/decode",
                                            "include/touchstone/model", "include/touchstone/train"},
    "src/core": PUBLIC,
    "src/cpu": PUBLIC | {"src/core"},
    "src/cuda": PUBLIC | {"src/core"},
    "src/cache": BASE,
    # Model files, tokenizers, chat templates: no operator, no cache.
    "src/io": FILES | {"src/core", "src/cpu", "include/touchstone"},
    # Requests, scheduling, sampling: of a model they know the Scorer alone.
    "src/decode": BASE | FILES | {"include/touchstone/decode"},
    "src/decode/grammar": FILES | {"include/touchstone/decode", "src/io"},  # its reader of JSON
    "src/model": BASE | FILES | {"include/touchstone/decode", "include/touchstone/model", "src/decode"},
    # Above the model: it samples through decode, writes through io, starts from files through model.
    "src/train": BASE | FILES | {"include/touchstone/decode", "include/touchstone/model",
                                 "include/touchstone/train", "src/model", "src/io"},
    "src/ops/norm": BASE,
    "src/ops/selection": BASE,
    "src/ops/softmax_topk": BASE | {"src/ops/selection"},
    "src/ops/sample": BASE | {"src/ops/selection"},
    "src/ops/activation": BASE,
    "src/ops/linear": BASE | {"src/ops/activation"},
    "src/ops/embedding": BASE | {"src/ops/linear"},
    "src/ops/cross_entropy": BASE | {"src/ops/linear"},
    "src/ops/rope": BASE,
    "src/ops/ternary_project": BASE,
    "src/ops/attention_common": BASE,
    "src/ops/attention_dense": BASE | {"src/ops/attention_common"},
    "src/ops/attention_paged": OPERATORS | {"src/ops/attention_common"},
    "src/ops/kv_append": OPERATORS,
    "src/ops/rope_append": OPERATORS | {"src/ops/kv_append", "src/ops/rope"},
    # Stubs of the functions that .cu files define.
    "src/no_cuda": OPERATORS | {"src/ops", "src/decode", "src/train", "include/touchstone/decode"},
    "src/plan": OUTSIDE | {"src/core"},
    "src/c_api": PUBLIC | FILES | {"include/touchstone/decode", "include/touchstone/model"},
    "src/text": set(),
    "src/json": set(),
    "src/report": {"src/json", "src/text"},
    "src/machine": BASE,
    "oracle": PUBLIC | {"include/touchstone/decode"},
    "cases": PUBLIC,
    # Storage formats are those of the library.
    "spec": OUTSIDE | {"oracle", "cases", "src/core", "src/cpu", "src/cuda", "src/cache"},
    "bench": OUTSIDE | {"oracle", "cases", "spec", "src/core", "src/cpu", "src/cuda", "src/cache", "src/decode",
              "include/touchstone/decode"},
    # The judge, in the order of judge/CMakeLists.txt.
    "judge/task": OUTSIDE,
    "judge/task/tasks": OUTSIDE | {"oracle", "spec", "judge/task"},
    "judge/sandbox": OUTSIDE,
    "judge/contender": OUTSIDE | {"judge/task", "judge/sandbox"},
    "judge/run": OUTSIDE | {"judge/task", "judge/sandbox", "judge/contender"},
    "judge/report": OUTSIDE | {"judge/task", "judge/sandbox", "judge/contender"},
    "judge/measure": OUTSIDE | {"judge/task", "judge/sandbox", "judge/contender", "judge/run",
                                "judge/report"},
    "judge": OUTSIDE | {"judge/task", "judge/sandbox", "judge/contender", "judge/run", "judge/report",
                        "judge/measure"},
    "judge/selftest": OUTSIDE | {"judge"},
    "cli": OUTSIDE | {"oracle", "cases", "spec", "bench", "judge", "src/core", "src/plan"},
    "examples": PUBLIC | FILES | {"include/touchstone/plan", "include/touchstone/decode",
                                  "include/touchstone/model", "include/touchstone/train"},
    "contenders": PUBLIC,
}
SOURCE = re.compile(r"\.(h|cc|cu|cuh|c)$")
ENVIRONMENT = re.compile(r"\b(secure_)?getenv\b|\benviron\b")
INCLUDE = re.compile(r'^\s*#\s*include\s+["<]([^">]+)[">]', re.M)


def is_test(path):
    return path.startswith("tests/") or re.search(r"_test(_|\.)|test_support|test_", path)


def component_of(path):
    best = max((c for c in ORDER if path.startswith(c + "/")), key=len, default=None)
    # All operators at once, for the stubs.
    return best


def resolve(source, name, files):
    for base in (str(pathlib.PurePosixPath(source).parent), "include", "src", "."):
        path = str(pathlib.PurePosixPath(base) / name) if base != "." else name
        if path in files:
            return path
    return None


def allowed(source, target):
    if source is None or target is None or source == target:
        return True
    return target in ORDER[source] or any(target.startswith(a + "/") for a in ORDER[source]
                                          if a in ("src/ops", "judge"))


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    listed = subprocess.run(["git", "-C", root, "ls-files", "--cached", "--others",
                             "--exclude-standard"], check=True, capture_output=True, text=True)
    files = {f for f in listed.stdout.splitlines() if (root / f).is_file()}
    findings = []
    counts = {}
    for path in sorted(files):
        counts.setdefault(str(pathlib.PurePosixPath(path).parent), []).append(path)
        collected = path.startswith(tuple(c + "/" for c in COLLECTIONS))
        if not SOURCE.search(path) and not path.endswith((".py", ".sh", ".cmake")):
            continue
        text = (root / path).read_text(errors="replace")
        lines = text.count("\n")
        if lines > MAX_LINES and not collected:
            findings.append(f"{path}: {lines} lines > {MAX_LINES}")
        if is_test(path) or not SOURCE.search(path):
            continue
        if path.startswith("include/"):
            findings += [f"{path}:{number}: {len(line)} columns > {MAX_COLUMNS}"
                         for number, line in enumerate(text.splitlines(), 1)
                         if len(line) > MAX_COLUMNS]
        if path.startswith(("src/", "include/")) and ENVIRONMENT.search(text):
            findings.append(f"{path}: reads the environment")
        here = component_of(path)
        if here is None and path.startswith(("src/", "include/")):
            findings.append(f"{path}: its directory is not in ORDER")
        for name in INCLUDE.findall(text):
            target = resolve(path, name, files)
            there = component_of(target) if target else None
            if not allowed(here, there):
                findings.append(f"{path}: {here} may not include {name} ({there})")
    for directory in sorted(d for d in counts if re.fullmatch(r"src/ops/[^/]+", d)):
        if f"{directory}/CMakeLists.txt" in files and not any(
                path.endswith("_tuning.h") for path in counts[directory]):
            findings.append(f"{directory}: has no tuning header")
    for directory, held in sorted(counts.items()):
        if len(held) > MAX_FILES and not (directory + "/").startswith(
                tuple(c + "/" for c in COLLECTIONS)):
            findings.append(f"{directory}: {len(held)} files > {MAX_FILES}")
    for finding in findings:
        print(finding)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
