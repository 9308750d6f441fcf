"""Arrays that grow by concatenation, one pair for each layer and sequence; float64 attention."""
import numpy as np


class Cache:
    def __init__(self, layers, sequences, kv_heads, head_dim, max_tokens):
        self.empty = np.zeros((0, kv_heads, head_dim), np.float32)
        self.limit = max_tokens
        self.store = [[(self.empty, self.empty) for _ in range(sequences)] for _ in range(layers)]

    def get(self, layer, sequence):
        if not (0 <= layer < len(self.store) and 0 <= sequence < len(self.store[0])):
            raise IndexError((layer, sequence))
        return self.store[layer][sequence]


def kv_cache_create(layers, sequences, kv_heads, head_dim, max_tokens):
    return Cache(layers, sequences, kv_heads, head_dim, max_tokens)


def kv_cache_append(cache, layer, count, total_tokens, sequence, tokens, k, v):
    cache.get(layer, 0)
    for s, n in zip(sequence, tokens):
        if len(cache.get(layer, s)[0]) + n > cache.limit:
            raise ValueError("over max_tokens")
    at = 0
    for s, n in zip(sequence, tokens):
        old_k, old_v = cache.get(layer, s)
        cache.store[layer][s] = (np.concatenate([old_k, k[at:at + n]]),
                                 np.concatenate([old_v, v[at:at + n]]))
        at += n


def kv_cache_attend(cache, layer, count, total_tokens, query_heads, scale, sequence, tokens, q):
    cache.get(layer, 0)
    out = np.zeros(q.shape, np.float32)
    for s, m in zip(sequence, tokens):
        if m > len(cache.get(layer, s)[0]):
            raise ValueError("more queries than tokens")
    at = 0
    for s, m in zip(sequence, tokens):
        k, v = (a.astype(np.float64) for a in cache.get(layer, s))
        n = len(k)
        if m:
            repeat = query_heads // k.shape[1]
            k, v = np.repeat(k, repeat, axis=1), np.repeat(v, repeat, axis=1)
            scores = np.einsum("mhd,nhd->hmn", q[at:at + m].astype(np.float64), k) * scale
            hidden = np.arange(n)[None, :] > np.arange(n - m, n)[:, None]
            scores[:, hidden] = -np.inf
            # Where NaN or infinity has spoilt this sequence the numbers say so by themselves.
            with np.errstate(all="ignore"):
                w = np.exp(scores - scores.max(axis=2, keepdims=True))
                w /= w.sum(axis=2, keepdims=True)
            out[at:at + m] = np.einsum("hmn,nhd->mhd", w, v)
        at += m
    return out


def kv_cache_fork(cache, parent, child):
    cache.get(0, parent), cache.get(0, child)
    for layer in cache.store:
        layer[child] = layer[parent]


def kv_cache_free(cache, sequence):
    cache.get(0, sequence)
    for layer in cache.store:
        layer[sequence] = (cache.empty, cache.empty)


def kv_cache_length(cache, layer, sequence):
    try:
        return len(cache.get(layer, sequence)[0])
    except IndexError:
        return -1


def kv_cache_destroy(cache):
    cache.store.clear()
