"""Beam search of the library through its C API, for the scripts that compare it with other engines."""
import ctypes

import numpy as np

from c_library import Library

LOGITS = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int32), ctypes.c_int64,
                          ctypes.POINTER(ctypes.c_float))
DIALECTS = {"canonical": 0, "hf": 1, "fairseq": 2, "ctranslate2": 3, "vllm": 4}
STOPPING = {False: 0, True: 1, "never": 2}


class BeamLibrary(Library):
    def search(self, vocabulary, logits, prompt, *, dialect, eos, early_stopping=False, include_stop=True, **options):
        """(tokens, score) of each result; `logits` maps a list of tokens to an array."""
        @LOGITS
        def callback(_, tokens, count, out):
            np.ctypeslib.as_array(out, (vocabulary,))[:] = logits(tokens[:count])
            return 0
        ints = lambda values: (ctypes.c_int32 * len(values))(*values)
        args = self.arguments(
            "ts_beam_search_args", vocabulary=vocabulary, logits=ctypes.cast(callback, ctypes.c_void_p),
            prompts=ints(prompt), offsets=(ctypes.c_int64 * 2)(0, len(prompt)), prompt_count=1,
            dialect=DIALECTS[dialect], early_stopping=STOPPING[early_stopping], eos=ints(eos), eos_count=len(eos),
            include_stop=int(include_stop), **options)
        found, count, beam = ctypes.c_void_p(), ctypes.c_int64(), self.arguments("ts_beam")
        self.check(self.c.ts_beam_search(self.context, ctypes.byref(args), ctypes.byref(found)))
        self.check(self.c.ts_beams_count(found, 0, ctypes.byref(count)))
        texts = []
        for rank in range(count.value):
            self.check(self.c.ts_beams_get(found, 0, rank, ctypes.byref(beam)))
            texts.append((beam.tokens[:beam.token_count], beam.score))
        self.c.ts_beams_destroy(found)
        return texts
