#!/usr/bin/env python3
"""Draws docs/design/variance_stability.svg from the output of the example of the same name.

  build/release/examples/variance_stability --csv | scripts/plot_variance_stability.py

Standard library only. The colors follow the reader's light or dark mode.
"""
import csv
import math
import pathlib
import sys

import svg

WIDTH, HEIGHT = 900, 470
TOP, BOTTOM = 96, 410
Y_MIN, Y_MAX = -18.0, 13.0  # powers of ten
PANELS = [
    # type, left, right, largest power on the x axis, rounding unit, words for it
    ("float32", 84, 316, 7, 2.0**-24, "rounding unit 6e-8"),
    ("float64", 440, 806, 14, 2.0**-53, "rounding unit 1e-16"),
]
METHODS = ["naive", "two-pass", "Welford", "re-centered"]

LIGHT = """\
  .unit { stroke: #a3a29c; stroke-width: 1; stroke-dasharray: 3 4; }
  .line { fill: none; stroke-width: 2; stroke-linejoin: round; } .label { font-weight: 600; }
  .naive { --c: #d03b3b; } .two-pass { --c: #b87700; } .welford { --c: #2a78d6; }
  .re-centered { --c: #0a8f5b; }
  .line { stroke: var(--c); } .dot { fill: var(--c); } .label { fill: var(--c); }
  .re-centered.line { stroke-width: 3; }"""
DARK = """\
    .grid { stroke: #2e2f31; } .axis, .unit { stroke: #6b6b66; }
    .naive { --c: #ff6b60; } .two-pass { --c: #e9a83a; } .welford { --c: #6aa9f4; }
    .re-centered { --c: #35c98c; }
    .label { fill: var(--c); }"""


def y_of(power):
    return BOTTOM - (power - Y_MIN) / (Y_MAX - Y_MIN) * (BOTTOM - TOP)


def superscript(power):
    return str(power).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def draw_axes(left, right, x_of, last, unit, unit_words):
    out = []
    for power in range(-16, 13, 4):
        y = y_of(power)
        words = "1" if power == 0 else "10" + superscript(power)
        out.append(svg.rule("axis" if power == 0 else "grid", left, right, y))
        out.append(svg.text(left - 10, y + 4, words, anchor="end"))
    for power in range(4, last + 1, 1 if last < 10 else 2):
        out.append(svg.text(x_of(power), BOTTOM + 20, "10" + superscript(power), anchor="middle"))
    out.append(svg.text((left + right) / 2, BOTTOM + 42, "offset / σ", anchor="middle"))
    y = y_of(math.log10(unit))
    out.append(svg.rule("unit", left, right, y))
    # Where the curves leave room: below the line on the left, or above it on the right.
    if unit > 1e-10:
        out.append(svg.text(left + 2, y + 17, unit_words))
    else:
        out.append(svg.text(right, y - 7, unit_words, anchor="end"))
        out.append(svg.text(left + 2, y_of(0) - 6, "1: no digit is right"))
    return out


def draw_panel(rows, panel):
    kind, left, right, last, unit, unit_words = panel

    def x_of(power):
        return left + (power - 4 + 0.25) / (last - 4 + 0.5) * (right - left)

    out = [svg.text(left, TOP - 14, kind, "panel")]
    out += draw_axes(left, right, x_of, last, unit, unit_words)
    for method in METHODS:
        css = method.lower()
        points = []
        for row in rows:
            if row["type"] == kind and row["method"] == method:
                # An error of exactly zero has no logarithm; it is drawn at the bottom.
                error = max(float(row["relative_error"]), 10.0**Y_MIN)
                points.append((x_of(math.log10(float(row["offset"]))), y_of(math.log10(error))))
        out += svg.curve(points, css, css, 3.5)
        x, y = points[-1]
        out.append(svg.text(x + 12, y + 4, method, f"label {css}"))
    return out


def main():
    rows = list(csv.DictReader(sys.stdin))
    if not rows:
        sys.exit("plot_variance_stability: expected the CSV of variance_stability --csv on stdin")
    out = [svg.text(24, 34, "A variance far from zero: four formulas on the same inputs", "title"),
           svg.text(24, 56, "Relative error of the variance of 4096 values, offset + noise of σ = 1. "
                            "Errors of exactly zero are drawn at the bottom.")]
    for panel in PANELS:
        out += draw_panel(rows, panel)
    page = svg.page(WIDTH, HEIGHT, "Relative error of four variance formulas against the offset of the data", LIGHT, DARK,
                    out)
    target = pathlib.Path(__file__).resolve().parent.parent / "docs/design/variance_stability.svg"
    target.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
