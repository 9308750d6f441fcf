#!/usr/bin/env python3
"""Measures drafts by n-grams and by suffixes on two texts and draws docs/speculative_curves.svg.

  scripts/plot_speculation.py [NAME=MODEL...]    (default: the built-in model)

Runs `touchstone generate` (build/release, or TOUCHSTONE_PROGRAM) with every draft verified, prints what its
report says and draws it. Copy: a paragraph twice, then its first words, greedy, 200 tokens. Ordinary: a short
story, T 0.8, four seeds of 256 tokens each. Counts of passes: they do not depend on the machine.

Standard library only. The colors follow the reader's light or dark mode.
"""
import math
import os
import pathlib
import re
import subprocess
import sys

import svg

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = os.environ.get("TOUCHSTONE_PROGRAM", str(ROOT / "build/release/touchstone"))
PARAGRAPH = ("The lighthouse stands on a low rock two miles from the village. Every evening the keeper climbs the "
             "stairs, cleans the glass, fills the lamp and lights it before the sun has gone. Ships that pass in the "
             "night count the seconds between its flashes and know where they are. In the morning he writes the "
             "weather into a book, sleeps until noon and mends what the wind has broken.")
TEXTS = {
    "copy": [f"{PARAGRAPH}\n\n{PARAGRAPH}\n\nThe lighthouse stands on", "-n", "200"],
    "ordinary": ["Write a short story about a lighthouse keeper and a storm.", "-n", "256", "--samples", "4",
                 "--temperature", "0.8", "--seed", "1"],
}
SOURCES = ("suffix", "ngram")
NODES = (1, 2, 4, 8, 16, 32)
DEPTH_NODES = 16  # of the curves by depth
DEPTHS = 12       # at most, drawn

WIDTH, PANEL_HEIGHT, TOP = 900, 300, 84
LIGHT = """\
  .line { fill: none; stroke-width: 2; stroke-linejoin: round; }
  .suffix { --c: #2a78d6; } .ngram { --c: #b87700; }
  .line { stroke: var(--c); } .dot { fill: var(--c); } .ordinary.line { stroke-dasharray: 6 4; }"""
DARK = """\
    .grid { stroke: #2e2f31; } .axis { stroke: #6b6b66; }
    .suffix { --c: #6aa9f4; } .ngram { --c: #e9a83a; }"""


def measure(model, text, source, nodes):
    """(tokens per pass, acceptance by depth) as the program reports them."""
    prompt, *controls = TEXTS[text]
    command = [PROGRAM, "generate", "-p", prompt, *controls, "--ignore-eos", "--json", "--always-speculate",
               "--speculate", source, "--tree-nodes", str(nodes)] + (["-m", model] if model else [])
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(r"speculation: ([\d.]+) tokens per pass .*accepted by depth ([-\d. ]+);", run.stderr)
    if run.returncode != 0 or not found:
        sys.exit(f"plot_speculation: {' '.join(command)}: {run.stderr}")
    return float(found[1]), [float(word) for word in found[2].split() if word != "-"]


def draw_panel(box, title, x_label, x_ticks, y_ticks, curves):
    """A panel in box = (left, right, top, bottom); ticks are {place in 0..1: label}; curves {(text, source): points}."""
    left, right, top, bottom = box
    out = [svg.text(left, top - 12, title, "panel")]
    for place, label in y_ticks.items():
        y = bottom - place * (bottom - top)
        out.append(svg.rule("axis" if place == 0 else "grid", left, right, y))
        out.append(svg.text(left - 8, y + 4, label, anchor="end"))
    for place, label in x_ticks.items():
        out.append(svg.text(left + place * (right - left), bottom + 18, label, anchor="middle"))
    out.append(svg.text((left + right) / 2, bottom + 36, x_label, anchor="middle"))
    for (text, source), points in curves.items():
        places = [(left + x * (right - left), bottom - y * (bottom - top)) for x, y in points]
        out += svg.curve(places, f"{source} {text}", source, 3)
    return out


def draw_model(name, results, top):
    bottom = top + PANEL_HEIGHT - 90
    highest = math.ceil(math.log2(max(rate for rates in results.values() for rate, _ in rates.values())))
    wide = math.log2(NODES[-1])
    passes = {key: [(math.log2(nodes) / wide, math.log2(rate) / highest) for nodes, (rate, _) in rates.items()]
              for key, rates in results.items()}
    out = draw_panel((64, 410, top, bottom), f"{name}: tokens per pass", "nodes of a draft, at most",
                     {math.log2(n) / wide: str(n) for n in NODES}, {i / highest: str(2 ** i) for i in range(highest + 1)},
                     passes)
    depths = {key: [(d / (DEPTHS - 1), rate) for d, rate in enumerate(rates[DEPTH_NODES][1][:DEPTHS])]
              for key, rates in results.items()}
    return out + draw_panel((506, 852, top, bottom), f"acceptance by depth, {DEPTH_NODES} nodes",
                            "depth of a node whose parent was accepted",
                            {d / (DEPTHS - 1): str(d + 1) for d in range(DEPTHS)},
                            {i / 4: f"{25 * i} %" for i in range(5)}, depths)


def draw_legend():
    out, x = [], 64
    for text in TEXTS:
        for source in SOURCES:
            out.append(f'<polyline class="line {source} {text}" points="{x},48 {x + 34},48"/>')
            out.append(svg.text(x + 42, 52, f"{source}, {text} text"))
            x += 190
    return out


def main():
    models = dict(argument.split("=", 1) for argument in sys.argv[1:]) or {"built-in": ""}
    out = [svg.text(24, 28, "Drafts without a trained model, every one verified", "title"), *draw_legend()]
    for index, (name, model) in enumerate(models.items()):
        results = {}
        for text in TEXTS:
            for source in SOURCES:
                results[text, source] = {nodes: measure(model, text, source, nodes) for nodes in NODES}
                rates = " ".join(f"{rate:.2f}" for rate, _ in results[text, source].values())
                by_depth = " ".join(f"{rate:.2f}" for rate in results[text, source][DEPTH_NODES][1])
                print(f"{name} {text} {source}: {rates}; by depth {by_depth}", flush=True)
        out += draw_model(name, results, TOP + 24 + PANEL_HEIGHT * index)
    page = svg.page(WIDTH, TOP + PANEL_HEIGHT * len(models),
                    "Tokens per pass over the nodes of a draft, and acceptance by depth", LIGHT, DARK, out)
    (ROOT / "docs/speculative_curves.svg").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
