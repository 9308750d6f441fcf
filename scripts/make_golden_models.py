#!/usr/bin/env python3
"""Makes src/io/testdata/models: tiny random models of every family, each as a folder (PyPI `safetensors`)
and as a GGUF file (PyPI `gguf`) with the names and the layout that the usual conversion gives it.

    build/peers/bin/python scripts/make_golden_models.py    (the environment of make peers-test)

The mapping is written out here by hand, so that it is a second opinion on the table of the library.
"""
import json
import pathlib

import gguf
import numpy as np
from safetensors.numpy import save_file

ROOT = pathlib.Path(__file__).resolve().parent.parent / "src/io/testdata/models"
E, H, K, D, F, V, LAYERS, CONTEXT = 16, 4, 2, 4, 24, 12, 2, 64
rng = np.random.default_rng(7)


def weights(*shape):
    return (rng.standard_normal(shape) * 0.1).astype(np.float16)


def pairs(w, heads):
    """Rows of halves to rows of adjacent pairs, as files of the llama architecture have them."""
    d = w.shape[0] // heads
    return w.reshape(heads, 2, d // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def llama_like(family, heads=H, kv=K, d=D, qkv_bias=False, qk_norm=False, sandwich=False, fused=False,
               head=True):
    hf, g = {}, {}
    permute = pairs if family == "llama" else (lambda w, n: w)
    one = np.float32(1 if family.startswith("gemma") else 0)

    def both(hf_name, g_name, w, stored=None):
        hf[hf_name] = w
        g[g_name] = w if stored is None else stored

    def norm(hf_name, g_name, size=E):
        w = weights(size)
        both(hf_name, g_name, w, w.astype(np.float32) + one)

    both("model.embed_tokens.weight", "token_embd.weight", weights(V, E))
    norm("model.norm.weight", "output_norm.weight")
    if head:
        both("lm_head.weight", "output.weight", weights(V, E))
    for i in range(LAYERS):
        p, b = f"model.layers.{i}.", f"blk.{i}."
        norm(p + "input_layernorm.weight", b + "attn_norm.weight")
        q, k, v = weights(heads * d, E), weights(kv * d, E), weights(kv * d, E)
        if fused:
            w = np.concatenate([q, k, v])
            both(p + "self_attn.qkv_proj.weight", b + "attn_qkv.weight", w)
        else:
            both(p + "self_attn.q_proj.weight", b + "attn_q.weight", q, permute(q, heads))
            both(p + "self_attn.k_proj.weight", b + "attn_k.weight", k, permute(k, kv))
            both(p + "self_attn.v_proj.weight", b + "attn_v.weight", v)
        if qkv_bias:
            for name, n in (("q", heads), ("k", kv), ("v", kv)):
                w = weights(n * d)
                stored = permute(w, n) if name != "v" else w
                both(p + f"self_attn.{name}_proj.bias", b + f"attn_{name}.bias", w, stored.astype(np.float32))
        if qk_norm:
            norm(p + "self_attn.q_norm.weight", b + "attn_q_norm.weight", d)
            norm(p + "self_attn.k_norm.weight", b + "attn_k_norm.weight", d)
        both(p + "self_attn.o_proj.weight", b + "attn_output.weight", weights(E, heads * d))
        if sandwich:
            norm(p + "post_attention_layernorm.weight", b + "post_attention_norm.weight")
            norm(p + "pre_feedforward_layernorm.weight", b + "ffn_norm.weight")
            norm(p + "post_feedforward_layernorm.weight", b + "post_ffw_norm.weight")
        else:
            norm(p + "post_attention_layernorm.weight", b + "ffn_norm.weight")
        if fused:
            both(p + "mlp.gate_up_proj.weight", b + "ffn_up.weight", weights(2 * F, E))
        else:
            both(p + "mlp.gate_proj.weight", b + "ffn_gate.weight", weights(F, E))
            both(p + "mlp.up_proj.weight", b + "ffn_up.weight", weights(F, E))
        both(p + "mlp.down_proj.weight", b + "ffn_down.weight", weights(E, F))
    return hf, g


