"""One array for everything, filled from the front; float32 attention, query by query."""
import numpy as np


def kv_cache_create(layers, sequences, kv_heads, head_dim, max_tokens):
    return {"kv": np.zeros((layers, sequences, 2, kv_heads, max_tokens, head_dim), np.float32),
            "length": np.zeros((layers, sequences), np.int64)}


def check(cache, layer, sequence):
    layers, sequences = cache["length"].shape
    if not 0 <= layer < layers or not 0 <= sequence < sequences:
        raise KeyError("no such layer or sequence")


def kv_cache_append(cache, layer, count, total_tokens, sequence, tokens, k, v):
    check(cache, layer, 0)
    for s, n in zip(sequence.tolist(), tokens.tolist()):
        check(cache, layer, s)
        if cache["length"][layer, s] + n > cache["kv"].shape[4]:
            raise MemoryError("full")
    at = 0
    for s, n in zip(sequence.tolist(), tokens.tolist()):
        first = cache["length"][layer, s]
        cache["kv"][layer, s, 0, :, first:first + n] = k[at:at + n].swapaxes(0, 1)
        cache["kv"][layer, s, 1, :, first:first + n] = v[at:at + n].swapaxes(0, 1)
        cache["length"][layer, s] += n
        at += n


def kv_cache_attend(cache, layer, count, total_tokens, query_heads, scale, sequence, tokens, q):
    check(cache, layer, 0)
    for s, m in zip(sequence.tolist(), tokens.tolist()):
        check(cache, layer, s)
        if m > cache["length"][layer, s]:
            raise ValueError("too many queries")
    out = []
    for s, m in zip(sequence.tolist(), tokens.tolist()):
        n = int(cache["length"][layer, s])
        for t in range(n - m, n):
            k, v = cache["kv"][layer, s, :, :, :t + 1]
            row = q[len(out)].reshape(k.shape[0], -1, k.shape[2])  # [kv_heads, group, dim]
            scores = np.float32(scale) * (row @ k.swapaxes(1, 2))
            w = np.exp(scores - scores.max(axis=2, keepdims=True))
            out.append(((w @ v) / w.sum(axis=2, keepdims=True)).reshape(query_heads, -1))
    return np.array(out, np.float32).reshape(q.shape)


def kv_cache_free(cache, sequence):
    check(cache, 0, sequence)
    cache["length"][:, sequence] = 0


def kv_cache_length(cache, layer, sequence):
    layers, sequences = cache["length"].shape
    return int(cache["length"][layer, sequence]) if 0 <= layer < layers and 0 <= sequence < sequences else -1


def kv_cache_destroy(cache):
    cache.clear()
