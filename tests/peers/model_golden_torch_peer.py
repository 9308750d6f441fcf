#!/usr/bin/env python3
"""Golden results of random models of every supported architecture, computed by PyPI `transformers`.

    model_golden_torch_peer.py [--write] [NAME...]

Compares src/model/testdata/NAME.json with what is computed now, or writes it: the config, the tensors by name, shape and scale, prompts as a rule, some
logits of the last row of each prompt in float32, and greedy tokens. No weights are stored: both
sides draw them from the same counter-based generator (`values` below, and src/model/model_golden_test.cc).
"""
import json
import pathlib
import sys

import numpy as np
import torch
import transformers

SIZES = dict(hidden_size=64, intermediate_size=172, num_hidden_layers=2, num_attention_heads=8,
             num_key_value_heads=4, vocab_size=512, max_position_embeddings=2048,
             bos_token_id=1, eos_token_id=2, pad_token_id=0)
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64, "rope_theta": 10000.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512,
        "rope_theta": 10000.0}
LONG = {"rope_type": "longrope", "short_factor": [1.0, 1.1, 1.3, 1.5], "long_factor": [1.0, 2.0, 4.0, 6.0],
        "original_max_position_embeddings": 2048, "rope_theta": 10000.0}
MHA = {k: v for k, v in SIZES.items() if k != "num_key_value_heads"}
MODELS = {
    "llama": ("llama", dict(SIZES, num_hidden_layers=1)),
    "llama3": ("llama", dict(SIZES, rope_parameters=LLAMA3, tie_word_embeddings=True)),
    "mistral": ("mistral", dict(SIZES, sliding_window=16, head_dim=8)),
    "qwen2": ("qwen2", dict(SIZES, use_sliding_window=False)),
    "qwen2_yarn": ("qwen2", dict(SIZES, use_sliding_window=False, rope_parameters=YARN)),
    "qwen3": ("qwen3", dict(SIZES, head_dim=16, tie_word_embeddings=True)),
    "gemma2": ("gemma2", dict(SIZES, head_dim=16, sliding_window=16, query_pre_attn_scalar=32,
                              attn_logit_softcapping=50.0, final_logit_softcapping=30.0)),
    "gemma3": ("gemma3_text", dict(SIZES, num_hidden_layers=6, head_dim=16, sliding_window=16,
                                   query_pre_attn_scalar=16)),
    "phi3": ("phi3", dict(SIZES, rope_parameters=LONG)),
    "gpt2": ("gpt2", dict(n_embd=64, n_inner=172, n_layer=2, n_head=8, vocab_size=512, n_positions=2048,
                          bos_token_id=1, eos_token_id=2)),
    "gpt_neox": ("gpt_neox", dict(MHA, rotary_pct=0.5)),
    "gpt_neox_sequential": ("gpt_neox", dict(MHA, rotary_pct=1.0, use_parallel_residual=False)),
}
PROMPTS = [1, 7, 40, 300, 1200, 2000]
GREEDY_PROMPT, GREEDY_TOKENS = 5, 200
KEPT_LOGITS = 24


def mix(x):
    """splitmix64 of an array of uint64."""
    with np.errstate(over="ignore"):
        z = x * np.uint64(0x9E3779B97F4A7C15) + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def values(tensor, count, scale, shift):
    """shift + scale * u in float32, u in [-1, 1) with 24 bits, of element i of tensor number `tensor`."""
    counter = np.arange(count, dtype=np.uint64) + np.uint64(tensor << 32)
    u = ((mix(counter) >> np.uint64(40)).astype(np.float32) - np.float32(2 ** 23)) / np.float32(2 ** 23)
    return u * np.float32(scale) + np.float32(shift)


def tokens_of(length, vocabulary):
    return [int(t) for t in mix(np.arange(length, dtype=np.uint64) + np.uint64(length << 40)) % vocabulary]


def distribution(name, shape, gemma):
    """(scale, shift) of a tensor: layers stay alive, logits have a spread of a few units."""
    if len(shape) == 1:
        if name.endswith("bias"):
            return 0.1, 0.0
        return 0.2, 0.0 if gemma else 1.0
    if "wte" in name or "wpe" in name or "embed" in name:
        return 1.0, 0.0
    fan_in = shape[0] if ".c_" in name else shape[1]
    return float(np.float32(np.sqrt(3.0 / fan_in) * (2.0 if "head" in name or "embed_out" in name else 1.0))), 0.0


