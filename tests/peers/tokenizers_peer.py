"""Token ids against PyPI `tokenizers`.

Builds tokenizers from the real vocabularies that the source package of llama-cpp-python carries (GPT-2's
from that of openai-whisper, too), with the steps that the models' own tokenizer.json have, saves each as
tokenizer.json, and compares `touchstone tokenize` with the package on random, multilingual and nasty
strings and on every code point; then the pairs of text and ids in that package, read from the GGUF files
themselves; then the trainer. Exits 1 when anything differs.

  TOUCHSTONE_PEER_STRINGS   strings per vocabulary (100000)
  TOUCHSTONE_PEER_CACHE     where the packages are kept (build/peers/packages)
"""
import base64
import json
import os
import pathlib
import random
import re
import struct
import subprocess
import sys
import tarfile
import tempfile

import tokenizers
from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers,
                        processors, trainers)

PROGRAM = os.environ.get("TOUCHSTONE_PROGRAM", "build/release/touchstone")
CACHE = pathlib.Path(os.environ.get("TOUCHSTONE_PEER_CACHE", "build/peers/packages"))
STRINGS = int(os.environ.get("TOUCHSTONE_PEER_STRINGS", "100000"))
PACKAGES = {"llama_cpp_python": "llama-cpp-python==0.3.36", "openai_whisper": "openai-whisper==20250625"}
GOLDEN_FILES, GOLDEN_PAIRS = 15, 708  # of the first package
MARK = "\u2581"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")
QWEN35 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+"
          r"[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK_LETTERS = (
    r'\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-Ჺ'
    r'Ჽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝ'
    r'ℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀'
    r'-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+')
CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
GPT4O = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve"
         r"|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s"
         r"|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")


# ---- Packages and vocabularies -----------------------------------------------------------------

def unpacked(package):
    """The folder of a source package: downloaded once, only the files that are needed."""
    target = CACHE / package
    if target.exists():
        return target
    CACHE.mkdir(parents=True, exist_ok=True)
    found = sorted(CACHE.glob(package + "-*.tar.gz"))
    if not found:
        # The source of this package alone: what builds it may come as a wheel.
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
                        "--disable-pip-version-check", "--no-binary", PACKAGES[package].split("==")[0],
                        "-d", CACHE, PACKAGES[package]], check=True)
        found = sorted(CACHE.glob(package + "-*.tar.gz"))
    # Under its name when it is complete: a run that was ended leaves nothing that looks so.
    part = pathlib.Path(tempfile.mkdtemp(dir=CACHE, prefix=package + "."))
    with tarfile.open(found[0]) as archive:
        for member in archive:
            name = pathlib.PurePosixPath(member.name).name
            if member.isfile() and (name.startswith("ggml-vocab-") or name.endswith(".tiktoken")):
                (part / name).write_bytes(archive.extractfile(member).read())
    part.rename(target)
    return target


def metadata(path):
    """Keys and values of a GGUF file, as PyPI gguf reads them, which takes 20 times as long."""
    data, at = path.read_bytes(), 8

    def number(form):
        nonlocal at
        at += struct.calcsize("<" + form)
        return struct.unpack_from("<" + form, data, at - struct.calcsize("<" + form))[0]

    def text():
        nonlocal at
        size = number("Q")
        at += size
        return data[at - size:at].decode()

    def value(kind):
        nonlocal at
        if kind == 8:
            return text()
        if kind != 9:
            return number("BbHhIif?..Qqd"[kind])
        kind, count = number("I"), number("Q")
        if kind in (8, 9):
            return [value(kind) for _ in range(count)]
        form = f"<{count}" + "BbHhIif?..Qqd"[kind]
        at += struct.calcsize(form)
        return list(struct.unpack_from(form, data, at - struct.calcsize(form)))

    assert data[:8] == b"GGUF\3\0\0\0", path
    number("Q")  # tensors
    return {text(): value(number("I")) for _ in range(number("Q"))}


def vocabulary(path):
    values = metadata(path)
    return {key: values.get("tokenizer.ggml." + key)
            for key in ("model", "pre", "tokens", "scores", "token_type", "merges", "bos_token_id", "eos_token_id",
                        "unknown_token_id", "precompiled_charsmap")}


