"""Scores of all beams flattened and sorted; texts as Python lists."""
import numpy as np


def log_softmax(rows):
    if np.isnan(rows).any():
        raise ValueError("NaN in a row that is reached")
    rows = rows.astype(np.float64)
    top = rows.max(axis=1, keepdims=True)
    top[np.isneginf(top)] = 0
    with np.errstate(divide="ignore"):
        return rows - top - np.log(np.exp(rows - top).sum(axis=1, keepdims=True))


def search(state, k, longest, least, alpha, logits, next, eos):
    states, sums, texts, pool = np.array([state]), np.zeros(1), [()], []
    vocab = logits.shape[1]
    for g in range(1, longest + 1):
        with np.errstate(invalid="ignore"):
            total = sums[:, None] + log_softmax(logits[states])
        total[np.isnan(total)] = -np.inf
        if g <= least:
            total[:, eos] = -np.inf
        total = total.ravel()
        order = [i for i in np.argsort(-total, kind="stable")[: k * (len(eos) + 2)] if total[i] > -np.inf]
        on = []
        for rank, i in enumerate(order):
            token, ends = i % vocab, i % vocab in eos
            if ends or g == longest:
                if rank < k:
                    pool.append((total[i] / g**alpha, texts[i // vocab] + (token,), total[i], 1 if ends else 2))
            elif len(on) < k:
                on.append(i)
        pool = sorted(pool, key=lambda t: -t[0])[:k]
        if not on or g == longest:
            break
        on = np.array(on)
        texts = [texts[i // vocab] + (i % vocab,) for i in on]
        states, sums = next[states[on // vocab], on % vocab], total[on]
        if len(pool) == k and sums[0] / (longest if alpha > 0 else g) ** alpha <= pool[-1][0]:
            break
    return pool


def beam_search(prompts, states, vocab, beams, max_tokens, min_tokens, eos_count, length_penalty, logits, next, start,
                prompt_tokens, eos):
    if beams < 1:
        raise ValueError("beams")
    tokens = np.full((prompts, beams, max_tokens), -1, np.int32)
    lengths, finish = np.zeros((prompts, beams), np.int32), np.zeros((prompts, beams), np.int32)
    sums, scores = np.zeros((prompts, beams), np.float32), np.zeros((prompts, beams), np.float32)
    for p in range(prompts):
        found = search(start[p], beams, max_tokens, min_tokens, float(length_penalty), logits, next, eos)
        for b, (score, text, total, how) in enumerate(found):
            tokens[p, b, : len(text)] = text
            lengths[p, b], finish[p, b], sums[p, b], scores[p, b] = len(text), how, total, score
    return tokens, lengths, finish, sums, scores