def layer_norm(hf, g, hf_name, g_name):
    for kind in ("weight", "bias"):
        w = weights(E)
        hf[f"{hf_name}.{kind}"] = w
        g[f"{g_name}.{kind}"] = w.astype(np.float32)


def gpt2():
    hf, g = {}, {}
    hf["transformer.wte.weight"] = g["token_embd.weight"] = weights(V, E)
    hf["transformer.wpe.weight"] = g["position_embd.weight"] = weights(CONTEXT, E)
    layer_norm(hf, g, "transformer.ln_f", "output_norm")
    for i in range(LAYERS):
        p, b = f"transformer.h.{i}.", f"blk.{i}."
        layer_norm(hf, g, p + "ln_1", b + "attn_norm")
        layer_norm(hf, g, p + "ln_2", b + "ffn_norm")
        for hf_name, g_name, out, size in (("attn.c_attn", "attn_qkv", 3 * E, E), ("attn.c_proj", "attn_output", E, E),
                                           ("mlp.c_fc", "ffn_up", 4 * E, E), ("mlp.c_proj", "ffn_down", E, 4 * E)):
            w, bias = weights(size, out), weights(out)
            hf[p + hf_name + ".weight"] = w
            g[b + g_name + ".weight"] = np.ascontiguousarray(w.T)
            hf[p + hf_name + ".bias"] = bias
            g[b + g_name + ".bias"] = bias.astype(np.float32)
        hf[p + "attn.bias"] = np.ones((1, 1, 4, 4), np.uint8)  # the mask that old files carry
    return hf, g


def gpt_neox():
    hf, g = {}, {}
    hf["gpt_neox.embed_in.weight"] = g["token_embd.weight"] = weights(V, E)
    hf["embed_out.weight"] = g["output.weight"] = weights(V, E)
    layer_norm(hf, g, "gpt_neox.final_layer_norm", "output_norm")
    for i in range(LAYERS):
        p, b = f"gpt_neox.layers.{i}.", f"blk.{i}."
        layer_norm(hf, g, p + "input_layernorm", b + "attn_norm")
        layer_norm(hf, g, p + "post_attention_layernorm", b + "ffn_norm")
        w, bias = weights(3 * E, E), weights(3 * E)
        hf[p + "attention.query_key_value.weight"], hf[p + "attention.query_key_value.bias"] = w, bias
        g[b + "attn_qkv.weight"] = w.reshape(H, 3, D, E).swapaxes(0, 1).reshape(3 * E, E)
        g[b + "attn_qkv.bias"] = bias.reshape(H, 3, D).swapaxes(0, 1).reshape(3 * E).astype(np.float32)
        for hf_name, g_name, out, size in (("attention.dense", "attn_output", E, E),
                                           ("mlp.dense_h_to_4h", "ffn_up", F, E),
                                           ("mlp.dense_4h_to_h", "ffn_down", E, F)):
            w, bias = weights(out, size), weights(out)
            hf[p + hf_name + ".weight"] = g[b + g_name + ".weight"] = w
            hf[p + hf_name + ".bias"] = bias
            g[b + g_name + ".bias"] = bias.astype(np.float32)
    return hf, g