def add_tokens(tokenizer, v):
    types = v["token_type"] or []
    special = {2, 3}
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True)
                                  for t, k in zip(v["tokens"], types) if k in special])
    tokenizer.add_tokens([AddedToken(t, normalized=False)
                          for t, k in zip(v["tokens"], types) if k == 4])


def byte_level(v, steps, normalizer=None, ignore_merges=False):
    vocab = {t: i for i, t in enumerate(v["tokens"])}
    merges = [tuple(m.split(" ")) for m in v["merges"]]
    tokenizer = Tokenizer(models.BPE(vocab, merges, ignore_merges=ignore_merges))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps) if len(steps) > 1 else steps[0]
    tokenizer.decoder = decoders.ByteLevel()
    add_tokens(tokenizer, v)
    return tokenizer


def split(pattern):
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def bytes_only():
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def gpt2_words():
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def merges_of_scores(v):
    """As transformers makes merges of a SentencePiece model."""
    vocab = {t: i for i, t in enumerate(v["tokens"])}
    merges = []
    for token, score in zip(v["tokens"], v["scores"]):
        local = [(token[:i], token[i:], score) for i in range(1, len(token))
                 if token[:i] in vocab and token[i:] in vocab]
        merges += sorted(local, key=lambda m: (vocab[m[0]], vocab[m[1]]))
    merges.sort(key=lambda m: (m[2], len(m[0]), len(m[1])), reverse=True)
    return vocab, [m[:2] for m in merges]


def sentence_piece(v, prefix, vocab, merges):
    unknown = None if v["unknown_token_id"] is None else v["tokens"][v["unknown_token_id"]]
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    replace = normalizers.Replace(" ", MARK)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(MARK), replace]) if prefix else replace
    steps = [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(steps + ([decoders.Strip(" ", 1, 0)] if prefix else []))
    add_tokens(tokenizer, v)
    return tokenizer


def bert(v):
    def name(token):
        if token.startswith(MARK):
            return token[1:]
        return token if token.startswith("[") and token.endswith("]") else "##" + token
    v = dict(v, tokens=[name(t) for t in v["tokens"]])
    tokenizer = Tokenizer(models.WordPiece({t: i for i, t in enumerate(v["tokens"])}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    add_tokens(tokenizer, v)
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 102), ("[CLS]", 101))
    return tokenizer


def unigram(v):
    scores = list(zip(v["tokens"], (float(s) for s in v["scores"])))
    tokenizer = Tokenizer(models.Unigram(scores, v["unknown_token_id"], False))
    charsmap = bytes(int(b) & 255 for b in v["precompiled_charsmap"])
    tokenizer.normalizer = normalizers.Sequence([normalizers.Precompiled(charsmap)])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(),
                                                       pre_tokenizers.Metaspace()])
    tokenizer.decoder = decoders.Metaspace()
    add_tokens(tokenizer, v)
    return tokenizer


def whisper_gpt2(folder):
    ranks = {}
    for line in open(folder / "gpt2.tiktoken"):
        token, rank = line.split()
        ranks[base64.b64decode(token)] = int(rank)
    alphabet = byte_alphabet()
    text = {token: "".join(alphabet[b] for b in token) for token in ranks}

    def halves(token):
        parts = [bytes([b]) for b in token]
        while len(parts) > 2:
            pairs = [(ranks.get(a + b, 1 << 30), i) for i, (a, b) in enumerate(zip(parts, parts[1:]))
                     if a + b != token]
            rank, at = min(pairs)
            if rank == 1 << 30:
                return None
            parts[at:at + 2] = [parts[at] + parts[at + 1]]
        return parts
    merges = []
    for token in sorted(ranks, key=ranks.get):
        if len(token) > 1:
            a, b = halves(token)
            merges.append((text[a], text[b]))
    tokenizer = Tokenizer(models.BPE({text[t]: r for t, r in ranks.items()}, merges))
    tokenizer.pre_tokenizer = gpt2_words()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    return tokenizer


def byte_alphabet():
    shown = list(range(0x21, 0x7f)) + list(range(0xa1, 0xad)) + list(range(0xae, 0x100))
    table, extra = {b: chr(b) for b in shown}, 256
    for b in range(256):
        if b not in table:
            table[b] = chr(extra)
            extra += 1
    return table


