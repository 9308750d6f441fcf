"""NumPy mutants of the verification of draft trees, see mutants.cc, and two that leave outputs out.

  MUTANT(np_depth_rows, "row d of a tree judges depth d + 1")
  MUTANT(np_own_rows, "a node is judged by its own row")
  MUTANT(np_index_positions, "positions follow the numbers of the nodes")
  MUTANT(np_full_mask, "a node attends to all nodes before it")
  MUTANT(np_big_end_bits, "packbits with the highest bit first")
  MUTANT(np_same_uniform, "one uniform for the whole walk")
  MUTANT(np_unstable_sort, "ties of the cut in reversed order")
  MUTANT(np_unique_history, "tokens that occur twice are penalized once")
  MUTANT(np_views_of_cache, "rows of the cache by depth")
  MUTANT(np_float16, "weights in float16")
  MUTANT(np_no_bonus, "stops when the last drafted token is accepted")
  MUTANT(np_residual_of_target, "the residual is not reduced")
  PARTIAL(np_no_log_probabilities, "lacks=log_probabilities", "returns None for the log-probabilities")
  PARTIAL(np_no_cache, "lacks=cache", "returns None for the cache")
"""
import numpy as np


def uniform(seed, position, purpose, draw):
    c, k = [position, 0, purpose, draw], [seed, 0]
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & 0xFFFFFFFF, (a >> 32) ^ c[3] ^ k[1], a & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return (((c[1] << 32 | c[0]) >> 12) + 0.5) * 2.0**-52


def pick(order, p, u):
    p = p[order]
    sums = np.cumsum(p)
    at = np.searchsorted(sums, u * sums[-1], side="right")
    return int(order[min(at, np.flatnonzero(p)[-1])])


def run(bug, requests, nodes, vocab, steps, tree_words, mask_words, history_tokens, capacity, width, rule, top_k,
        eos, temperature, penalty, logits, draft, allowed, first, tokens, parents, lengths, limits, seeds, history,
        cache):
    if not temperature >= 0:
        raise ValueError("temperature")
    path = np.full((requests, steps), -1, np.int32)
    accepted, finish = np.zeros(requests, np.int32), np.zeros(requests, np.int32)
    emitted = np.full((requests, steps + 1), -1, np.int32)
    scores = np.zeros((requests, steps + 1), np.float32)
    positions = np.zeros(nodes, np.int32)
    bits = np.zeros((nodes, tree_words * 32), bool)
    after = np.zeros_like(cache)
    for r in range(requests):
        begin, count = first[r], first[r + 1] - first[r]
        children, depth = {-1: []}, []
        for n in range(count):
            parent = int(parents[begin + n])
            if not -1 <= parent < n or not 0 <= tokens[begin + n] < vocab:
                raise ValueError("tree")
            children[parent].append(n)
            children[n] = []
            depth.append(1 if parent < 0 else depth[parent] + 1)
            if depth[n] > steps:
                raise ValueError("depth")
            if parent >= 0:
                bits[begin + n] = bits[begin + parent]
            bits[begin + n, n] = True
            if bug == "np_full_mask":
                bits[begin + n, :n] = True
            positions[begin + n] = lengths[r] + (n if bug == "np_index_positions" else depth[n] - 1)
        seen = np.zeros(vocab)
        if bug == "np_unique_history":
            seen[history[r][history[r] >= 0]] += 1
        else:
            np.add.at(seen, history[r][history[r] >= 0], 1)
        node, kept, seed = -1, [], int(seeds[r])
        for step in range(steps + 1):
            row = r if node < 0 else requests + begin + (step - 1 if bug == "np_depth_rows" else node)
            if bug == "np_own_rows" and children[node]:
                row = requests + begin + children[node][0]
            value = logits[row].astype(np.float64) - float(penalty) * seen
            if np.isnan(value).any():
                raise ValueError("NaN")
            if mask_words:
                word = allowed[row].view(np.uint32)[np.arange(vocab) // 32]
                value[(word >> (np.arange(vocab) % 32).astype(np.uint32)) & 1 == 0] = -np.inf
            top = value.max()
            if np.isneginf(top):
                finish[r] = 3
                break
            weight = np.exp((value - top) / (temperature or 1.0))
            if bug == "np_float16":
                weight = weight.astype(np.float16).astype(np.float64)
            order = np.arange(vocab)
            if temperature == 0 or 0 < top_k < vocab:
                order = np.argsort(-value, kind="stable")
                if bug == "np_unstable_sort":
                    order = np.argsort(value, kind="stable")[::-1]
                order = order[: 1 if temperature == 0 else top_k]
            position, child = int(lengths[r]) + (0 if bug == "np_same_uniform" else step), -1
            if rule == 0:
                token = pick(order, weight, uniform(seed, position, 0, 0))
                child = next((n for n in children[node] if tokens[begin + n] == token), -1)
            else:
                p = np.zeros(vocab)
                p[order] = weight[order] / weight[order].sum()
                for j, n in enumerate(children[node]):
                    x = tokens[begin + n]
                    if uniform(seed, position, 1, j) * float(draft[row, x]) < p[x]:
                        child, token = n, int(x)
                        break
                    if bug != "np_residual_of_target":
                        p = np.maximum(p - draft[row], 0)
                        p /= p.sum()
                else:
                    token = pick(np.arange(vocab), p, uniform(seed, position, 2, 0))
            scores[r, step] = (value[token] - top) / (temperature or 1.0) - np.log(weight.sum())
            emitted[r, step] = token
            if child >= 0:
                kept.append(child)
                seen[token] += 1
            finish[r] = 1 if token == eos else 2 if step + 1 == limits[r] else 0
            if child < 0 or finish[r] or (bug == "np_no_bonus" and not children[child]):
                break
            node = child
        accepted[r] = len(kept)
        path[r, : len(kept)] = kept
        after[r, : lengths[r]] = cache[r, : lengths[r]]
        rows = range(len(kept)) if bug == "np_views_of_cache" else kept
        after[r, lengths[r] : lengths[r] + len(kept)] = cache[r, [lengths[r] + n for n in rows]]
    little = "big" if bug == "np_big_end_bits" else "little"
    words = np.packbits(bits, axis=1, bitorder=little).view(np.int32) if nodes else bits[:, ::32].astype(np.int32)
    scores = None if bug == "np_no_log_probabilities" else scores
    after = None if bug == "np_no_cache" else after
    return path, accepted, emitted, finish, scores, positions, words, after


for _bug in [line.split("(")[1].split(",")[0] for line in __doc__.splitlines() if line.startswith(("  MUTANT(", "  PARTIAL("))]:
    globals()[f"tree_verify__{_bug}"] = lambda *a, b=_bug: run(b, *a)
