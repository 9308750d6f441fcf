#!/usr/bin/env python3
"""Beam search against `transformers` (dialect hf) and `ctranslate2` (dialect ctranslate2), both sides on the
same logits. Ids and order must be equal, scores close. Searches in which two numbers that decide something
are closer than 1e-6 are counted and not compared.

  beam_torch_peer.py [models]                 compare
  beam_torch_peer.py --golden FILE            write what transformers answers for a few small tables
"""
import json
import math
import os
import sys
import tempfile

import numpy as np

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
import ctranslate2  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from transformers.modeling_outputs import CausalLMOutput  # noqa: E402

NEAR = 1e-6


class Table:
    """Logits by state; a token leads to the next state. So the whole text matters, not its last token alone."""

    def __init__(self, rng, vocabulary, states, eos):
        # Integers for the golden file; a fine grid, so that two sums are rarely the same by chance.
        self.units = rng.integers(-3 << 14, 3 << 14, (states, vocabulary))
        self.units[:, eos] += rng.integers(0, 3 << 14, (states, len(eos)))
        self.logits = (self.units / 2.0**14).astype(np.float32)
        self.next = rng.integers(0, states, (states, vocabulary))

    def after(self, tokens):
        state = 0
        for token in tokens:
            state = self.next[state, token]
        return self.logits[state]


class Toy(transformers.PreTrainedModel, transformers.GenerationMixin):
    config_class = transformers.PretrainedConfig
    main_input_name = "input_ids"

    def __init__(self, config, table):
        super().__init__(config)
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.table = table
        self.generation_config = transformers.GenerationConfig()

    def forward(self, input_ids, **_):
        rows = [self.table.after(tokens) for tokens in input_ids.tolist()]
        return CausalLMOutput(logits=torch.tensor(np.stack(rows))[:, None, :])

    def prepare_inputs_for_generation(self, input_ids, **_):
        return {"input_ids": input_ids}


def ask_transformers(table, vocabulary, o):
    model = Toy(transformers.PretrainedConfig(vocab_size=vocabulary), table)
    out = model.generate(torch.tensor([o["prompt"]]), num_beams=o["beams"], num_return_sequences=o["beams"],
                         max_new_tokens=o["max_tokens"], min_new_tokens=o["min_tokens"], do_sample=False,
                         length_penalty=o["length_penalty"], early_stopping=o["early_stopping"],
                         eos_token_id=o["eos"], pad_token_id=vocabulary, use_cache=False,
                         no_repeat_ngram_size=o["no_repeat_ngram"], return_dict_in_generate=True, output_scores=True)
    texts = []
    for row, score in zip(out.sequences.tolist(), out.sequences_scores.tolist()):
        if score < -1e8:  # a place of the pool that nothing filled
            continue
        generated = row[len(o["prompt"]):]
        ends = [i for i, t in enumerate(generated) if t in o["eos"]]
        texts.append((generated[: ends[0] + 1] if ends else [t for t in generated if t != vocabulary], score))
    return texts


def smallest_margin(logits, vocabulary, o, allowed):
    """Of the numbers whose order decides a search of this kind, in float64."""
    margin, pool, running, k = math.inf, [], [([], 0.0)], o["beams"]
    for step in range(1, o["max_tokens"] + 1):
        every = []
        for text, score in running:
            v = logits(o["prompt"] + text).astype(np.float64)
            v = v - v.max() - np.log(np.exp(v - v.max()).sum())
            every += [(score + v[t], text + [t]) for t in range(vocabulary) if allowed(text, t)]
        every.sort(key=lambda e: -e[0])
        kept = every[: (1 + max(1, len(o["eos"]))) * k + 1]
        for a, b in zip(kept, kept[1:]):
            margin = min(margin, a[0] - b[0])
        last = step == o["max_tokens"]
        ended = lambda e: last or e[1][-1] in o["eos"]
        pool += [e[0] / step ** o["length_penalty"] for e in kept[:k] if ended(e)]
        pool = sorted(pool, reverse=True)
        for a, b in zip(pool, pool[1:]):
            margin = min(margin, a - b)
        pool = pool[:k]
        running = [(e[1], e[0]) for e in kept[:-1] if not ended(e)][:k]
        if not running:
            break
        if len(pool) == k:
            far = o["early_stopping"] == "never" and o["length_penalty"] > 0
            reach = running[0][1] / (o["max_tokens"] if far else step) ** o["length_penalty"]
            margin = min(margin, abs(reach - pool[-1]))
            if o["early_stopping"] is True or reach <= pool[-1]:
                break
    return margin


