"""Grammars through the C API of build/release/libtouchstone.so, a vocabulary, and grammars to compare."""
import ctypes
import json
import os
import pathlib
import random

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SCHEMAS = ROOT / "src/decode/grammar/testdata/schemas.json"


class Touchstone:
    def __init__(self):
        self.c = ctypes.CDLL(str(os.environ.get("TOUCHSTONE_LIBRARY", ROOT / "build/release/libtouchstone.so")))
        self.c.ts_last_error.restype = ctypes.c_char_p
        pointer, size, i32 = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int32
        self.c.ts_grammar_from_gbnf.argtypes = [ctypes.c_char_p, size, pointer]
        self.c.ts_grammar_from_json_schema.argtypes = [ctypes.c_char_p, size, i32, pointer]
        self.c.ts_grammar_vocabulary_create.argtypes = [pointer, pointer, ctypes.c_int64, pointer,
                                                        ctypes.c_int64, pointer]
        self.c.ts_grammar_state_create.argtypes = [pointer, pointer, pointer]
        self.c.ts_grammar_state_allowed.argtypes = [pointer, pointer, ctypes.c_int64]
        self.c.ts_grammar_state_accept.argtypes = [pointer, i32]
        for name in ("ts_grammar_destroy", "ts_grammar_state_destroy"):
            getattr(self.c, name).argtypes = [pointer]

    def check(self, status):
        if status != 0:
            raise ValueError(self.c.ts_last_error().decode(errors="replace"))

    def vocabulary(self, tokens, end):
        handle = ctypes.c_void_p()
        texts = (ctypes.c_char_p * len(tokens))(*tokens)
        sizes = (ctypes.c_size_t * len(tokens))(*map(len, tokens))
        ends = (ctypes.c_int32 * 1)(end)
        self.check(self.c.ts_grammar_vocabulary_create(texts, sizes, len(tokens), ends, 1, ctypes.byref(handle)))
        return handle

    def grammar(self, text, whitespace=None):
        handle, data = ctypes.c_void_p(), text.encode()
        if whitespace is None:
            self.check(self.c.ts_grammar_from_gbnf(data, len(data), ctypes.byref(handle)))
        else:
            self.check(self.c.ts_grammar_from_json_schema(data, len(data), whitespace, ctypes.byref(handle)))
        return handle

    def state(self, grammar, vocabulary):
        handle = ctypes.c_void_p()
        self.check(self.c.ts_grammar_state_create(grammar, vocabulary, ctypes.byref(handle)))
        return handle

    def allowed(self, state, count):
        """The set of tokens."""
        words = (ctypes.c_int32 * ((count + 31) // 32))()
        self.check(self.c.ts_grammar_state_allowed(state, words, len(words)))
        return bits(words, count)

    def accept(self, state, token):
        self.check(self.c.ts_grammar_state_accept(state, token))


def bits(words, count):
    return {32 * i + b for i, word in enumerate(words) if word for b in range(32)
            if word >> b & 1 and 32 * i + b < count}


def tokens():
    """All bytes, pieces of JSON, code and several languages, also cut within characters; the end last."""
    text = ('{"name": "value", "list": [1, 2.5, -3e10, true, false, null], "nested": {"a": "b\\n"}} '
            'SELECT * FROM t WHERE x >= 10 AND y = \'abc\'; if (a == b) { return f(x) + 1; } 2026-11-16T08:30:00Z '
            'The quick brown fox can\'t jump. Straße größer Ελλάδα привет 日本語 😀😀 <b>x</b> [[x]] (()) a,b,c;;')
    data = text.encode()
    rng = random.Random(1)
    found = {data[i:i + rng.randint(2, 7)] for i in range(len(data)) for _ in range(4)}
    found |= {w.encode() for w in text.split()} | {b"aa", b"aaaa", b"abab", b"))", b"]]", b'"}', b'",', b'": '}
    return [bytes([b]) for b in range(256)] + sorted(found - {b""}) + [b""]


JSON = r'''
root ::= object
value ::= object | array | string | number | "true" | "false" | "null"
object ::= "{" ws (string ":" ws value ("," ws string ":" ws value)*)? "}" ws
array ::= "[" ws (value ("," ws value)*)? "]" ws
string ::= "\"" ([^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}))* "\"" ws
number ::= "-"? ([0-9] | [1-9] [0-9]{0,15}) ("." [0-9]+)? ([eE] [-+]? [0-9]{1,15})? ws
ws ::= "" | " " | "\n" [ \t]{0,20}
'''
GRAMMARS = [JSON] + ["root ::= " + g for g in r'''
"yes" | "no"
"a"*
"a"+ "b"
("ab" | "a") "b"
[a-z]+ ("," " "? [a-z]+)*
[^"]*
"\"" [^"\\]* "\""
[^x] [^\u00e9] [^a-z]
[0-9]{1,3} ("." [0-9]{1,3}){3}
[0-9]{4} "-" [0-9]{2} "-" [0-9]{2} ("T" [0-9]{2} ":" [0-9]{2} ":" [0-9]{2} "Z")?
"-"? ("0" | [1-9] [0-9]*) ("." [0-9]+)?
"a"? "b"? "c"? "d"?
"a"{3} | "b"{2,4} | "c"{2,}
("a" | "b")* "abb"
[aeiou]{2,5} | [^aeiou]{1,3}
"Straße" | "größer" | "😀"+
[а-яё]+
[日本語]{1,4}
[α-ω]+ " " [a-z]+
[\u00e0-\u00ff]{1,3} "."
"<b>" [^<]* "</b>"
"SELECT " ("*" | [a-z]+ ("," [a-z]+)*) " FROM " [a-z]+ (" WHERE " [a-z]+ " >= " [0-9]+)?
[a-zA-Z_] [a-zA-Z0-9_]* "(" ([a-z] ("," [a-z])*)? ")"
"0x" [0-9a-fA-F]+
("[" [x ]? "] " [a-z ]+ "\n")+
"\n" | "\t" | "\\" | "\"" | "\x41\u00e9"
[a-c]{0,3} [b-d]{0,3} [c-e]{1,3}
("aa" | "aaa")+
("a" | "ab" | "abc" | "bcd")* "d"
""
"" | "a"
[^\n]{1,20} "\n"
"#" " "{1,3} [A-Z] [^\n]* "\n"
'''.strip("\n").split("\n")] + [
    'root ::= expr\nexpr ::= term (("+" | "-") term)*\nterm ::= factor (("*" | "/") factor)*\n'
    'factor ::= [0-9]+ | [a-z] | "(" expr ")"',
    # Called from root, because xgrammar takes the end of a nested root for the end of the text.
    'root ::= s\ns ::= "x" s | "y"',
    'root ::= s\ns ::= "(" s ")" | "x"',
    'root ::= s\ns ::= "(" s* ")"',
    'root ::= s\ns ::= ("(" s ")")*',
    'root ::= s\ns ::= "a" s "b" | "a" s "c" | "-"',
    'root ::= s\ns ::= "a" s "a" | "b" s "b" | "c"',
    'root ::= a | b\na ::= "x" a "y" | "-"\nb ::= "x" b "z" | "-"',
    'root ::= list\nlist ::= "[" (item ("," item)*)? "]"\nitem ::= list | [a-z]+',
    'root ::= block\nblock ::= "{" (statement ";")* "}"\nstatement ::= block | [a-z]+ "=" [0-9]+ | ""',
    'root ::= e e e\ne ::= "a"?',
    'root ::= (a b?)* c\na ::= "x" | b\nb ::= "y"\nc ::= "x"? "z"',
    'root ::= x{2,3}\nx ::= "<" y* ">"\ny ::= [a-c] | x',
    'root ::= tag\ntag ::= "<" name ">" (tag | [^<>]+)* "</" name ">"\nname ::= [a-z]+',
    'root ::= if\nif ::= "if (" [a-z]+ ") { " stmt* "}"\nstmt ::= if " " | "return; "',
    'root ::= k "=" v ("&" k "=" v)*\nk ::= [a-z]+\nv ::= [a-zA-Z0-9%]*',
]


def schemas():
    return json.loads(SCHEMAS.read_text())