def real_tokenizers(wanted):
    """Name, tokenizer, and whether decode(encode(s)) == s is promised, of the wanted names or all."""
    folder = unpacked("llama_cpp_python")
    digits = pre_tokenizers.Digits(individual_digits=True)
    nfc = normalizers.NFC()

    def read(name):
        return vocabulary(folder / f"ggml-vocab-{name}.gguf")

    def words(name, steps, *options):
        return lambda: byte_level(read(name), steps, *options)

    def scored(name):
        v = read(name)
        return sentence_piece(v, True, *merges_of_scores(v))

    def gemma():
        v = read("gemma-4")
        merges = [(m[:m.index(" ", 1)], m[m.index(" ", 1) + 1:]) for m in v["merges"]]
        return sentence_piece(v, False, {t: i for i, t in enumerate(v["tokens"])}, merges)

    makers = {
        "gpt-2": (words("gpt-2", [gpt2_words()]), True),
        "gpt-2 (whisper)": (lambda: whisper_gpt2(unpacked("openai_whisper")), True),
        "llama-3": (words("llama-bpe", [split(LLAMA3), bytes_only()], None, True), True),
        "llama-3, gpt-4o words": (words("llama-bpe", [split(GPT4O), bytes_only()]), True),
        "qwen2": (words("qwen2", [split(QWEN2), bytes_only()], nfc), False),
        "qwen3.5": (words("qwen35", [split(QWEN35), bytes_only()]), True),
        "starcoder": (words("starcoder", [digits, gpt2_words()]), True),
        "refact": (words("refact", [digits, gpt2_words()]), True),
        "command-r": (words("command-r", [digits, gpt2_words()], nfc), False),
        "mpt": (words("mpt", [gpt2_words()], nfc), False),
        "falcon": (words("falcon", [pre_tokenizers.Punctuation("contiguous"), gpt2_words(),
                                    pre_tokenizers.Digits(False), split("[0-9][0-9][0-9]")]), True),
        "deepseek-llm": (words("deepseek-llm", [
            split("[\r\n]"), split(DEEPSEEK_LETTERS), split(r"\s?[!-/:-~！-／：-～‘-‟　-。]+"),
            split(r"\s+$"), split(CJK), digits, bytes_only()]), True),
        "deepseek-coder": (words("deepseek-coder", [
            split("[\r\n]"), split(r"\s?\p{L}+"), split(r"\s?\p{P}+"), split(CJK), digits,
            bytes_only()]), True),
        "llama-2": (lambda: scored("llama-spm"), False),
        "phi-3": (lambda: scored("phi-3"), False),
        "baichuan": (lambda: scored("baichuan"), False),
        "gemma-4": (gemma, False),
        "bert": (lambda: bert(read("bert-bge")), False),
        "xlm-roberta (nomic)": (lambda: unigram(read("nomic-bert-moe")), False),
    }
    for name, (make, promised) in makers.items():
        if not wanted or name in wanted:
            yield name, make(), promised


# ---- Strings -----------------------------------------------------------------------------------

