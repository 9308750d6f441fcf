#!/usr/bin/env python3
"""Writes src/io/tokenizer/text/unicode_data.cc and unicode_differences.cc: what PyPI `tokenizers` thinks of
every character, asked character by character.

  build/peers/bin/python scripts/make_unicode_data.py

Needs the package and Perl, which knows the age of characters.
"""
import pathlib
import subprocess
import unicodedata

from tokenizers import Regex, normalizers, pre_tokenizers

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "src/io/tokenizer/text"
NAMES = ("Cn Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Cs Co").split()
CODES = [c for c in range(0x110000) if not 0xd800 <= c <= 0xdfff]
CHUNK = 4096


def chunks():
    for at in range(0, len(CODES), CHUNK):
        yield CODES[at:at + CHUNK]


def matched(pre_tokenizer):
    """The characters that are left when everything else is removed."""
    found = set()
    for codes in chunks():
        for _, (begin, end) in pre_tokenizer.pre_tokenize_str("".join(map(chr, codes))):
            found.update(codes[begin:end])
    return found


def isolated(pre_tokenizer):
    """The characters that stand alone between letters."""
    found = set()
    for codes in chunks():
        text = "a" + "a".join(map(chr, codes)) + "a"
        for _, (begin, end) in pre_tokenizer.pre_tokenize_str(text):
            if end - begin == 1 and begin % 2 == 1:
                found.add(codes[begin // 2])
    return found


def word_characters():
    found = set()
    for codes in chunks():
        text = " ".join(f"a{chr(c)}a" for c in codes)
        for _, (begin, end) in pre_tokenizers.Whitespace().pre_tokenize_str(text):
            if end - begin == 3 and begin % 4 == 0:
                found.add(codes[begin // 4])
    return found


def removed(normalizer, before="a", after=""):
    return {c for c in CODES if normalizer.normalize_str(before + chr(c) + after) == before + after}


def categories():
    table = ["Cn"] * 0x110000
    for name in NAMES:
        if name not in ("Cn", "Cs"):
            for code in matched(pre_tokenizers.Split(Regex(rf"\p{{{name}}}+"), "removed", invert=True)):
                table[code] = name
    for code in range(0xd800, 0xe000):
        table[code] = "Cs"
    return table


def ranges(codes):
    out = []
    for code in sorted(codes):
        if out and out[-1][1] == code - 1:
            out[-1][1] = code
        else:
            out.append([code, code])
    return out


def lower_runs():
    runs = []
    for code in CODES:
        lower = normalizers.Lowercase().normalize_str(chr(code))
        if lower == chr(code) or len(lower) > 1:  # U+0130 is the one with two
            continue
        delta = ord(lower) - code
        if runs:
            _, last, step, same = runs[-1]
            gap = code - last
            if same == delta and (gap == step or (step == 0 and gap in (1, 2))):
                runs[-1][1:3] = [code, gap]
                continue
        runs.append([code, code, 0, delta])
    return runs


def assigned_in_unicode_9():
    script = r'for (0..0x10FFFF) { next if $_ >= 0xD800 && $_ <= 0xDFFF; print "$_\n" if chr =~ /\p{Present_In: 9.0}/; }'
    return {int(c) for c in subprocess.run(["perl", "-e", script], check=True, capture_output=True,
                                           text=True).stdout.split()}


def array(name, kind, items):
    lines, line = [], "   "
    for item in items:
        if len(line) + 1 + len(item) > 99:
            lines.append(line)
            line = "   "
        line += " " + item
    return "\n".join([f"const {kind} {name}[] = {{", *lines, line, "};",
                      f"const std::size_t {name}Size = std::size({name});", "", ""])


def range_array(name, codes):
    return array(name, "CodeRange", [f"{{0x{a:x},0x{b:x}}}," for a, b in ranges(codes)])


def write(name, comment, body):
    (FOLDER / name).write_text(
        f"{comment}// scripts/make_unicode_data.py writes this file.\n"
        '#include "io/tokenizer/text/unicode_data.h"\n\nnamespace touchstone::inline v0::io {\n\n'
        f"// clang-format off\n{body}// clang-format on\n\n}}  // namespace touchstone::inline v0::io\n")


def main():
    table = categories()

    def of(*names):
        return {c for c in range(0x110000) if table[c] in names}
    letters, marks = of("Lu", "Ll", "Lt", "Lm", "Lo"), of("Mn", "Mc", "Me")
    punctuation = of("Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po")
    starts = [c for c in range(0x110000) if c == 0 or table[c] != table[c - 1]]
    write("unicode_data.cc",
          "// Unicode as the reference tokenizers know it, so that ids do not depend on the versions of the\n"
          "// libraries on this machine: general categories of Unicode 16.0 (Oniguruma 6.9.10).\n",
          array("kCategoryRuns", "std::uint32_t",
                [f"0x{c << 5 | NAMES.index(table[c]):x}," for c in starts]))
    bert = normalizers.BertNormalizer
    new = {c for c in CODES if table[c] != "Cn" and unicodedata.category(chr(c)) == "Cn"}
    changes = {c for c in CODES if unicodedata.decomposition(chr(c)) or unicodedata.combining(chr(c))}
    old = assigned_in_unicode_9()
    body = (
        range_array("kWordDiffers", word_characters() ^ (letters | marks | of("Nd", "Nl", "Pc")))
        + range_array("kNumericDiffers", isolated(pre_tokenizers.Digits(True)) ^ of("Nd", "Nl", "No"))
        + range_array("kPunctuationDiffers",
                      {c for c in isolated(pre_tokenizers.Punctuation("isolated")) ^ punctuation if c > 127})
        + range_array("kNonspacingDiffers", removed(bert(False, False, True, False)) ^ of("Mn"))
        + range_array("kCombiningDiffers", removed(normalizers.StripAccents()) ^ marks)
        + range_array("kControlDiffers",
                      removed(bert(True, False, False, False), "a", "a") ^ of("Cc", "Cf", "Co"))
        + range_array("kNewInUnicode16", new)
        + range_array("kNotNormalized", new | {c for c in CODES if c not in old and (c in changes or c in marks)})
        + array("kLowerRuns", "LowerRun",
                [f"{{0x{a:x},0x{b:x},{max(step, 1)},{delta}}}," for a, b, step, delta in lower_runs()]))
    write("unicode_differences.cc",
          "// Where the reference tokenizers' ideas of Unicode differ from the categories of unicode_data.cc.\n", body)


if __name__ == "__main__":
    if unicodedata.unidata_version != "14.0.0":
        raise SystemExit("needs Python 3.11, whose Unicode is that of PCRE2 10.42")
    main()
