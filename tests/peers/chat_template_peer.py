#!/usr/bin/env python3
"""Chat templates: Touchstone's output must be that of jinja2, byte for byte.

The 70 templates of the source package llama-cpp-python, each rendered for the 20 conversations of
chat_conversations.py. Where jinja2 raises, Touchstone must raise. A template may be refused when it
is parsed; these are listed with the place. At most 5 may be.

    chat_template_peer.py [FOLDER]      instead of the package: every *.jinja of a folder
"""
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile

from chat_conversations import CONVERSATIONS
from chat_template_reference import ROOT, Touchstone, reference

PACKAGE = "llama-cpp-python==0.3.36"
TEMPLATES = "/vendor/llama.cpp/models/templates/"
COUNT = 70
MAX_REFUSED = 5
CACHE = pathlib.Path(os.environ.get("TOUCHSTONE_PEER_CACHE", ROOT / "build/peers/packages"))


def download(cache):
    """The templates of the package, once. Nothing of it is built."""
    folder = cache / "templates"
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        if not list(cache.glob("llama_cpp_python-*.tar.gz")):
            print(f"downloading {PACKAGE} (77 MB)", file=sys.stderr)
            subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
                            "--disable-pip-version-check", "--no-binary", "llama-cpp-python",
                            "--dest", cache, PACKAGE], check=True)
        # Under its name when it is complete: a run that was ended leaves nothing that looks so.
        part = pathlib.Path(tempfile.mkdtemp(dir=cache, prefix="templates."))
        with tarfile.open(next(cache.glob("llama_cpp_python-*.tar.gz"))) as packed:
            for member in packed:
                if TEMPLATES in member.name and member.name.endswith(".jinja"):
                    name = pathlib.PurePosixPath(member.name).name
                    (part / name).write_bytes(packed.extractfile(member).read())
        part.rename(folder)
    files = sorted(folder.glob("*.jinja"))
    assert len(files) == COUNT, f"{len(files)} templates in {folder}, expected {COUNT}"
    return files


def show(text, other):
    """The neighborhood of the first difference."""
    at = next((i for i, (a, b) in enumerate(zip(text, other)) if a != b), min(len(text), len(other)))
    return repr(text[max(0, at - 40):at + 60])


def main():
    touchstone = Touchstone()
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else None
    files = sorted(folder.glob("*.jinja")) if folder else download(CACHE)
    equal = raised = different = 0
    refused = []
    for file in files:
        source = file.read_bytes().decode()
        handle, error = touchstone.parse(source)
        if handle is None:
            assert re.match(r"chat template:\d+:\d+: ", error), error
            refused.append((file.name, error))
            continue
        for name, context in CONVERSATIONS.items():
            expected, expected_error = reference(source, context)
            text, error = touchstone.render(handle, context)
            if expected is None and text is None:
                raised += 1
            elif expected is not None and text == expected:
                equal += 1
            else:
                different += 1
                print(f"{file.name}, {name}:")
                print("  jinja2:    ", expected_error or show(expected, text or ""))
                print("  touchstone:", error or show(text, expected or ""))
        touchstone.destroy(handle)
    for name, error in refused:
        print(f"refused: {name}: {error}")
    print(f"{len(files)} templates x {len(CONVERSATIONS)} conversations: {equal} equal, "
          f"{raised} raised by both, {different} different; {len(refused)} templates refused")
    return 0 if files and different == 0 and len(refused) <= MAX_REFUSED else 1


if __name__ == "__main__":
    sys.exit(main())