def compute(name):
    kind, fields = MODELS[name]
    config = transformers.AutoConfig.for_model(kind, **fields)
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config).to(torch.float32).eval()
    tensors = []
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    with torch.no_grad():
        for key, tensor in model.state_dict().items():
            if key in tied or key.endswith(("masked_bias", ".attn.bias", "inv_freq")):
                continue
            shape = list(tensor.shape)
            scale, shift = distribution(key, shape, kind.startswith("gemma"))
            stored = "embed_out.weight" if (kind, key) == ("gpt_neox", "lm_head.weight") else key  # as files name it
            tensors.append({"name": stored, "shape": shape, "scale": scale, "shift": shift})
            data = values(len(tensors) - 1, int(np.prod(shape)), scale, shift).reshape(shape)
            tensor.copy_(torch.from_numpy(data))
    rows = []
    for length in PROMPTS:
        prompt = tokens_of(length, config.vocab_size)
        with torch.no_grad():
            last = model(torch.tensor([prompt])).logits[0, -1].numpy()
        kept = [int(i) for i in mix(np.arange(KEPT_LOGITS, dtype=np.uint64)) % config.vocab_size]
        rows.append({"length": length, "largest": float(np.abs(last).max()), "argmax": int(last.argmax()),
                     "indices": kept, "logits": [float(np.float32(last[i])) for i in kept]})
    ids, margins = tokens_of(GREEDY_PROMPT, config.vocab_size), []
    with torch.no_grad():
        cache = None
        step = ids
        for _ in range(GREEDY_TOKENS):
            out = model(torch.tensor([step]), past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            top = torch.topk(out.logits[0, -1], 2)
            margins.append(float(top.values[0] - top.values[1]))
            step = [int(top.indices[0])]
            ids.append(step[0])
    raw = json.loads(config.to_json_string(use_diff=False))
    wanted = set(fields) | {"model_type", "rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "hidden_act",
                            "hidden_activation", "activation_function", "rope_theta", "rope_scaling",
                            "rope_parameters", "tie_word_embeddings", "layer_types", "rope_local_base_freq",
                            "partial_rotary_factor", "rotary_emb_base", "use_parallel_residual",
                            "attention_bias", "sliding_window_pattern"}
    return {"source": f"transformers {transformers.__version__}, torch {torch.__version__}",
            "config": {k: v for k, v in sorted(raw.items()) if k in wanted and v is not None},
            "tensors": tensors, "rows": rows,
            "greedy": {"prompt": GREEDY_PROMPT, "ids": ids[GREEDY_PROMPT:], "least_margin": min(margins)}}


def differs(old, new):
    if old["config"] != new["config"] or old["tensors"] != new["tensors"]:
        return "config or tensors"
    if [a["length"] for a in old["rows"]] != [b["length"] for b in new["rows"]]:
        return "lengths of the prompts"
    for a, b in zip(old["rows"], new["rows"]):
        error = max(abs(x - y) for x, y in zip(a["logits"], b["logits"]))
        if error > 2e-5 * a["largest"]:
            return f"logits of {a['length']} tokens by {error}"
    return "greedy tokens" if old["greedy"]["ids"] != new["greedy"]["ids"] else None


def main():
    folder = pathlib.Path(__file__).resolve().parents[2] / "src/model/testdata"
    names = [a for a in sys.argv[1:] if a != "--write"] or list(MODELS)
    failed = 0
    for name in names:
        result = compute(name)
        path = folder / f"{name}.json"
        if "--write" not in sys.argv:
            problem = differs(json.loads(path.read_text()), result)
            failed += problem is not None
            print(f"{name}: {'differs: ' + problem if problem else 'as committed'}")
            continue
        path.write_text(json.dumps(result, separators=(",", ":")).replace('{"name"', '\n{"name"') + "\n")
        print(f"{name}: {path.stat().st_size} bytes, least margin {result['greedy']['least_margin']:.4g}")
    print(f"{len(names)} models, {failed} differ from the committed files")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
