"""Beam search of the library through its C API, for the scripts that compare it with other engines."""
import ctypes
import os
import pathlib

import numpy as np

LOGITS = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int32), ctypes.c_int64,
                          ctypes.POINTER(ctypes.c_float))
TOKENS = ctypes.POINTER(ctypes.c_int32)
DIALECTS = {"canonical": 0, "hf": 1, "fairseq": 2, "ctranslate2": 3, "vllm": 4}
STOPPING = {False: 0, True: 1, "never": 2}


class Args(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("vocabulary", ctypes.c_int64), ("logits", LOGITS),
                ("user", ctypes.c_void_p), ("prompts", TOKENS), ("offsets", ctypes.POINTER(ctypes.c_int64)),
                ("prompt_count", ctypes.c_int64), ("max_tokens", ctypes.c_int64), ("min_tokens", ctypes.c_int64),
                ("beams", ctypes.c_int32), ("results", ctypes.c_int32), ("dialect", ctypes.c_int32),
                ("early_stopping", ctypes.c_int32), ("length_penalty", ctypes.c_double),
                ("patience", ctypes.c_double), ("eos", TOKENS), ("eos_count", ctypes.c_int64),
                ("stop_tokens", TOKENS), ("stop_count", ctypes.c_int64), ("banned", TOKENS),
                ("banned_count", ctypes.c_int64), ("forced", TOKENS), ("forced_count", ctypes.c_int64),
                ("diversity", ctypes.c_double), ("groups", ctypes.c_int32), ("no_repeat_ngram", ctypes.c_int32),
                ("include_stop", ctypes.c_int32), ("reserved", ctypes.c_int32)]


class Beam(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("tokens", TOKENS), ("token_count", ctypes.c_int64),
                ("log_probabilities", ctypes.POINTER(ctypes.c_float)), ("generated_count", ctypes.c_int64),
                ("log_probability", ctypes.c_double), ("score", ctypes.c_double), ("length", ctypes.c_int64),
                ("reason", ctypes.c_int32), ("stop_index", ctypes.c_int32)]


class Library:
    def __init__(self):
        folder = pathlib.Path(os.environ["TOUCHSTONE_PROGRAM"]).parent
        self.c = ctypes.CDLL(str(folder / "libtouchstone.so"))
        self.c.ts_last_error.restype = ctypes.c_char_p
        self.context = ctypes.c_void_p()
        self.check(self.c.ts_context_create(None, ctypes.byref(self.context)))

    def check(self, status):
        if status != 0:
            raise RuntimeError(self.c.ts_last_error().decode())

    def search(self, vocabulary, logits, prompt, *, dialect, beams, max_tokens, eos, results=0, min_tokens=0,
               length_penalty=1.0, early_stopping=False, patience=1.0, include_stop=True, no_repeat_ngram=0):
        """(tokens, score) of each result; `logits` maps a list of tokens to an array."""
        def callback(_, tokens, count, out):
            np.ctypeslib.as_array(out, (vocabulary,))[:] = logits(tokens[:count])
            return 0
        ints = lambda values: (ctypes.c_int32 * len(values))(*values)
        args = Args(ctypes.sizeof(Args), vocabulary, LOGITS(callback), None, ints(prompt),
                    (ctypes.c_int64 * 2)(0, len(prompt)), 1, max_tokens, min_tokens, beams, results,
                    DIALECTS[dialect], STOPPING[early_stopping], length_penalty, patience, ints(eos), len(eos))
        args.groups, args.no_repeat_ngram, args.include_stop = 1, no_repeat_ngram, int(include_stop)
        found, count, beam = ctypes.c_void_p(), ctypes.c_int64(), Beam()
        self.check(self.c.ts_beam_search(self.context, ctypes.byref(args), ctypes.byref(found)))
        self.check(self.c.ts_beams_count(found, 0, ctypes.byref(count)))
        texts = []
        for rank in range(count.value):
            beam.struct_size = ctypes.sizeof(Beam)
            self.check(self.c.ts_beams_get(found, 0, rank, ctypes.byref(beam)))
            texts.append((beam.tokens[:beam.token_count], beam.score))
        self.c.ts_beams_destroy(found)
        return texts
