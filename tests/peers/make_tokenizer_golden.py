"""Writes src/io/tokenizer/testdata/golden.json: small tokenizers made by PyPI `tokenizers` on our own text,
with the ids and texts that it gives, so that `make test` compares with it offline.

  build/peers/bin/python tests/peers/make_tokenizer_golden.py
"""
import json
import pathlib

from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers,
                        processors, trainers)

import tokenizers_peer as peer

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TEXT = peer.SAMPLES * 4 + [line for p in ("docs/glossary.md", "docs/plan.md")
                           for line in (ROOT / p).read_text().splitlines()]
M = peer.MARK


def trained(model, trainer, pre=None, normalizer=None):
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre or pre_tokenizers.Whitespace()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.train_from_iterator(TEXT, trainer)
    return json.loads(tokenizer.to_str())["model"]


def small_models():
    quiet = {"show_progress": False}
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bytes_ = trained(models.BPE(), trainers.BpeTrainer(vocab_size=560, initial_alphabet=alphabet, **quiet),
                     peer.gpt2_words())
    fallback = [f"<0x{b:02X}>" for b in range(256)]
    pieces = trained(models.BPE(), trainers.BpeTrainer(vocab_size=600, special_tokens=["<unk>", *fallback],
                                                       limit_alphabet=90, **quiet),
                     pre_tokenizers.Metaspace())
    pieces.update(unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    suffix = trained(models.BPE(unk_token="<unk>"), trainers.BpeTrainer(
        vocab_size=500, special_tokens=["<unk>"], limit_alphabet=60, end_of_word_suffix="</w>", **quiet))
    prefix = trained(models.BPE(unk_token="<unk>", continuing_subword_prefix="##"), trainers.BpeTrainer(
        vocab_size=500, special_tokens=["<unk>"], limit_alphabet=60, continuing_subword_prefix="##", **quiet))
    word_piece = trained(models.WordPiece(unk_token="[UNK]"), trainers.WordPieceTrainer(
        vocab_size=600, special_tokens=["[UNK]", "[CLS]", "[SEP]"], limit_alphabet=120, **quiet),
        pre_tokenizers.BertPreTokenizer(), normalizers.BertNormalizer())
    unigram = trained(models.Unigram(), trainers.UnigramTrainer(
        vocab_size=500, special_tokens=["<unk>"], unk_token="<unk>", **quiet), pre_tokenizers.Metaspace())
    words = trained(models.WordLevel(unk_token="<unk>"), trainers.WordLevelTrainer(
        vocab_size=200, special_tokens=["<unk>"], **quiet))
    return {"bytes": bytes_, "bytes_whole": dict(bytes_, ignore_merges=True), "pieces": pieces,
            "suffix": suffix, "prefix": prefix, "word_piece": word_piece, "unigram": unigram, "words": words}


def variants():
    """Name, model, normalizer, pre-tokenizer, post-processor, decoder, added tokens."""
    n, p, d = normalizers, pre_tokenizers, decoders
    byte = d.ByteLevel()
    spm = d.Sequence([d.Replace(M, " "), d.ByteFallback(), d.Fuse(), d.Strip(" ", 1, 0)])
    tokens = [AddedToken("<|end|>", normalized=False, special=True), AddedToken("[x]", lstrip=True, rstrip=True),
              AddedToken("word", single_word=True), AddedToken("ÉTÉ", normalized=True),
              AddedToken("<|end|>more", normalized=False, rstrip=True)]
    template = processors.TemplateProcessing("<s> $A </s>", "<s> $A </s> $B", [("<s>", 1), ("</s>", 2)])

    def case(name, model, normalizer=None, pre=None, post=None, decoder=None, added=()):
        return name, model, normalizer, pre, post, decoder, added
    yield case("gpt2", "bytes", None, peer.gpt2_words(), None, byte)
    yield case("gpt2 prefix space", "bytes", None, p.ByteLevel(), processors.ByteLevel(), byte, tokens)
    yield case("llama3", "bytes_whole", None, p.Sequence([peer.split(peer.LLAMA3), peer.bytes_only()]),
               template, byte, tokens)
    yield case("qwen2", "bytes", n.NFC(), p.Sequence([peer.split(peer.QWEN2), peer.bytes_only()]), None, byte)
    yield case("qwen3.5", "bytes", None, p.Sequence([peer.split(peer.QWEN35), peer.bytes_only()]), None, byte)
    yield case("gpt4o", "bytes", None, p.Sequence([peer.split(peer.GPT4O), peer.bytes_only()]), None, byte)
    yield case("digits", "bytes", None, p.Sequence([p.Digits(True), peer.gpt2_words()]), None, byte, tokens)
    yield case("falcon", "bytes", None, p.Sequence([p.Punctuation("contiguous"), peer.gpt2_words(),
                                                    p.Digits(False), peer.split("[0-9][0-9][0-9]")]), None, byte)
    yield case("byte normalizer", "bytes", n.ByteLevel(), p.Whitespace(), None, byte)
    yield case("lowercase", "bytes", n.Sequence([n.NFKC(), n.Lowercase(), n.Strip()]), peer.gpt2_words(), None,
               byte, tokens)
    yield case("llama2", "pieces", n.Sequence([n.Prepend(M), n.Replace(" ", M)]), None, template, spm, tokens)
    yield case("metaspace first", "pieces", None, p.Metaspace(prepend_scheme="first", split=False), None, spm, tokens)
    yield case("metaspace never", "pieces", None, p.Metaspace(prepend_scheme="never"), None,
               d.Metaspace(prepend_scheme="never"))
    yield case("metaspace strip first", "pieces", n.Strip(), p.Metaspace(prepend_scheme="first"), None,
               d.Metaspace(prepend_scheme="first"))
    yield case("suffix", "suffix", n.Sequence([n.NFD(), n.StripAccents()]), p.Whitespace(), None, d.BPEDecoder("</w>"))
    yield case("prefix", "prefix", n.NFKD(), p.Sequence([p.WhitespaceSplit(), p.Punctuation("merged_with_previous")]))
    yield case("bert", "word_piece", n.BertNormalizer(), p.BertPreTokenizer(),
               processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1)), d.WordPiece())
    yield case("bert cased", "word_piece", n.BertNormalizer(True, True, False, False), p.BertPreTokenizer(),
               processors.RobertaProcessing(("[SEP]", 2), ("[CLS]", 1)), d.WordPiece(cleanup=False), tokens)
    yield case("unigram", "unigram", n.Sequence([n.Nmt(), n.NFKC(), n.Replace(Regex(" {2,}"), " ")]),
               p.Metaspace(), template, d.Metaspace(), tokens)
    yield case("unigram whole", "unigram", n.Replace(" ", M), None, None, d.CTC("<pad>", "|", True))
    yield case("words", "words", None, p.Whitespace())
    yield case("delimiter", "words", None, p.Sequence([p.CharDelimiterSplit(" "), p.FixedLength(7)]))
    for behavior in ("removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"):
        for invert in (False, True):
            yield case(f"split {behavior} {invert}", "bytes", None, p.Sequence([
                p.Split(Regex(r"\d+|[aeiou]{2,}?|(?<=x)y|\bthe\b"), behavior, invert), peer.bytes_only()]), None, byte)


