#!/usr/bin/env python3
"""Makes src/io/testdata/hostile: crafted files, most of them after reports on shipped engines (named
beside each), and src/io/testdata/seeds: valid small files that mutations and fuzzers start from.

    scripts/make_hostile_files.py

Only the standard library is used. What each hostile file must do is in src/io/container/hostile_test.cc.
"""
import json
import pathlib
import struct

ROOT = pathlib.Path(__file__).resolve().parent.parent / "src/io/testdata"
U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
FORMATS = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "B", U64: "Q",
           I64: "q", F64: "d"}


def text(value):
    data = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(data)) + data


def value(kind, content):
    if kind == STRING:
        return text(content)
    if kind == ARRAY:
        element, items = content
        return struct.pack("<IQ", element, len(items)) + b"".join(value(element, i) for i in items)
    return struct.pack("<" + FORMATS[kind], content)


def entry(key, kind, content):
    return text(key) + struct.pack("<I", kind) + value(kind, content)


def tensor(name, dims, kind, offset):
    return (text(name) + struct.pack("<I", len(dims)) + b"".join(struct.pack("<Q", d) for d in dims)
            + struct.pack("<IQ", kind, offset))


def gguf(entries=(), tensors=(), data=b"", version=3, counts=None, alignment=32):
    n_tensors, n_entries = counts or (len(tensors), len(entries))
    head = b"GGUF" + struct.pack("<IQQ", version, n_tensors, n_entries)
    head += b"".join(entries) + b"".join(tensors)
    if alignment:
        head += b"\0" * (-len(head) % alignment)
    return head + data


