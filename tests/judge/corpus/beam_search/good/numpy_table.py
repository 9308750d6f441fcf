"""The table is normalized once for the states that are reached; a heap merges the sorted rows of the beams."""
import heapq

import numpy as np


def beam_search(prompts, states, vocab, beams, max_tokens, min_tokens, eos_count, length_penalty, logits, next, start,
                prompt_tokens, eos):
    if beams < 1:
        raise ValueError("beams")
    known = {}

    def row(state):
        if state not in known:
            v = logits[state].astype(np.float64)
            if np.isnan(v).any():
                raise ValueError("NaN")
            top = v.max()
            if np.isneginf(top):
                known[state] = (v, [])
            else:
                v = v - top - np.log(np.exp(v - top).sum())
                known[state] = (v, np.argsort(-v, kind="stable"))
        return known[state]

    def continuations(number, beam, endings):
        values, order = row(beam[2])
        for token in order:
            if np.isneginf(values[token]):
                return
            if endings or token not in eos:
                yield (-(beam[0] + values[token]), number, int(token))

    alpha = float(length_penalty)
    out = (np.full((prompts, beams, max_tokens), -1, np.int32), np.zeros((prompts, beams), np.int32),
           np.zeros((prompts, beams), np.int32), np.zeros((prompts, beams), np.float32),
           np.zeros((prompts, beams), np.float32))
    for p in range(prompts):
        running, pool = [(0.0, (), int(start[p]))], []
        for g in range(1, max_tokens + 1):
            on = []
            merged = heapq.merge(*(continuations(i, b, g > min_tokens) for i, b in enumerate(running)))
            for rank, (negative, parent, token) in enumerate(merged):
                last, ends = g == max_tokens, token in eos
                if rank >= beams and (last or len(on) == beams):
                    break
                text = running[parent][1] + (token,)
                if ends or last:
                    if rank < beams:
                        pool.append((-negative / g**alpha, text, -negative, 1 if ends else 2))
                elif len(on) < beams:
                    on.append((-negative, text, int(next[running[parent][2], token])))
            pool.sort(key=lambda t: -t[0])
            del pool[beams:]
            running = on
            if not running:
                break
            if len(pool) == beams and running[0][0] / (max_tokens if alpha > 0 else g) ** alpha <= pool[-1][0]:
                break
        for b, (score, text, total, how) in enumerate(pool):
            out[0][p, b, : len(text)] = text
            out[1][p, b], out[2][p, b], out[3][p, b], out[4][p, b] = len(text), how, total, score
    return out
