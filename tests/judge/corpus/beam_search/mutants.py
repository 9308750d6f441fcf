"""NumPy mutants of beam search; see mutants.cc.

  MUTANT(np_prompt_counted, "the prompt counts in the length")
  MUTANT(np_reversed_ties, "argsort turned round: ties go to the later one")
  MUTANT(np_half, "log-probabilities in float16")
  MUTANT(np_stops_when_full, "stops as soon as K have ended")
  MUTANT(np_parent_modulo, "parent and token exchanged: divided by the number of beams")
  MUTANT(np_beams_not_reordered, "states are not taken from the parents")
  MUTANT(np_eos_masked_after, "an ended beam stays in its place, its score set to -inf")
  MUTANT(np_batch_maximum, "the softmax is taken over all beams at once")
"""
import numpy as np


def log_softmax(rows, bug):
    if np.isnan(rows).any():
        raise ValueError("NaN")
    rows = rows.astype(np.float64)
    axis = None if bug == "np_batch_maximum" else 1
    top = rows.max(axis=axis, keepdims=True)
    safe = np.where(np.isneginf(top), 0, top)
    with np.errstate(divide="ignore"):
        values = rows - safe - np.log(np.exp(rows - safe).sum(axis=axis, keepdims=True))
    values = np.where(np.isneginf(rows), -np.inf, values)
    return values.astype(np.float16).astype(np.float64) if bug == "np_half" else values


def search(bug, start, prompt, vocab, beams, max_tokens, min_tokens, alpha, logits, next, eos):
    states, sums, texts, pool = np.array([start]), np.zeros(1), [[]], []
    places = beams
    for g in range(1, max_tokens + 1):
        total = sums[:, None] + log_softmax(logits[states], bug)
        if g <= min_tokens:
            total[:, eos] = -np.inf
        flat = total.ravel()
        order = np.argsort(-flat, kind="stable")
        if bug == "np_reversed_ties":
            order = np.argsort(flat, kind="stable")[::-1]
        order = order[~np.isneginf(flat[order])]
        last, chosen = g == max_tokens, []
        for rank, i in enumerate(order):
            parent, token = (i % len(states), i // len(states)) if bug == "np_parent_modulo" else divmod(i, vocab)
            ends = token in eos
            if ends or last:
                if rank < beams:
                    length = g + (prompt if bug == "np_prompt_counted" else 0)
                    pool.append((flat[i] / length ** alpha, texts[parent] + [token], flat[i], 1 if ends else 2))
                    if bug == "np_eos_masked_after":
                        places = max(1, places - 1)
            elif len(chosen) < (places if bug == "np_eos_masked_after" else beams):
                chosen.append((parent, token, flat[i]))
        pool = sorted(pool, key=lambda t: -t[0])[:beams]
        if not chosen or last:
            break
        parents, tokens, sums = (np.array(x) for x in zip(*chosen))
        texts = [texts[p] + [t] for p, t in zip(parents, tokens)]
        source = np.minimum(np.arange(len(parents)), len(states) - 1) if bug == "np_beams_not_reordered" else parents
        states = next[states[source], tokens]
        if len(pool) == beams:
            reach = sums[0] / (max_tokens if alpha > 0 else g) ** alpha
            if bug == "np_stops_when_full" or reach <= pool[-1][0]:
                break
    return pool


def run(bug, prompts, states, vocab, beams, max_tokens, min_tokens, eos_count, length_penalty, logits, next, start,
        prompt_tokens, eos):
    if beams < 1:
        raise ValueError("beams")
    tokens = np.full((prompts, beams, max_tokens), -1, np.int32)
    lengths, finish = np.zeros((2, prompts, beams), np.int32)
    sums, scores = np.zeros((2, prompts, beams), np.float32)
    for p in range(prompts):
        found = search(bug, start[p], prompt_tokens[p], vocab, beams, max_tokens, min_tokens, float(length_penalty),
                       logits, next, eos)
        for b, (score, text, total, how) in enumerate(found):
            tokens[p, b, : len(text)] = text
            lengths[p, b], finish[p, b], sums[p, b], scores[p, b] = len(text), how, total, score
    return tokens, lengths, finish, sums, scores


for _bug in [line.split("(")[1].split(",")[0] for line in __doc__.splitlines() if "MUTANT(" in line]:
    globals()[f"beam_search__{_bug}"] = lambda *a, b=_bug: run(b, *a)
