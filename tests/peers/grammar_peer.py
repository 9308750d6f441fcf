"""Texts under JSON Schemas, drawn from our masks, parsed by json and validated by PyPI `jsonschema`. Exits 1
when one is not valid.

  TOUCHSTONE_PEER_RUNS   texts altogether (1000)
"""
import datetime
import json
import os
import random
import sys

import jsonschema

from grammar_library import Touchstone, schemas, tokens


def draw(library, grammar, vocabulary, mine, rng):
    """A text, ended soon after 60 tokens."""
    state, end, written = library.state(grammar, mine), len(vocabulary) - 1, b""
    for step in range(2000):
        allowed = library.allowed(state, len(vocabulary))
        if not allowed:
            return None
        token = rng.choice(sorted(allowed))
        if step > 60:
            wanted = [end] + [ord(c) for c in rng.choice(['"]}', "ab", "ba", "0}"])]
            token = next((t for t in wanted if t in allowed), token)
        library.accept(state, token)
        if token == end:
            break
        written += vocabulary[token]
    else:
        return None
    library.c.ts_grammar_state_destroy(state)
    return written.decode()


def generated(library, vocabulary, mine, rng):
    runs, entries, bad = int(os.environ.get("TOUCHSTONE_PEER_RUNS", "1000")), schemas(), 0
    formats = jsonschema.FormatChecker(formats=("date", "uuid", "ipv4"))
    # The package checks these two by other rules, or not at all without further packages.
    formats.checks("date-time", ValueError)(datetime.datetime.fromisoformat)
    formats.checks("time", ValueError)(datetime.time.fromisoformat)
    for run in range(runs):
        entry = entries[run % len(entries)]
        grammar = library.grammar(json.dumps(entry["schema"]), run % 3)
        text = draw(library, grammar, vocabulary, mine, rng)
        library.c.ts_grammar_destroy(grammar)
        try:
            jsonschema.validate(json.loads(text), entry["schema"], cls=jsonschema.Draft202012Validator,
                                format_checker=formats)
        except (ValueError, TypeError, jsonschema.ValidationError) as error:
            bad += 1
            print(f"{entry['name']}: {text!r}: {str(error).splitlines()[0]}")
    print(f"JSON Schema              {runs} texts of {len(entries)} schemas, {bad} not valid")
    return bad


def main():
    library, vocabulary, rng = Touchstone(), tokens(), random.Random(2)
    mine = library.vocabulary(vocabulary, len(vocabulary) - 1)
    return 1 if generated(library, vocabulary, mine, rng) else 0


if __name__ == "__main__":
    sys.exit(main())
