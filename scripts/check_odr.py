#!/usr/bin/env python3
"""Fails when two files define a type of the same name in the same namespace.

Such a pair in one program breaks the one-definition rule: the linker keeps one of the two inline
members and both classes run it. `make odr` finds the same with a link-time optimized build of
everything, in minutes; this script needs a second.

Not looked at: unnamed namespaces, whose names are private to a file, and sources that are programs
or libraries of their own.
"""
import os
import re
import subprocess
import sys

SEPARATE = ("contenders/", "examples/", "tests/consumer/", "tests/judge/corpus/", "oracle/torch")
SUFFIXES = (".h", ".cc", ".cu", ".cuh")
LITERAL = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'|\\\n', re.S)
TOKEN = re.compile(
    r"\bnamespace(?P<inline>\s+)?(?P<space>[\w:\s]*?)\{"
    r"|\b(?:enum\s+)?(?:struct|class|enum|union)\b(?P<head>[^;{}()=]*)\{"
    r"|(?P<open>\{)|(?P<close>\})", re.S)


def blank(match):
    """Keeps line numbers."""
    return "\n" * match.group(0).count("\n") or " "


def preprocessed(text):
    text = LITERAL.sub(blank, text)
    text = re.sub(r"\balignas\s*\([^()]*(?:\([^()]*\))?[^()]*\)|\[\[[^\]]*\]\]", blank, text)
    return re.sub(r"^[ \t]*#[^\n]*", "", text, flags=re.M)


def type_name(head):
    """The name in `Name final : Base`, or None where there is none to clash."""
    head = re.sub(r"\bfinal\b|__\w+__", " ", head)
    head = re.sub(r"(?<!:):(?!:).*", "", head, flags=re.S)
    if "<" in head or "::" in head:  # specializations, members defined elsewhere
        return None
    words = re.findall(r"\w+", head)
    return words[-1] if words else None


def types_of(text):
    """(qualified name, offset) of every type that is defined at namespace scope."""
    stack = []  # a namespace's name, None for every other brace
    for match in TOKEN.finditer(text):
        if match.group("close"):
            if stack:
                stack.pop()
        elif match.group("open"):
            stack.append(None)
        elif match.group("space") is not None:
            stack.append("::".join(match.group("space").split()) or "(unnamed)")
        else:
            name = type_name(match.group("head"))
            if name and None not in stack and "(unnamed)" not in stack:
                yield "::".join([*stack, name]), match.start()
            stack.append(None)


def main():
    root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
    os.chdir(root)
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], check=True,
                            capture_output=True, text=True).stdout.split("\n")
    seen = {}
    for path in listed:
        if not path.endswith(SUFFIXES) or path.startswith(SEPARATE) or "/adapter/" in path:
            continue
        if not os.path.exists(path):
            continue
        with open(path, encoding="utf-8") as file:
            text = preprocessed(file.read())
        for name, offset in types_of(text):
            seen.setdefault(name, {}).setdefault(path, text.count("\n", 0, offset) + 1)
    failures = 0
    for name, places in sorted(seen.items()):
        if len(places) < 2:
            continue
        failures += 1
        where = ", ".join(f"{path}:{line}" for path, line in sorted(places.items()))
        print(f"check_odr: {name} is defined in {where}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