SAMPLES = """The quick brown fox can't jump over 1234567 lazy dogs; they've had enough, haven't they?
Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. Straße, ẞ, ﬁne, ŉ
Съешь же ещё этих мягких французских булок, да выпей чаю
いろはにほへと ちりぬるを 東京特許許可局 カタカナ ﾊﾝｶｸ 日本語の文章です。
我能吞下玻璃而不伤身体。繁體中文，標點！？「引號」
다람쥐 헌 쳇바퀴에 타고파 ㄱㄴㄷ
نص حكيم له سر قاطع وذو شأن عظيم مكتوب على ثوب أخضر
עטלף אבק נס דרך מזגן שהתפוצץ כי חם
ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण का सर्वनाश
เป็นมนุษย์สุดประเสริฐเลิศคุณค่า กว่าบรรดาฝูงสัตว์เดรัจฉาน
Ξεσκεπάζω την ψυχοφθόρα βδελυγμία Tiếng Việt có dấu thanh ễ ẫ ợ
def f(x):\n\treturn {k: v for k, v in x.items() if v != 0x7F}  # comment\r\n
<html><body class="a">&nbsp;</body></html> https://example.org/a?b=c&d=%20
e = mc²; ½ ⅔ Ⅳ ① ٣٤ ๑๒ 𝟘𝟙 ∑∫√ ≠ ± 10⁻³ 1,234.56 -7 +49""".split("\n")
EMOJI = ["👨‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇩🇪🇫🇷", "☕️", "❤️‍🔥", "🧑🏿‍🚀", "\U0001f1e6", "\u200d", "\ufe0f", "🫠"]
NASTY = ["\0", "\x01", "\x7f", "\x85", "\u00a0", "\u180e", "\u200b", "\u2028", "\u2029", "\u3000", "\ufeff",
         "\ufffd", "\ufffe", "\uffff", "\ufdd0", "\U0010ffff", "\u0301", "\u0327\u0301", "\u0345\u0334", "\u1100",
         "\u1161\u11a8", "\uac00\u11a8", "İ", "ı", "ſ", "'ſ", "ß", "Å", "Å", "ﷺ", "ǅ", "\r\n", "\n\n\n", "\t\t",
         "   ", "      \n   ", "'S", "'LL", "'Ve", "''s", " 's", "’s", "\u1171e", "\u1c89", "\U000105c9",
         "\U00016d68", "\u11938", "\u32ff", "\ua7f2"]


def strings(tokenizer, count, seed):
    rng = random.Random(seed)
    specials = [t.content for t in tokenizer.get_added_tokens_decoder().values()] or ["<s>"]
    words = [w for line in SAMPLES for w in line.split(" ")]
    ranges = [(0x20, 0x7e), (0xa0, 0x24f), (0x300, 0x36f), (0x370, 0x5ff), (0x600, 0x6ff), (0x900, 0xdff),
              (0xe00, 0xfff), (0x1100, 0x11ff), (0x2000, 0x2bff), (0x3040, 0x30ff), (0x4e00, 0x9fff),
              (0xac00, 0xd7a3), (0xf900, 0xfdff), (0xfe00, 0xffff), (0x10000, 0x1ffff), (0x20000, 0x323af),
              (0xe0000, 0xe01ef), (0, 0x10ffff)]

    def character():
        low, high = rng.choice(ranges)
        while True:
            code = rng.randint(low, high)
            if not 0xd800 <= code <= 0xdfff:
                return chr(code)

    def atom():
        kind = rng.random()
        if kind < .35:
            return rng.choice(words)
        if kind < .5:
            return rng.choice([" ", " ", "  ", "\n", "\t", ".", ",", "-", "_", "/", "(", '"'])
        if kind < .6:
            return "".join(character() for _ in range(rng.randint(1, 4)))
        if kind < .7:
            return rng.choice(NASTY)
        if kind < .76:
            return "".join(rng.choice(EMOJI) for _ in range(rng.randint(1, 3)))
        if kind < .82:
            return str(rng.randint(0, 10 ** rng.randint(1, 12)))
        if kind < .86:
            return rng.choice(["a", "=", " ", "\n", "0", "é", "語"]) * rng.randint(1, 70)
        if kind < .92:
            return rng.choice(specials) if rng.random() < .7 else rng.choice(specials)[:-1]
        return rng.choice(words).upper() if rng.random() < .5 else rng.choice(words)[::-1]

    yield ""
    for letter in ("a", "A", " ", "1", "\n"):
        yield letter * (1 << 20)
    yield "".join(EMOJI) + "".join(NASTY)
    for line in SAMPLES:
        yield line
    for _ in range(count):
        yield "".join(atom() for _ in range(rng.randint(1, 12)))


def code_points():
    """Every code point between letters, spaces and digits; the same for all vocabularies."""
    codes = [c for c in range(0x110000) if not 0xd800 <= c <= 0xdfff]
    return ["".join(f"a{chr(c)}b {chr(c)}1{chr(c)}" for c in codes[at:at + 16])
            for at in range(0, len(codes), 16)]


# ---- Comparisons -------------------------------------------------------------------------------