COMMON = {"hidden_size": E, "intermediate_size": F, "num_hidden_layers": LAYERS, "num_attention_heads": H,
          "num_key_value_heads": K, "head_dim": D, "vocab_size": V, "max_position_embeddings": CONTEXT,
          "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "float16"}


def keys(arch, **more):
    base = {"context_length": CONTEXT, "embedding_length": E, "block_count": LAYERS, "feed_forward_length": F,
            "attention.head_count": H, "attention.head_count_kv": K, "attention.key_length": D,
            "attention.value_length": D, "rope.dimension_count": D}
    base.update(more)
    return {f"{arch}.{k}": v for k, v in base.items()}


def models():
    rms = {"attention.layer_norm_rms_epsilon": 1e-5}
    yield ("llama", "llama", llama_like("llama"), dict(COMMON, model_type="llama", rms_norm_eps=1e-5, rope_theta=5e5),
           keys("llama", **rms, **{"rope.freq_base": 5e5}))
    yield ("mistral", "llama", llama_like("llama", qkv_bias=True),
           dict(COMMON, model_type="mistral", rms_norm_eps=1e-5, sliding_window=None),
           keys("llama", **rms, **{"rope.freq_base": 1e4}))
    yield ("qwen2", "qwen2", llama_like("qwen2", qkv_bias=True, head=False),
           dict(COMMON, model_type="qwen2", rms_norm_eps=1e-5, rope_theta=1e6, tie_word_embeddings=True,
                use_sliding_window=False, sliding_window=8, max_window_layers=1),
           keys("qwen2", **rms, **{"rope.freq_base": 1e6}))
    yield ("qwen3", "qwen3", llama_like("qwen3", qk_norm=True), dict(COMMON, model_type="qwen3", rms_norm_eps=1e-5),
           keys("qwen3", **rms, **{"rope.freq_base": 1e4}))
    yield ("gemma2", "gemma2", llama_like("gemma2", sandwich=True, head=False),
           dict(COMMON, model_type="gemma2", rms_norm_eps=1e-5, sliding_window=16, query_pre_attn_scalar=D,
                attn_logit_softcapping=50.0, final_logit_softcapping=30.0),
           keys("gemma2", **rms, **{"rope.freq_base": 1e4, "attention.sliding_window": 16,
                                    "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}))
    yield ("gemma3", "gemma3", llama_like("gemma3", sandwich=True, qk_norm=True, head=False),
           dict(COMMON, model_type="gemma3_text", rms_norm_eps=1e-5, sliding_window=16, query_pre_attn_scalar=D,
                rope_theta=1e6, rope_local_base_freq=1e4, rope_scaling={"rope_type": "linear", "factor": 8.0}),
           keys("gemma3", **rms, **{"rope.freq_base": 1e6, "attention.sliding_window": 16,
                                    "rope.scaling.type": "linear", "rope.scaling.factor": 8.0}))
    yield ("phi3", "phi3", llama_like("phi3", fused=True),
           dict(COMMON, model_type="phi3", rms_norm_eps=1e-5, sliding_window=32),
           keys("phi3", **rms, **{"rope.freq_base": 1e4, "attention.sliding_window": 32}))
    yield ("gpt2", "gpt2", gpt2(), {"model_type": "gpt2", "n_embd": E, "n_head": H, "n_layer": LAYERS,
                                    "n_positions": CONTEXT, "vocab_size": V, "bos_token_id": 1, "eos_token_id": 2},
           {k: v for k, v in keys("gpt2", **{"attention.layer_norm_epsilon": 1e-5, "feed_forward_length": 4 * E,
                                             "attention.head_count_kv": H}).items() if "rope" not in k})
    neox = {k: v for k, v in COMMON.items() if k not in ("num_key_value_heads", "head_dim")}
    yield ("gpt_neox", "gptneox", gpt_neox(), dict(neox, model_type="gpt_neox", layer_norm_eps=1e-5, rotary_pct=0.5,
                                                   hidden_act="gelu", use_parallel_residual=True),
           keys("gptneox", **{"attention.layer_norm_epsilon": 1e-5, "attention.head_count_kv": H,
                              "rope.dimension_count": D // 2, "rope.freq_base": 1e4, "use_parallel_residual": True}))


def main():
    for name, arch, (hf, tensors), config, metadata in models():
        folder = ROOT / name
        folder.mkdir(parents=True, exist_ok=True)
        save_file(hf, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "model.safetensors").chmod(0o644)
        (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
        writer = gguf.GGUFWriter(ROOT / f"{name}.gguf", arch)
        for key, value in metadata.items():
            if isinstance(value, bool):
                writer.add_bool(key, value)
            elif isinstance(value, int):
                writer.add_uint32(key, value)
            elif isinstance(value, float):
                writer.add_float32(key, value)
            else:
                writer.add_string(key, value)
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        for tensor, data in tensors.items():
            writer.add_tensor(tensor, np.ascontiguousarray(data))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


if __name__ == "__main__":
    main()
