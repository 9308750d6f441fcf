"""Token masks against PyPI `xgrammar`, which reads the same grammars, along random texts.

Needs torch, which xgrammar imports. A token that its mask allows and its matcher then refuses is counted,
not compared. Exits 1 when a mask differs.
"""
import importlib.metadata
import random
import sys

import xgrammar

from grammar_library import GRAMMARS, Touchstone, bits, tokens


def accepts(matcher, token):
    if not matcher.accept_token(token):
        return False
    matcher.rollback(1)
    return True


def compare(library, name, text, vocabulary, mine, info, rng):
    ours = library.grammar(text)
    theirs = xgrammar.GrammarCompiler(info, cache_enabled=False).compile_grammar(xgrammar.Grammar.from_ebnf(text))
    bitmask = xgrammar.allocate_token_bitmask(1, len(vocabulary))
    masks = refused = 0
    for _ in range(8):
        state = library.state(ours, mine)
        matcher = xgrammar.GrammarMatcher(theirs)
        written = []
        for _ in range(25):
            allowed = library.allowed(state, len(vocabulary))
            matcher.fill_next_token_bitmask(bitmask)
            reference = bits(bitmask[0].tolist(), len(vocabulary))
            masks += 1
            only = sorted(allowed - reference)
            missing = [t for t in sorted(reference - allowed) if accepts(matcher, t)]
            refused += len(reference - allowed) - len(missing)
            if only or missing:
                print(f"{name}: after {b''.join(written)!r}: ours alone {[vocabulary[t] for t in only[:5]]}, "
                      f"theirs alone {[vocabulary[t] for t in missing[:5]]}")
                return masks, refused, 1
            if not allowed:
                break
            token = rng.choice(sorted(allowed))
            library.accept(state, token)
            if token == len(vocabulary) - 1:
                break
            matcher.accept_token(token)
            written.append(vocabulary[token])
        library.c.ts_grammar_state_destroy(state)
    library.c.ts_grammar_destroy(ours)
    return masks, refused, 0


def main():
    library, vocabulary, rng = Touchstone(), tokens(), random.Random(3)
    mine = library.vocabulary(vocabulary, len(vocabulary) - 1)
    info = xgrammar.TokenizerInfo(vocabulary, vocab_type=xgrammar.VocabType.RAW, stop_token_ids=[len(vocabulary) - 1])
    masks = bad = refused = 0
    for i, text in enumerate(GRAMMARS):
        count, own, wrong = compare(library, f"grammar {i} ({text.strip().splitlines()[0][:50]})", text,
                                    vocabulary, mine, info, rng)
        masks, refused, bad = masks + count, refused + own, bad + wrong
    print(f"xgrammar {importlib.metadata.version('xgrammar')}: {len(GRAMMARS)} grammars, {masks} masks of {len(vocabulary)} tokens, "
          f"{bad} grammars differ; {refused} tokens that its masks allow and its matcher refuses")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