def start(model, source, target, *flags):
    """`touchstone tokenize --lines` from a file to a file; runs beside the package."""
    return subprocess.Popen([PROGRAM, "tokenize", "-m", str(model), "--lines", *flags],
                            stdin=open(source, "rb"), stdout=open(target, "wb"), stderr=subprocess.PIPE)


def finish(process, target, expected):
    errors = process.communicate()[1].decode()
    with open(target, encoding="utf-8", newline="\n") as lines:
        answers = lines.read().split("\n")[:-1]
    if process.returncode != 0 or len(answers) != expected:
        sys.exit(f"{target}: exit code {process.returncode}, {len(answers)} of {expected} lines\n{errors}")
    return answers


def ours(model, values, *flags):
    """The answers for a few values."""
    text = "".join(json.dumps(v) + "\n" for v in values)
    result = subprocess.run([PROGRAM, "tokenize", "-m", str(model), "--lines", *flags], input=text.encode(),
                            capture_output=True)
    if result.returncode != 0:
        sys.exit(f"{model}: {result.stderr.decode()}")
    return [json.loads(line) for line in result.stdout.splitlines()]


def differing_codes(tokenizer, model, text):
    codes = sorted(set(text) - set("ab1 "))
    lines = [f"a{c}b {c}1{c}" for c in codes]
    return [f"U+{ord(c):04X}" for c, line, ids in zip(codes, lines, ours(model, lines))
            if tokenizer.encode(line).ids != ids]


def theirs(tokenizer, texts, target):
    """The ids of the package, a line of JSON each, as the program prints them; and their text."""
    lines, decoded = [], []
    with open(target, "w") as out:
        for at in range(0, len(texts), 20000):
            ids = [e.ids for e in tokenizer.encode_batch(texts[at:at + 20000])]
            lines += ["[" + ",".join(map(str, i)) + "]" for i in ids]
            decoded += tokenizer.decode_batch(ids, skip_special_tokens=False)
        out.writelines(line + "\n" for line in lines)
    return lines, decoded


class Tally:
    """Differences of one vocabulary; the first three are shown."""

    def __init__(self, name):
        self.name, self.ids, self.texts, self.codes = name, 0, 0, []

    def wrong_ids(self, text, expected, got):
        self.ids += 1
        if self.ids <= 3:
            print(f"  {self.name}: {text[:60]!r}\n    theirs {expected[:120]}\n    ours   {got[:120]}")

    def wrong_text(self, what, expected, got):
        self.texts += 1
        if self.texts <= 3:
            print(f"  {self.name}: {what}: expected {expected[:60]!r}, ours {got[:60]!r}")


def compare(name, tokenizer, promised, folder, codes):
    """How many texts were compared, how many ids and how many decoded texts differ."""
    model = folder / (re.sub("[ ,()]+", "_", name).strip("_") + ".json")
    tokenizer.save(str(model))
    tokenizer = Tokenizer.from_file(str(model))  # ids of added tokens as a reader of the file has them
    # Falcon and StarCoder lack bytes that only unassigned planes have.
    promised = promised and all(tokenizer.token_to_id(c) is not None for c in byte_alphabet().values())
    added = set(tokenizer.get_added_tokens_decoder())
    texts = list(strings(tokenizer, STRINGS, 1))
    first_code = len(texts)
    texts += codes
    source, ids_file, encoded, decoded = (folder / f"lines_{kind}" for kind in ("texts", "ids", "encoded", "decoded"))
    source.write_text("".join(json.dumps(t) + "\n" for t in texts))
    encoder = start(model, source, encoded)
    lines, expected_texts = theirs(tokenizer, texts, ids_file)
    decoder = start(model, ids_file, decoded, "--decode")
    tally = Tally(name)
    for at, (text, expected, got) in enumerate(zip(texts, lines, finish(encoder, encoded, len(texts)))):
        if got != expected:
            tally.wrong_ids(text, expected, got)
            if at >= first_code:
                tally.codes += differing_codes(tokenizer, model, text)
    for text, ids, expected, answer in zip(texts, lines, expected_texts, finish(decoder, decoded, len(texts))):
        got = json.loads(answer)
        if got != expected:
            tally.wrong_text(f"decode {ids[:60]}", expected, got)
        elif promised and got != text and added.isdisjoint(json.loads(ids)):
            tally.wrong_text("not the same after decode", text, got)
    print(f"{name:24} {len(texts)} texts, {tally.ids} differ, {tally.texts} decode differently"
          + (f", code points {' '.join(tally.codes[:40])}" if tally.codes else ""), flush=True)
    return len(texts), tally.ids, tally.texts