def golden(models_, name, model, normalizer, pre, post, decoder, added):
    tokenizer = Tokenizer.from_str(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": None, "post_processor": None, "decoder": None, "model": models_[model]}))
    for key, value in (("normalizer", normalizer), ("pre_tokenizer", pre), ("post_processor", post),
                       ("decoder", decoder)):
        if value is not None:
            setattr(tokenizer, key, value)
    tokenizer.add_tokens(list(added))
    file = json.loads(tokenizer.to_str())
    del file["model"], file["version"], file["truncation"], file["padding"]
    tokenizer = Tokenizer.from_str(json.dumps(dict(file, model=models_[model])))
    texts = [t for t in peer.strings(tokenizer, 60, name) if len(t.encode()) < 160]
    texts = texts[:1] + texts[1:-1:2][:20] + ["".join(peer.NASTY)]
    ids = [tokenizer.encode(t).ids for t in texts]
    return {"name": name, "model": model, "file": file, "texts": texts, "ids": ids,
            "decoded": [tokenizer.decode(i, skip_special_tokens=False) for i in ids],
            "skipped": tokenizer.decode(ids[-1])}


def training():
    texts = {"english": "\n".join(TEXT[-60:]), "languages": "\n".join(peer.SAMPLES),
             "repeats": "abab ababab aab\naaaa aaaaaa a\r\nbbb'sbb\n\n  aaaa"}
    for name, text in texts.items():
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = peer.gpt2_words()
        source = pathlib.Path("/tmp/touchstone_train.txt")
        source.write_bytes(text.encode())
        tokenizer.train([str(source)], trainers.BpeTrainer(
            vocab_size=400, special_tokens=["<s>"], show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
        source.unlink()
        model = json.loads(tokenizer.to_str())["model"]
        yield {"train": name, "text": text, "merges": model["merges"]}


def corpus(small):
    """Seeds of the fuzzer: every kind of step, models of a few tokens."""
    tiny = {
        "BPE": {"type": "BPE", "unk_token": "u", "fuse_unk": True, "byte_fallback": True,
                "vocab": {"u": 0, "a": 1, "b": 2, "ab": 3, "<0x41>": 4, M: 5}, "merges": [["a", "b"]]},
        "Bytes": dict(small["bytes"], vocab=dict(list(small["bytes"]["vocab"].items())[:262]),
                      merges=small["bytes"]["merges"][:6]),
        "Unigram": {"type": "Unigram", "unk_id": 0, "vocab": [["u", 0.0], ["a", -1.5], ["ab", -2.0]]},
        "WordPiece": {"type": "WordPiece", "unk_token": "u", "continuing_subword_prefix": "##",
                      "max_input_chars_per_word": 9, "vocab": {"u": 0, "a": 1, "##b": 2}},
        "WordLevel": {"type": "WordLevel", "unk_token": "u", "vocab": {"u": 0, "a": 1}}}
    folder = ROOT / "src/io/tokenizer/testdata/corpus"
    folder.mkdir(exist_ok=True)
    kinds = {"bytes": "Bytes", "bytes_whole": "Bytes", "pieces": "BPE", "suffix": "BPE", "prefix": "BPE",
             "word_piece": "WordPiece", "unigram": "Unigram", "words": "WordLevel"}
    for name, model, normalizer, pre, post, decoder, _ in variants():
        if name.startswith("split") and "merged" in name:
            continue
        parts = {key: None if value is None else json.loads(value.__getstate__())
                 for key, value in (("normalizer", normalizer), ("pre_tokenizer", pre),
                                    ("post_processor", post), ("decoder", decoder))}
        added = [{"id": 0, "content": "u", "single_word": True, "lstrip": True, "rstrip": True,
                  "normalized": True, "special": True}] if kinds[model] != "Bytes" else []
        file = {"version": "1.0", "added_tokens": added, **parts, "model": tiny[kinds[model]]}
        text = json.dumps(file, separators=(",", ":"))
        (folder / (name.replace(" ", "_") + ".json")).write_text(text)


def main():
    small = small_models()
    cases = [golden(small, *v) for v in variants()]
    target = ROOT / "src/io/tokenizer/testdata/golden.json"
    target.parent.mkdir(exist_ok=True)
    lines = [json.dumps({"model": k, "json": v}, ensure_ascii=True, separators=(",", ":")) for k, v in small.items()]
    lines += [json.dumps(c, ensure_ascii=True, separators=(",", ":")) for c in training()]
    lines += [json.dumps(c, ensure_ascii=True, separators=(",", ":")) for c in cases]
    target.write_text("\n".join(lines) + "\n")
    corpus(small)
    print(f"{target}: {len(cases)} cases, {target.stat().st_size} bytes")


if __name__ == "__main__":
    main()
