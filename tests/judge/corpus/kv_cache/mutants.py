"""NumPy mutants of the KV cache; see mutants.cc.

  MUTANT(np_list_times, "sequences are one list, repeated: [[]] * n")
  MUTANT(np_class_attribute, "the store is an attribute of the class")
  MUTANT(np_tril, "np.tril without the offset of the prefix")
  MUTANT(np_mask_zero, "hidden scores are 0 instead of -inf")
  MUTANT(np_mask_after, "masks after the softmax and does not normalise again")
  MUTANT(np_tile_heads, "np.tile instead of np.repeat for grouped heads")
  MUTANT(np_scale_root, "divides by sqrt(dim) whatever the scale")
  MUTANT(np_fork_alias, "parent and child share one list")
  MUTANT(np_half_store, "stores float16")
  MUTANT(np_check_late, "notices that it is full after it has stored")
  MUTANT(np_reshape_heads, "reshapes [tokens, heads] to [heads, tokens] instead of transposing")
"""
import numpy as np


class Cache:
    shared = {}

    def __init__(self, bug, layers, sequences, kv_heads, head_dim, max_tokens):
        self.bug, self.layers, self.sequences = bug, layers, sequences
        self.shape, self.limit = (kv_heads, head_dim), max_tokens
        if bug == "np_class_attribute":
            self.store = Cache.shared
        else:
            self.store = {}
        for layer in range(layers):
            rows = [[]] * sequences if bug == "np_list_times" else [[] for _ in range(sequences)]
            for s in range(sequences):
                self.store.setdefault((layer, s), rows[s])

    def get(self, layer, sequence):
        if not (0 <= layer < self.layers and 0 <= sequence < self.sequences):
            raise IndexError
        return self.store[layer, int(sequence)]


def append(bug, cache, layer, count, total, sequence, tokens, k, v):
    cache.get(layer, 0)
    full = [len(cache.get(layer, s)) + n > cache.limit for s, n in zip(sequence, tokens)]
    if any(full) and bug != "np_check_late":
        raise MemoryError
    at = 0
    for s, n in zip(sequence, tokens):
        for t in range(at, at + n):
            pair = k[t], v[t]
            if bug == "np_half_store":
                pair = k[t].astype(np.float16), v[t].astype(np.float16)
            cache.get(layer, s).append(tuple(map(np.array, pair)))
        at += n
    if any(full):
        raise MemoryError


def attend(bug, cache, layer, count, total, query_heads, scale, sequence, tokens, q):
    cache.get(layer, 0)
    if any(m > len(cache.get(layer, s)) for s, m in zip(sequence, tokens)):
        raise ValueError
    out, at = np.zeros(q.shape, np.float32), 0
    for s, m in zip(sequence, tokens):
        held = cache.get(layer, s)
        if m == 0:
            continue
        k, v = (np.array([pair[i] for pair in held], np.float64) for i in (0, 1))
        n, group = len(held), query_heads // cache.shape[0]
        if bug == "np_tile_heads":
            k, v = np.tile(k, (1, group, 1)), np.tile(v, (1, group, 1))
        else:
            k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
        if bug == "np_reshape_heads":
            k = k.reshape(query_heads, n, -1).swapaxes(0, 1)
        factor = 1 / np.sqrt(cache.shape[1]) if bug == "np_scale_root" else scale
        scores = np.einsum("mhd,nhd->hmn", q[at:at + m].astype(np.float64), k) * factor
        seen = np.tril(np.ones((m, n), bool), 0 if bug == "np_tril" else n - m)
        with np.errstate(all="ignore"):
            hidden = 0 if bug == "np_mask_zero" else -np.inf
            masked = scores if bug == "np_mask_after" else np.where(seen, scores, hidden)
            w = np.exp(masked - masked.max(axis=2, keepdims=True))
            w /= w.sum(axis=2, keepdims=True)
            if bug == "np_mask_after":
                w = np.where(seen, w, 0)
            out[at:at + m] = np.einsum("hmn,nhd->mhd", w, v)
        at += m
    return out


def fork(bug, cache, parent, child):
    cache.get(0, parent), cache.get(0, child)
    for layer in range(cache.layers):
        held = cache.get(layer, parent)
        cache.store[layer, child] = held if bug == "np_fork_alias" else list(held)


def free(bug, cache, sequence):
    cache.get(0, sequence)
    for layer in range(cache.layers):
        cache.store[layer, sequence] = []


def length(bug, cache, layer, sequence):
    try:
        return len(cache.get(layer, sequence))
    except IndexError:
        return -1


def held_bytes(cache):
    arrays = {id(a): a.nbytes for rows in cache.store.values() for pair in rows for a in pair}
    return sum(arrays.values())


for _bug in [line.split("(")[1].split(",")[0] for line in __doc__.splitlines() if "MUTANT(" in line]:
    globals()[f"kv_cache_create__{_bug}"] = lambda *a, b=_bug: Cache(b, *a)
    globals()[f"kv_cache_append__{_bug}"] = lambda *a, b=_bug: append(b, *a)
    globals()[f"kv_cache_attend__{_bug}"] = lambda *a, b=_bug: attend(b, *a)
    globals()[f"kv_cache_fork__{_bug}"] = lambda *a, b=_bug: fork(b, *a)
    globals()[f"kv_cache_free__{_bug}"] = lambda *a, b=_bug: free(b, *a)
    globals()[f"kv_cache_length__{_bug}"] = lambda *a, b=_bug: length(b, *a)
    globals()[f"kv_cache_bytes__{_bug}"] = held_bytes
    globals()[f"kv_cache_destroy__{_bug}"] = lambda cache: None