def golden_pairs():
    """The pairs of the package, through our reader of GGUF files."""
    bad = pairs = 0
    files = sorted(unpacked("llama_cpp_python").glob("*.gguf.inp"))
    for path in files:
        texts = path.read_bytes().decode().split("\n__ggml_vocab_test__\n")
        wanted = [[int(i) for i in line.split()] for line in
                  path.with_suffix(".out").read_text().split("\n")]
        got = ours(path.with_suffix(""), texts, "--no-special")
        assert len(texts) == len(got) <= len(wanted), path
        pairs += len(texts)
        wrong = [t for t, a, b in zip(texts, wanted, got) if a != b]
        bad += len(wrong)
        print(f"{path.name[11:-9]:24} {len(texts)} pairs, {len(wrong)} differ"
              + "".join(f"\n  {t!r}" for t in wrong[:3]))
    assert (len(files), pairs) == (GOLDEN_FILES, GOLDEN_PAIRS), (len(files), pairs)
    return bad


def training(folder):
    """Merges of our trainer and of theirs, on three texts."""
    rng = random.Random(2)
    root = pathlib.Path(__file__).resolve().parent.parent.parent
    texts = {
        "docs": "".join(p.read_text() for p in sorted((root / "docs").rglob("*.md"))),
        "languages": "\n".join(rng.choice(SAMPLES) for _ in range(3000)),
        "random": "".join(rng.choice("abcd  \n'é") for _ in range(200000)),
    }
    bad = 0
    for name, text in texts.items():
        source = folder / f"train_{name}.txt"
        source.write_bytes(text.encode())
        output = folder / f"train_{name}.json"
        subprocess.run([PROGRAM, "tokenize", "--train", source, "--vocab", "2000", "--special",
                        "<s>,</s>", "-o", output], check=True, stderr=subprocess.DEVNULL)
        theirs = Tokenizer(models.BPE())
        theirs.pre_tokenizer = gpt2_words()
        theirs.train([str(source)], trainers.BpeTrainer(
            vocab_size=2000, special_tokens=["<s>", "</s>"], show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
        wanted = json.loads(theirs.to_str())["model"]
        got = json.loads(output.read_text())["model"]
        same = wanted["merges"] == got["merges"] and wanted["vocab"] == got["vocab"]
        bad += not same
        read = Tokenizer.from_file(str(output)).encode(text[:1000]).ids == theirs.encode(text[:1000]).ids
        bad += not read
        print(f"train {name:18} {len(got['merges'])} merges, {'the same' if same else 'DIFFERENT'}, "
              f"{'read' if read else 'NOT READ'} by tokenizers")
    return bad


def refusals(folder):
    """What both refuse."""
    result = subprocess.run([PROGRAM, "tokenize", "-m", folder / "train_docs.json", "--lines"], input=b'"\\ud800"\n',
                            capture_output=True)
    lone = result.returncode == 3 and result.stderr.count(b"\n") == 1
    print(f"lone surrogate           {'refused' if lone else 'NOT REFUSED'}")
    return not lone


def main():
    folder = CACHE.parent / "tokenizers"
    folder.mkdir(parents=True, exist_ok=True)
    print(f"tokenizers {tokenizers.__version__}, {STRINGS} strings and every code point per vocabulary", flush=True)
    bad = golden_pairs() + training(folder)
    codes = code_points()
    results = [compare(name, tokenizer, promised, folder, codes)
               for name, tokenizer, promised in real_tokenizers(sys.argv[1:])]
    texts, ids, decoded = (sum(column) for column in zip(*results))
    bad += refusals(folder) + ids + decoded
    print(f"{len(results)} tokenizers, {texts} texts: ids of {ids} differ, decoded text of {decoded} differs")
    return 1 if bad or not results else 0


if __name__ == "__main__":
    sys.exit(main())
