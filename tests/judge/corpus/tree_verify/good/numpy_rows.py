"""All rows of the batch at once: ancestors as a matrix, counts as a product, then the walks."""
import numpy as np


def philox(seed, position, purpose, draw):
    """Of arrays of the same shape."""
    low = np.uint64(0xFFFFFFFF)
    c = [np.asarray(x, np.uint64) for x in (position, np.zeros_like(position), purpose, draw)]
    k = [np.asarray(seed, np.uint64), np.zeros_like(c[0])]
    for _ in range(10):
        a, b = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [(b >> np.uint64(32)) ^ c[1] ^ k[0], b & low, (a >> np.uint64(32)) ^ c[3] ^ k[1], a & low]
        k = [(k[0] + np.uint64(0x9E3779B9)) & low, (k[1] + np.uint64(0xBB67AE85)) & low]
    return (((c[1] << np.uint64(32) | c[0]) >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def tree_verify(requests, nodes, vocab, steps, tree_words, mask_words, history_tokens, capacity, width, rule, top_k,
                eos, temperature, penalty, logits, draft, allowed, first, tokens, parents, lengths, limits, seeds,
                history, cache):
    if temperature < 0:
        raise ValueError("temperature")
    owner = np.repeat(np.arange(requests), np.diff(first))
    local = np.arange(nodes) - first[:-1][owner] if nodes else np.zeros(0, np.int64)
    if (parents >= local).any() or (parents < -1).any() or (tokens < 0).any() or (tokens >= vocab).any():
        raise ValueError("tree")
    size = tree_words * 32
    ancestors = np.zeros((nodes, size), bool)
    for i in range(nodes):
        if parents[i] >= 0:
            ancestors[i] = ancestors[first[owner[i]] + parents[i]]
        ancestors[i, local[i]] = True
    depth = ancestors.sum(axis=1)
    if nodes and depth.max() > steps:
        raise ValueError("depth")
    positions = (lengths[owner] + depth - 1).astype(np.int32)
    words = np.zeros((nodes, tree_words), np.int32)
    if nodes:
        words = np.packbits(ancestors, axis=1, bitorder="little").view(np.int32)
    who = np.concatenate([np.arange(requests), owner])
    value = logits.astype(np.float64)
    if penalty != 0:
        for row in range(requests + nodes):
            r = who[row]
            seen = history[r][history[r] >= 0]
            if row >= requests:
                mine = np.flatnonzero(ancestors[row - requests]) + first[r]
                seen = np.concatenate([seen, tokens[mine]])
            value[row] -= float(penalty) * np.bincount(seen, minlength=vocab)
    broken = np.isnan(value).any(axis=1)
    if mask_words:
        bits = np.unpackbits(np.ascontiguousarray(allowed).view(np.uint8), axis=1, bitorder="little")[:, :vocab]
        value = np.where(bits == 1, value, -np.inf)
    value[broken] = 0
    top = value.max(axis=1, initial=-np.inf)
    dead = np.isneginf(top)
    heat = float(temperature) if temperature else 1.0
    with np.errstate(invalid="ignore"):
        weight = np.exp((value - top[:, None]) / heat)
    weight[dead] = 1
    log_sum = np.log(weight.sum(axis=1))
    p, order = weight.copy(), np.tile(np.arange(vocab), (requests + nodes, 1))
    cut = 1 if temperature == 0 else top_k if 0 < top_k < vocab else 0
    if cut:
        order = np.argsort(-value, axis=1, kind="stable")[:, :cut]
        p = np.zeros_like(weight)
        np.put_along_axis(p, order, np.take_along_axis(weight, order, axis=1), axis=1)
    p /= p.sum(axis=1, keepdims=True)
    at = lengths[who] + np.concatenate([np.zeros(requests, np.int64), depth])

    def pick(row, shares, u):
        sums = np.cumsum(shares)
        return min(int(np.searchsorted(sums, u * sums[-1], side="right")), int(np.flatnonzero(shares)[-1]))

    zeros = np.zeros(requests + nodes, np.int64)
    own, rest = philox(seeds[who], at, zeros, zeros), philox(seeds[who], at, zeros + 2, zeros)

    def choose(row, children):
        if rule == 0:
            token = int(order[row, pick(row, p[row, order[row]], own[row])])
            same = [n for n in children if tokens[first[who[row]] + n] == token]
            return token, same[0] if same else -1
        share = p[row]
        tried = philox(*(np.full(len(children), x[row]) for x in (seeds[who], at)), np.ones(len(children), np.int64),
                       np.arange(len(children)))
        for n, u in zip(children, tried):
            x = tokens[first[who[row]] + n]
            if u * float(draft[row, x]) < share[x]:
                return int(x), n
            share = np.maximum(share - draft[row], 0)
            share /= share.sum()
        return pick(row, share, rest[row]), -1

    path = np.full((requests, steps), -1, np.int32)
    emitted = np.full((requests, steps + 1), -1, np.int32)
    accepted, finish = np.zeros((2, requests), np.int32)
    scores = np.zeros((requests, steps + 1), np.float32)
    after = np.zeros_like(cache)
    for r in range(requests):
        row, kept = r, []
        for step in range(steps + 1):
            if broken[row]:
                raise ValueError("NaN")
            if dead[row]:
                finish[r] = 3
                break
            node = row - requests - first[r] if row >= requests else -1
            children = np.flatnonzero(parents[first[r] : first[r + 1]] == node)
            token, child = choose(row, children)
            emitted[r, step] = token
            scores[r, step] = (value[row, token] - top[row]) / heat - log_sum[row]
            if child >= 0:
                kept.append(int(child))
                row = requests + first[r] + int(child)
            if token == eos:
                finish[r] = 1
            elif step + 1 == limits[r]:
                finish[r] = 2
            if child < 0 or finish[r]:
                break
        path[r, : len(kept)] = kept
        accepted[r] = len(kept)
        rows = np.concatenate([np.arange(lengths[r]), lengths[r] + np.array(kept, np.int64)])
        after[r, : len(rows)] = cache[r, rows]
    return path, accepted, emitted, finish, scores, positions, words, after
