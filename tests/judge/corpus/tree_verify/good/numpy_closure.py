"""Ancestors as powers of a matrix of parents; a row is a table that is sorted once, in float64."""
import numpy as np


def philox(seed, position, purpose, draw):
    word = lambda v: int(v) & 0xFFFFFFFF
    c, key = np.array([position, 0, purpose, draw], object), (word(seed), 0)
    for _ in range(10):
        high, low = divmod(0xD2511F53 * c[0], 1 << 32)
        other_high, other_low = divmod(0xCD9E8D57 * c[2], 1 << 32)
        c = np.array([other_high ^ c[1] ^ key[0], other_low, high ^ c[3] ^ key[1], low], object)
        key = (word(key[0] + 0x9E3779B9), word(key[1] + 0xBB67AE85))
    return ((int(c[1]) << 32 | int(c[0])) // 4096 + 0.5) / 2.0**52


def closure(parent):
    reach = np.eye(len(parent), dtype=bool)
    step = np.zeros_like(reach)
    inner = np.flatnonzero(parent >= 0)
    step[inner, parent[inner]] = True
    while step.any():
        reach, step = reach | (step @ reach), step @ step
    return reach


def first_above(mass, u):
    sums = mass.cumsum()
    return min(int((sums <= u * sums[-1]).sum()), int(np.flatnonzero(mass)[-1]))


class Row:
    def __init__(self, value, temperature, top_k):
        self.value, vocab = value, len(value)
        self.top = value.max()
        self.weight = np.exp((value - self.top) / (temperature if temperature else 1.0))
        ranked = np.lexsort((np.arange(vocab), -value))
        self.kept = np.arange(vocab)
        if temperature == 0:
            self.kept = ranked[:1]
        elif 0 < top_k < vocab:
            self.kept = ranked[:top_k]
        self.p = np.zeros(vocab)
        self.p[self.kept] = self.weight[self.kept] if temperature else 1.0
        self.p /= self.p.sum()

    def own(self, u):
        return int(self.kept[first_above(self.p[self.kept], u)])


def tree_verify(requests, nodes, vocab, steps, tree_words, mask_words, history_tokens, capacity, width, rule, top_k,
                eos, temperature, penalty, logits, draft, allowed, first, tokens, parents, lengths, limits, seeds,
                history, cache):
    if temperature < 0 or np.isnan(temperature):
        raise ValueError("temperature")
    path, emitted = np.full((requests, steps), -1, np.int32), np.full((requests, steps + 1), -1, np.int32)
    accepted, finish = np.zeros(requests, np.int32), np.zeros(requests, np.int32)
    scores = np.zeros(emitted.shape, np.float32)
    positions, bits = np.zeros(nodes, np.int32), np.zeros((nodes, 32 * tree_words), bool)
    after = np.zeros_like(cache)
    for r in range(requests):
        own = slice(int(first[r]), int(first[r + 1]))
        parent, token = parents[own], tokens[own]
        count = len(parent)
        if (parent < -1).any() or (parent >= np.arange(count)).any() or (token < 0).any() or (token >= vocab).any():
            raise ValueError("tree")
        reach = closure(parent)
        depth = reach.sum(axis=1)
        if (depth > steps).any():
            raise ValueError("depth")
        bits[own, :count] = reach
        positions[own] = lengths[r] + depth - 1
        past = history[r][history[r] >= 0]
        walk, out, node = [], [], -1
        while True:
            row = r if node < 0 else requests + own.start + node
            if np.isnan(logits[row]).any():
                raise ValueError("NaN")
            seen = np.bincount(np.concatenate([past, token[walk]]).astype(int), minlength=vocab)
            value = logits[row].astype(float) - float(penalty) * seen
            if mask_words:
                open_ = np.unpackbits(allowed[row].view(np.uint8), bitorder="little")[:vocab]
                value = np.where(open_ == 1, value, -np.inf)
            if np.isneginf(value).all():
                finish[r] = 3
                break
            table, place = Row(value, temperature, top_k), int(lengths[r]) + len(walk)
            children, child = np.flatnonzero(parent == node), None
            if rule == 0:
                chosen = table.own(philox(seeds[r], place, 0, 0))
                child = next((n for n in children if token[n] == chosen), None)
            else:
                p, q = table.p, draft[row].astype(float)
                for j, n in enumerate(children):
                    if philox(seeds[r], place, 1, j) * q[token[n]] < p[token[n]]:
                        child, chosen = n, int(token[n])
                        break
                    p = (p - q).clip(min=0)
                    p = p / p.sum()
                if child is None:
                    chosen = first_above(p, philox(seeds[r], place, 2, 0))
            scores[r, len(out)] = (value[chosen] - table.top) / (temperature or 1.0) - np.log(table.weight.sum())
            out.append(chosen)
            if child is not None:
                walk.append(int(child))
            finish[r] = 1 if chosen == eos else 2 if len(out) == limits[r] else 0
            if finish[r] or child is None:
                break
            node = int(child)
        accepted[r], path[r, : len(walk)], emitted[r, : len(out)] = len(walk), walk, out
        rows = np.concatenate([np.arange(lengths[r]), lengths[r] + np.array(walk, int)])
        after[r, : len(rows)] = cache[r, rows]
    packed = np.packbits(bits.reshape(nodes, tree_words, 4, 8), axis=-1, bitorder="little")
    return path, accepted, emitted, finish, scores, positions, packed.reshape(nodes, 4 * tree_words).view(np.int32), after