def drawn_options(rng, vocabulary):
    most = int(rng.integers(1, 11))
    eos = [0] if rng.random() < 0.75 else [0, 2]
    # Below that transformers fills up with continuations of the beams it has masked.
    beams = int(rng.integers(2, max(3, vocabulary // (1 + len(eos)) + 1)))
    return {"prompt": [int(t) for t in rng.integers(3, vocabulary, rng.integers(1, 6))], "beams": min(beams, 8),
            "max_tokens": most, "min_tokens": int(rng.integers(0, most)) if rng.random() < 0.3 else 0, "eos": eos,
            "length_penalty": float(rng.choice([0.0, 1.0, 0.6, 2.0, -0.5])),
            "early_stopping": [True, False, "never"][rng.integers(3)],
            "no_repeat_ngram": int(rng.integers(1, 4)) if rng.random() < 0.2 else 0}


def repeats(text, n, token):
    grams = [tuple(text[i: i + n]) for i in range(len(text) - n + 1)]
    return n > 0 and tuple(text[len(text) - n + 1:] + [token]) in grams


def hf_case(seed):
    rng = np.random.default_rng(seed)
    vocabulary = int(rng.integers(6, 40))
    o = drawn_options(rng, vocabulary)
    table = Table(rng, vocabulary, int(rng.integers(100, 2000)), o["eos"])
    def allowed(text, token):
        if len(text) < o["min_tokens"] and token in o["eos"]:
            return False
        return not repeats(o["prompt"] + text, o["no_repeat_ngram"], token)
    return vocabulary, o, table, smallest_margin(table.after, vocabulary, o, allowed)


def compare(name, theirs, ours, context):
    same = [t for t, _ in theirs] == [t for t, _ in ours]
    close = same and all(abs(a - b) <= 2e-5 * max(1, abs(a)) for (_, a), (_, b) in zip(theirs, ours))
    if not close:
        print(f"WRONG {name} {context}\n  theirs {theirs}\n  ours   {ours}")
    return close


def check_transformers(library, models):
    near = wrong = 0
    for seed in range(models):
        vocabulary, o, table, margin = hf_case(seed)
        if margin < NEAR:
            near += 1
            continue
        theirs = ask_transformers(table, vocabulary, o)
        ours = library.search(vocabulary, table.after, dialect="hf", **o)
        wrong += not compare("hf", theirs, ours, f"seed {seed} {o}")
    print(f"{'ok   ' if wrong == 0 else 'WRONG'} transformers {transformers.__version__}: {models - near} searches, "
          f"{wrong} differ, {near} with a margin below {NEAR} not compared")
    return wrong


def random_generator(folder, vocabulary, seed):
    """A random one-layer GPT-2 in the format of CTranslate2."""
    from tokenizers import Tokenizer, models
    words = {f"t{i}": i for i in range(vocabulary - 1)} | {"<unk>": vocabulary - 1}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words, "<unk>")),
                                                     unk_token="<unk>", bos_token="t1", eos_token="t0")
    torch.manual_seed(seed)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=vocabulary, n_positions=64, n_embd=16, n_layer=1, n_head=2, initializer_range=0.8,
        bos_token_id=1, eos_token_id=0))
    model.save_pretrained(f"{folder}/hf{seed}")
    tokenizer.save_pretrained(f"{folder}/hf{seed}")
    ctranslate2.converters.TransformersConverter(f"{folder}/hf{seed}").convert(f"{folder}/ct2{seed}", force=True)
    return ctranslate2.Generator(f"{folder}/ct2{seed}", device="cpu", intra_threads=1)


