#!/usr/bin/env python3
"""The golden file of the chat templates, src/io/chat_template/testdata/golden.json.

It holds small templates, the variables that all of them see, and what jinja2 makes of them: the text,
or null where it raises. To add a case, write its "template" into the file and run

    build/peers/bin/python tests/peers/chat_template_golden.py --write

Without --write the file is only compared with jinja2's results, which chat_template_golden_peer.py
does in `make peers-test`.
"""
import json
import sys

from chat_template_reference import ROOT, reference

FILE = ROOT / "src/io/chat_template/testdata/golden.json"


def main():
    golden = json.loads(FILE.read_text())
    stale = 0
    for case in golden["cases"]:
        output, _ = reference(case["template"], golden["context"])
        if "output" not in case or case["output"] != output:
            stale += 1
            print(f"{case['template']!r}\n  golden: {case.get('output')!r}\n  jinja2: {output!r}")
        case["output"] = output
    print(f"{len(golden['cases'])} golden templates, {stale} not as jinja2 renders them")
    if "--write" in sys.argv:
        FILE.write_text(json.dumps(golden, ensure_ascii=False, indent=1) + "\n")
        return 0
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