def safetensors(header, data=b"", length=None):
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def block(dtype="F32", shape=(2, 2), offsets=(0, 16)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def llama_keys(layers=1, **changes):
    keys = {"general.architecture": (STRING, "llama"), "llama.context_length": (U32, 64),
            "llama.embedding_length": (U32, 32), "llama.block_count": (U32, layers),
            "llama.feed_forward_length": (U32, 8), "llama.attention.head_count": (U32, 1),
            "llama.attention.head_count_kv": (U32, 1), "llama.attention.key_length": (U32, 8),
            "llama.attention.value_length": (U32, 8), "llama.rope.freq_base": (F32, 10000.0),
            "llama.attention.layer_norm_rms_epsilon": (F32, 1e-5),
            "tokenizer.ggml.model": (STRING, "gpt2"),
            "tokenizer.ggml.tokens": (ARRAY, (STRING, ["a", "b", "<0x-1>", "<|end|>"])),
            "tokenizer.ggml.scores": (ARRAY, (F32, [0.0, 1.0, 2.0, 3.0])),
            "tokenizer.ggml.eos_token_id": (U32, 3)}
    keys.update(changes)
    return [entry(k, *v) for k, v in keys.items()]


def llama_tensors():
    # Q4_0 where rows are whole blocks, F16 else, vectors in F32.
    shapes = [("token_embd.weight", (32, 4)), ("output_norm.weight", (32,)),
              ("blk.0.attn_norm.weight", (32,)), ("blk.0.attn_q.weight", (32, 8)),
              ("blk.0.attn_k.weight", (32, 8)), ("blk.0.attn_v.weight", (32, 8)),
              ("blk.0.attn_output.weight", (8, 32)), ("blk.0.ffn_norm.weight", (32,)),
              ("blk.0.ffn_gate.weight", (32, 8)), ("blk.0.ffn_up.weight", (32, 8)),
              ("blk.0.ffn_down.weight", (8, 32))]
    tensors, data = [], b""
    for name, dims in shapes:
        kind = 0 if len(dims) == 1 else 2 if dims[0] == 32 else 1
        tensors.append(tensor(name, dims, kind, len(data)))
        if kind == 0:
            data += struct.pack("<f", 1.0) * dims[0]
        elif kind == 1:
            data += b"\x00\x3c" * (dims[0] * dims[1])
        else:
            data += (b"\x00\x2c" + bytes(range(16))) * dims[1]
        data += b"\0" * (-len(data) % 32)
    return tensors, data


def hostile_gguf():
    one = [tensor("t", (32,), 0, 0)]
    data = bytes(128)
    return {
        # ollama CVE-2026-7482: offset and size beyond the end of the file
        "offset_beyond_file": gguf(tensors=[tensor("t", (32,), 0, 1 << 20)], data=data),
        "size_beyond_file": gguf(tensors=[tensor("t", (1 << 20,), 0, 0)], data=data),
        # ollama#17042, mlx#4256: lengths that no file holds
        "array_length": gguf([text("k") + struct.pack("<IIQ", ARRAY, U8, 1 << 60)], counts=(0, 1)),
        "string_array_length": gguf([text("k") + struct.pack("<IIQ", ARRAY, STRING, 1 << 61)], counts=(0, 1)),
        "string_length": gguf([text("k") + struct.pack("<IQ", STRING, (1 << 64) - 1)], counts=(0, 1)),
        "string_past_end": gguf([text("k") + struct.pack("<IQ", STRING, 100) + b"short"], counts=(0, 1)),
        "key_length": gguf([struct.pack("<Q", (1 << 64) - 4) + b"k"], counts=(0, 1)),
        # llama.cpp#15711: counts
        "tensor_count": gguf(counts=(1 << 58, 0)),
        "entry_count": gguf(counts=(0, (1 << 64) - 1)),
        # llama.cpp#27200: elements times bytes of a block wrap before the division
        "q4_0_size_wraps": gguf(tensors=[tensor("t", (5124095576030431008,), 2, 0)], data=data),
        # llama.cpp#24759: padding wraps
        "padding_wraps": gguf(tensors=[tensor("t", ((1 << 62) - 1,), 0, 0)], data=data),
        # llama.cpp#27203: a negative number of elements
        "elements_negative": gguf(tensors=[tensor("t", ((1 << 63) - 1, 2), 24, 0)], data=data),
        "extent_above_int64": gguf(tensors=[tensor("t", (1 << 63, 1), 24, 0)], data=data),
        # llama.cpp#18674: an extent whose product with the stride wraps to nothing
        "stride_wraps": gguf(tensors=[tensor("t", (1152, (1 << 42) + 1, 1 << 20), 8, 0)], data=data),
        "zero_hides_overflow": gguf(tensors=[tensor("t", (0, 1 << 62, 1 << 62), 0, 0)], data=data),
        # llama.cpp#18674, #26318: offset plus size wraps
        "offset_wraps": gguf(tensors=[tensor("t", (32,), 0, (1 << 64) - 32)], data=data),
        # llama.cpp#26318, #24997: alignment of another type, of 2 GB, of nothing
        "alignment_i32": gguf([entry("general.alignment", I32, 32)], one, data),
        "alignment_2g": gguf([entry("general.alignment", U32, 1 << 31)], one, data),
        "alignment_0": gguf([entry("general.alignment", U32, 0)], one, data),
        "alignment_48": gguf([entry("general.alignment", U32, 48)], one, data),
        # CVE-2024-39720: the magic alone
        "magic_alone": b"GGUF",
        "version_1": gguf(version=1),
        "big_endian": gguf(version=3 << 24),
        # openvino.genai#4170: more extents than the reader's array
        "rank_4096": gguf([], [text("t") + struct.pack("<I", 4096) + bytes(64)], data, counts=(1, 0)),
        "rank_5": gguf(tensors=[tensor("t", (1, 1, 1, 1, 1), 0, 0)], data=data),
        "unknown_type": gguf(tensors=[tensor("t", (32,), 99, 0)], data=data),
        "type_q2_k": gguf(tensors=[tensor("t", (256,), 10, 0)], data=data),
        "half_a_block": gguf(tensors=[tensor("t", (48,), 2, 0)], data=data),
        "offset_unaligned": gguf(tensors=[tensor("t", (4,), 0, 4)], data=data),
        "overlap": gguf(tensors=[tensor("a", (16,), 0, 0), tensor("b", (16,), 0, 32)], data=data),
        "tensor_twice": gguf(tensors=[tensor("a", (8,), 0, 0), tensor("a", (8,), 0, 32)], data=data),
        "tensor_without_name": gguf(tensors=[tensor("", (8,), 0, 0)], data=data),
        "key_twice": gguf([entry("k", U8, 1), entry("k", U8, 2)]),
        "value_type": gguf([text("k") + struct.pack("<IQ", 13, 0)], counts=(0, 1)),
        "element_type": gguf([text("k") + struct.pack("<IIQ", ARRAY, 77, 0)], counts=(0, 1)),
        "nested_arrays": gguf([entry("k", ARRAY, (ARRAY, [(U8, [1])]))]),
        "boolean_2": gguf([entry("k", BOOL, 2)]),
    }


def projector(keys):
    keys = {"general.architecture": (STRING, "clip"), "clip.has_vision_encoder": (BOOL, 1),
            "clip.vision.block_count": (U32, 1), **keys}
    return gguf([entry(k, *v) for k, v in keys.items()], [tensor("v.patch_embd.weight", (32,), 0, 0)], bytes(128))


def hostile_models():
    """Containers that are fine, models that are not."""
    tensors, data = llama_tensors()

    def model(**changes):
        return gguf(llama_keys(**changes), tensors, data)
    return {
        # llama.cpp#25821: more layers than the reader's arrays
        "block_count_600": model(**{"llama.block_count": (U32, 600)}),
        "block_count_max": model(**{"llama.block_count": (U32, (1 << 32) - 1)}),
        "block_count_u64": model(**{"llama.block_count": (U64, (1 << 64) - 1)}),
        "block_count_string": model(**{"llama.block_count": (STRING, "1")}),
        "heads_0": model(**{"llama.attention.head_count": (U32, 0)}),
        "heads_not_divisible": model(**{"llama.attention.head_count_kv": (U32, 3)}),
        "head_count_per_layer": model(**{"llama.attention.head_count": (ARRAY, (U32, [4, 2]))}),
        "epsilon_nan": model(**{"llama.attention.layer_norm_rms_epsilon": (F32, float("nan"))}),
        "theta_negative": model(**{"llama.rope.freq_base": (F32, -1.0)}),
        "rope_odd": model(**{"llama.rope.dimension_count": (U32, 7)}),
        "experts": model(**{"llama.expert_count": (U32, 8)}),
        "architecture_unknown": model(**{"general.architecture": (STRING, "mamba")}),
        "architecture_number": model(**{"general.architecture": (U32, 1)}),
        "width_other": model(**{"llama.embedding_length": (U32, 64)}),
        "end_token_outside": model(**{"tokenizer.ggml.eos_token_id": (U32, 4)}),
        "no_tensors": gguf(llama_keys()),
        # lmstudio#2289 (llama.cpp#27223, #27224, #27166), llama.cpp#24976, #24142: parts for images and
        # sound, whose sizes wrap or do not fit their arrays
        "clip_chunk_size": projector({"clip.projector_type": (STRING, "granite_speech"),
                                      "clip.has_audio_encoder": (BOOL, 1), "clip.audio.block_count": (U32, 0),
                                      "clip.audio.chunk_size": (U32, 65537)}),
        "clip_min_pixels": projector({"clip.projector_type": (STRING, "dots_ocr"),
                                      "clip.vision.image_min_pixels": (U32, 46340 * 46340),
                                      "clip.vision.image_max_pixels": (U32, 46340 * 46340)}),
        "clip_positions": projector({"clip.projector_type": (STRING, "resampler"),
                                     "clip.vision.image_size": (U32, 1 << 20),
                                     "clip.vision.patch_size": (U32, 1)}),
        "clip_image_mean": projector({"clip.vision.image_mean": (ARRAY, (F32, [0.5]))}),
        "clip_pinpoints": projector({"clip.vision.image_grid_pinpoints": (ARRAY, (U8, [1, 2, 3]))}),
        "tensor_left_over": gguf(llama_keys(), tensors + [tensor("blk.0.attn_sinks.weight", (8,), 0, len(data))],
                                 data + bytes(32)),
    }


def hostile_metadata():
    """Containers that are fine, arrays of other types than their readers want."""
    return {
        # llama.cpp#26690: scores and token types with one byte each
        "scores_as_u8": gguf([entry("tokenizer.ggml.scores", ARRAY, (U8, [1, 2, 3, 4])),
                              entry("tokenizer.ggml.token_type", ARRAY, (U8, [1, 1, 1, 1])),
                              entry("tokenizer.ggml.tokens", ARRAY, (U8, [1, 1, 1, 1]))]),
        # llama.cpp#26511, #27226, #25969, lmstudio#2289: a byte token below the table
        "byte_token_minus_one": gguf([entry("tokenizer.ggml.model", STRING, "plamo2"),
                                      entry("tokenizer.ggml.tokens", ARRAY,
                                            (STRING, ["<0x-1>", "<0x100>", "<0xZZ>", b"\xff\xfe"]))]),
    }


def hostile_tokenizers():
    """Vocabularies in containers that are fine."""
    def vocabulary(**changes):
        keys = {"tokenizer.ggml.model": (STRING, "llama"),
                "tokenizer.ggml.tokens": (ARRAY, (STRING, ["<unk>", "<s>", "</s>", "<0x41>"])),
                "tokenizer.ggml.scores": (ARRAY, (F32, [0.0, 0.0, 0.0, 0.0])),
                "tokenizer.ggml.token_type": (ARRAY, (I32, [2, 3, 3, 6])),
                "tokenizer.ggml.bos_token_id": (U32, 1), "tokenizer.ggml.pre": (STRING, "gpt-2")}
        keys.update({"tokenizer.ggml." + k: v for k, v in changes.items()})
        return gguf([entry(k, *v) for k, v in keys.items()])
    one = (ARRAY, (STRING, ["a"]))
    return {
        # llama.cpp#26511, #27226, #25969, lmstudio#2289: byte tokens outside the table
        "byte_minus_one": vocabulary(tokens=(ARRAY, (STRING, ["<unk>", "<s>", "</s>", "<0x-1>"]))),
        "byte_no_digits": vocabulary(tokens=(ARRAY, (STRING, ["<unk>", "<s>", "</s>", "<0xZZ>"]))),
        "byte_too_large": vocabulary(tokens=(ARRAY, (STRING, ["<unk>", "<s>", "</s>", "<0x100>"]))),
        "plamo2": vocabulary(model=(STRING, "plamo2"),
                             tokens=(ARRAY, (STRING, ["<unk>", "<s>", "</s>", "<0x-1>"]))),
        # mistral.rs#2225, llama.cpp#25475: special tokens outside the vocabulary
        "end_token_outside": vocabulary(tokens=one, scores=(ARRAY, (F32, [0.0])), token_type=(ARRAY, (I32, [1])),
                                    bos_token_id=(U32, 0), eos_token_id=(U32, 0x7fffffff)),
        "begin_token_outside": vocabulary(bos_token_id=(U32, 4)),
        "unknown_token_negative": vocabulary(unknown_token_id=(I32, -2)),
        # llama.cpp#26690: scores and token types with one byte each
        "scores_as_u8": vocabulary(scores=(ARRAY, (U8, [0, 0, 0, 0]))),
        "types_too_few": vocabulary(token_type=(ARRAY, (I32, [1]))),
        "scores_too_few": vocabulary(scores=(ARRAY, (F32, [0.0]))),
        "tokens_as_u8": vocabulary(tokens=(ARRAY, (U8, [1, 1, 1, 1]))),
        "tokens_missing": gguf([entry("tokenizer.ggml.model", STRING, "llama")]),
        "invalid_utf8": vocabulary(tokens=(ARRAY, (STRING, ["<unk>", "<s>", "</s>", b"\xff\xfe"]))),
        "merge_unknown": vocabulary(model=(STRING, "gpt2"), merges=(ARRAY, (STRING, ["x y"]))),
        "merge_one_part": vocabulary(model=(STRING, "gpt2"), merges=(ARRAY, (STRING, ["xy"]))),
    }


def accepted_tokenizers():
    # llama.cpp#25508: fewer tokens than the usual number of an end token, and no key that says so
    return {"one_token": gguf([entry("tokenizer.ggml.model", STRING, "llama"),
                               entry("tokenizer.ggml.tokens", ARRAY, (STRING, ["a"])),
                               entry("tokenizer.ggml.scores", ARRAY, (F32, [0.0])),
                               entry("tokenizer.ggml.token_type", ARRAY, (I32, [1])),
                               entry("tokenizer.ggml.add_bos_token", BOOL, 0)])}


def hostile_safetensors():
    data = bytes(32)
    two = {"a": block(), "b": block(offsets=(16, 32))}
    deep = b'{"a":' + b"[" * 3000 + b"]" * 3000 + b"}"
    return {
        "empty": b"",
        "length_alone": struct.pack("<Q", 0),
        "length_huge": safetensors({}, length=(1 << 63) - 1),
        "length_past_end": safetensors({}, length=100),
        "not_json": safetensors(b"hello"),
        "array": safetensors(b"[]"),
        "deep": safetensors(deep),
        "key_twice": safetensors(b'{"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},'
                                 b'"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}', bytes(4)),
        "field_twice": safetensors(b'{"a":{"dtype":"F32","dtype":"I8","shape":[4],"data_offsets":[0,4]}}', bytes(4)),
        "invalid_utf8": safetensors(b'{"\xff":1}'),
        "overlap": safetensors({"a": block(), "b": block(offsets=(8, 24))}, data[:24]),
        "gap": safetensors({"a": block(), "b": block(offsets=(20, 36))}, bytes(36)),
        "same_bytes": safetensors({"a": block(), "b": block()}, data[:16]),
        "reversed": safetensors({"a": block(offsets=(16, 0))}, data[:16]),
        "negative": safetensors({"a": block(offsets=(-16, 0))}, data[:16]),
        "beyond": safetensors({"a": block(offsets=(1 << 40, (1 << 40) + 16))}, data),
        "above_int64": safetensors(b'{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,18446744073709551616]}}', data),
        "fraction": safetensors(b'{"a":{"dtype":"F32","shape":[4.0],"data_offsets":[0,16]}}', data[:16]),
        "exponent": safetensors(b'{"a":{"dtype":"F32","shape":[1e999],"data_offsets":[0,16]}}', data[:16]),
        "shape_wraps": safetensors({"a": block(shape=(1 << 32, 1 << 32), offsets=(0, 0))}),
        "shape_wraps_to_16": safetensors({"a": block(shape=(1 << 62, 4, 4))}, data[:16]),
        "zero_hides_overflow": safetensors({"a": block(shape=(0, 1 << 62, 1 << 62), offsets=(0, 0))}),
        "shape_negative": safetensors({"a": block(shape=(-2, -2))}, data[:16]),
        "shape_other": safetensors({"a": block(shape=(3, 2))}, data[:16]),
        "rank_9": safetensors({"a": block(shape=(1,) * 9, offsets=(0, 4))}, bytes(4)),
        "dtype_unknown": safetensors({"a": block(dtype="F4")}, data[:16]),
        "dtype_number": safetensors({"a": block(dtype=7)}, data[:16]),
        "shape_string": safetensors({"a": {"dtype": "F32", "shape": "x", "data_offsets": [0, 16]}}, data[:16]),
        "offsets_three": safetensors({"a": block(offsets=(0, 8, 16))}, data[:16]),
        "no_offsets": safetensors({"a": {"dtype": "F32", "shape": [4]}}, data[:16]),
        "field_unknown": safetensors({"a": dict(block(), extra=1)}, data[:16]),
        "entry_number": safetensors({"a": 1}),
        "metadata_number": safetensors({"__metadata__": {"k": 1}}),
        "metadata_array": safetensors({"__metadata__": []}),
        "data_left_over": safetensors(two, bytes(40)),
        "data_missing": safetensors(two, bytes(31)),
        "text_after": safetensors(b"{}{}"),
    }


def vocabulary(model, tokens, types, **more):
    keys = {"model": (STRING, model), "tokens": (ARRAY, (STRING, tokens)), "token_type": (ARRAY, (I32, types)),
            "scores": (ARRAY, (F32, [-float(i) for i in range(len(tokens))])),
            "bos_token_id": (U32, 1), "eos_token_id": (U32, 2), "unknown_token_id": (U32, 0),
            "add_bos_token": (BOOL, 1)}
    keys.update(more)
    return gguf([entry("general.architecture", STRING, "llama"), entry("general.name", STRING, "Phi-3 tiny")]
                + [entry("tokenizer.ggml." + key, kind, content) for key, (kind, content) in keys.items()])


def vocabularies():
    control = ["<unk>", "<s>", "</s>"]
    marks = [2, 3, 3]
    mark = "\u2581"
    words = ["a", "b", "ab", "aab", "u", "A", "\u0120", "\u0120a", "\u010a", "1", "2"]
    pieces = [mark, "a", "b", "ab", mark + "a", "u", "A", "\u00e9", "1"]
    octets = [f"<0x{i:02X}>" for i in range(48)]
    return {
        "vocabulary_gpt2.gguf": vocabulary(
            "gpt2", control + words + ["<user>"], marks + [1] * len(words) + [4], pre=(STRING, "llama-bpe"),
            merges=(ARRAY, (STRING, ["a b", "a ab", "\u0120 a"]))),
        "vocabulary_gpt4o.gguf": vocabulary(
            "gpt2", control + words, marks + [1] * len(words), pre=(STRING, "gpt-4o"),
            merges=(ARRAY, (STRING, ["a b"]))),
        "vocabulary_llama.gguf": vocabulary("llama", control + octets + pieces,
                                            marks + [6] * len(octets) + [1] * len(pieces)),
        "vocabulary_bert.gguf": vocabulary(
            "bert", ["[UNK]", "[CLS]", "[SEP]", "[MASK]"] + [mark + "a", "b", mark + "ab", mark + "1"],
            [2, 3, 3, 3, 1, 1, 1, 1], cls_token_id=(U32, 1), seperator_token_id=(U32, 2)),
        "vocabulary_t5.gguf": vocabulary("t5", control + pieces, marks + [1] * len(pieces)),
    }


def seeds():
    tensors, data = llama_tensors()
    kinds = [entry(f"k{i}", i, 1) for i in (U8, I8, U16, I16, U32, I32, F32, BOOL, U64, I64, F64)]
    kinds += [entry("s", STRING, "text"), entry("n", ARRAY, (I32, [1, 2, 3])),
              entry("t", ARRAY, (STRING, ["one", "", "three"])), entry("b", ARRAY, (BOOL, [0, 1]))]
    sizes = {0: 4, 1: 2, 30: 2, 2: 18, 3: 20, 6: 22, 7: 24, 8: 34, 12: 144, 13: 176, 14: 210, 27: 8}
    all_types, all_data = [], b""
    for number, size in sizes.items():
        elements = 256 if size >= 144 else 32 if number in (2, 3, 6, 7, 8) else 1
        all_types.append(tensor(f"t{number}", (elements, 2), number, len(all_data)))
        all_data += bytes(i & 0x3B for i in range(2 * size))
        all_data += b"\0" * (-len(all_data) % 32)
    return {
        "model.gguf": gguf(llama_keys(), tensors, data)[:],
        "types.gguf": gguf(kinds, all_types, all_data),
        "empty.gguf": gguf(),
        "aligned.gguf": gguf([entry("general.alignment", U32, 64)], [tensor("t", (32,), 0, 0)], bytes(128),
                             alignment=64),
        "two.safetensors": safetensors({"__metadata__": {"format": "pt", "note": "a\u00e9\n"},
                                        "a": block(), "b": block("BF16", (2, 4), (16, 32))}, bytes(range(32))),
        "types.safetensors": safetensors(
            {name: block(name, (1,), (8 * i, 8 * i + 8)) if name in ("F64", "I64") else
             block(name, (8 // size,), (8 * i, 8 * i + 8))
             for i, (name, size) in enumerate([("F64", 8), ("I64", 8), ("F32", 4), ("I32", 4), ("F16", 2),
                                               ("BF16", 2), ("I8", 1), ("U8", 1), ("F8_E4M3", 1), ("BOOL", 1)])},
            bytes(i & 1 for i in range(80))),
        "empty.safetensors": safetensors({}),
        "llama.json": json.dumps({
            "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512, "hidden_act": "silu",
            "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
            "rope_scaling": {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0,
                             "high_freq_factor": 4.0, "original_max_position_embeddings": 8192},
            "bos_token_id": 1, "eos_token_id": [2, 3], "torch_dtype": "bfloat16"}, indent=1).encode(),
        "gemma3.json": json.dumps({
            "model_type": "gemma3_text", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 7,
            "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 32, "vocab_size": 512,
            "sliding_window": 16, "rope_local_base_freq": 10000, "query_pre_attn_scalar": 32,
            "final_logit_softcapping": None}, indent=1).encode(),
        "gpt2.json": json.dumps({"model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 2,
                                 "vocab_size": 512, "n_positions": 128}).encode(),
        "generation.json": json.dumps({"eos_token_id": [2, 3], "temperature": 0.6, "top_p": 0.9, "top_k": 50,
                                       "do_sample": True, "max_new_tokens": 64}).encode(),
        "index.json": json.dumps({"metadata": {"total_size": 48}, "weight_map": {
            "a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}).encode(),
        "tokenizer_config.json": json.dumps({"bos_token": "<s>", "chat_template": [
            {"name": "tool_use", "template": "t"}, {"name": "default", "template": "{{ x }}"}]}).encode(),
        **vocabularies(),
    }


def main():
    folders = {"hostile/gguf": (hostile_gguf(), ".gguf"), "hostile/model": (hostile_models(), ".gguf"),
               "hostile/metadata": (hostile_metadata(), ".gguf"),
               "hostile/tokenizer": (hostile_tokenizers(), ".gguf"),
               "hostile/harmless": (accepted_tokenizers(), ".gguf"),
               "hostile/safetensors": (hostile_safetensors(), ".safetensors"), "seeds": (seeds(), "")}
    for folder, (files, ending) in folders.items():
        (ROOT / folder).mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (ROOT / folder / (name + ending)).write_bytes(content)


if __name__ == "__main__":
    main()