def ask_ctranslate2(generator, o, end, return_end):
    result = generator.generate_batch(
        [[f"t{t}" for t in o["prompt"]]], beam_size=o["beams"], num_hypotheses=o["results"], patience=o["patience"],
        length_penalty=o["length_penalty"], max_length=o["max_tokens"], min_length=o["min_tokens"],
        include_prompt_in_result=False, return_scores=True, end_token=end, return_end_token=return_end)[0]
    return [(list(ids), s) for ids, s in zip(result.sequences_ids, result.scores) if math.isfinite(s)]


def check_ctranslate2(library, searches):
    near = wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        for model in range(max(1, searches // 25)):
            rng = np.random.default_rng(1000 + model)
            vocabulary = int(rng.integers(12, 40))
            generator = random_generator(folder, vocabulary, model)
            memory = {}
            def logits(tokens):
                key = tuple(tokens)
                if key not in memory:
                    out = generator.forward_batch([[f"t{t}" if t < vocabulary - 1 else "<unk>" for t in tokens]])
                    memory[key] = np.array(out)[0, -1].astype(np.float32)
                return memory[key]
            for _ in range(25):
                o = drawn_options(rng, vocabulary - 1)
                del o["early_stopping"], o["no_repeat_ngram"]
                o |= {"eos": [0], "patience": float(rng.choice([1.0, 2.0])), "beams": min(o["beams"], 6)}
                o["results"] = int(rng.integers(1, o["beams"] + 1))
                keep_end = bool(rng.integers(2))
                theirs = ask_ctranslate2(generator, o, [0], keep_end)
                ours = library.search(vocabulary, logits, dialect="ctranslate2", include_stop=keep_end, **o)
                if [t for t, _ in theirs] != [t for t, _ in ours] and near_in_search(logits, vocabulary, o):
                    near += 1
                    continue
                wrong += not compare("ctranslate2", theirs, ours, f"model {model} {o} {keep_end}")
    print(f"{'ok   ' if wrong == 0 else 'WRONG'} ctranslate2 {ctranslate2.__version__}: {searches - near} searches, "
          f"{wrong} differ, {near} with a margin below {NEAR} not compared")
    return wrong


def near_in_search(logits, vocabulary, o):
    allowed = lambda text, token: len(text) >= o["min_tokens"] or token not in o["eos"]
    return smallest_margin(logits, vocabulary, o | {"early_stopping": "never"}, allowed) < NEAR


def write_golden(path):
    cases, seed = [], 5000
    while len(cases) < 24:
        seed += 1
        rng = np.random.default_rng(seed)
        vocabulary = int(rng.integers(6, 10))
        o = drawn_options(rng, vocabulary)
        o["no_repeat_ngram"] = 0
        table = Table(rng, vocabulary, 6, o["eos"])
        allowed = lambda text, token: len(text) >= o["min_tokens"] or token not in o["eos"]
        if smallest_margin(table.after, vocabulary, o, allowed) < 1e-4:
            continue
        theirs = ask_transformers(table, vocabulary, o)
        cases.append({**o, "vocabulary": vocabulary, "units": table.units.ravel().tolist(),
                      "next": table.next.ravel().tolist(), "texts": [t for t, _ in theirs],
                      "scores": [round(s, 6) for _, s in theirs]})
    with open(path, "w") as out:
        out.write("[\n" + ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases) + "\n]\n")


def main():
    if sys.argv[1:2] == ["--golden"]:
        return write_golden(sys.argv[2])
    sys.path.insert(0, os.path.dirname(__file__))
    from beam_library import BeamLibrary
    library = BeamLibrary()
    models = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    wrong = check_transformers(library, models) + check_ctranslate2(library, models)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
