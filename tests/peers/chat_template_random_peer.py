#!/usr/bin/env python3
"""Random small templates: Touchstone's output must be that of jinja2, byte for byte.

The templates are made of the constructs of the subset, of values that fit and of values that do not.
A template that Touchstone refuses as unsupported says nothing and is counted apart; where jinja2
raises, Touchstone must raise, and the other way round. One difference is known: jinja2 evaluates
what is constant when it compiles, by another way, on which `5[1:]` is undefined and does not raise.

    chat_template_random_peer.py [COUNT [SEED]]
"""
import copy
import random
import re
import sys
import warnings

from chat_template_reference import Touchstone, reference

CONTEXT = {
    "messages": [{"role": "system", "content": " Sé "}, {"role": "user", "content": "a, b\nc"},
                 {"role": "tool", "content": None, "n": 3}],
    "text": "Hello wörld <b>", "number": 7, "real": -2.5, "yes": True, "nothing": None,
    "words": ["b", "a", "C", "a"], "numbers": [3, 1, 2], "empty": [], "pairs": [["k", 1], ["j", 2]],
    "mapping": {"b": 1, "a": [1, {"x": "y"}], "items": "own"}, "add_generation_prompt": True,
}
NAMES = [name for name in CONTEXT if name != "add_generation_prompt"] + ["missing", "ns", "x", "loop"]
LITERALS = ["0", "1", "-3", "2.5", "''", "'a'", "'b c'", "'é\\n'", "true", "false", "none", "[]",
            "[1, 'a']", "{}", "{'a': 1}", "(1, 2)", "'%s'", "'{}'", "1e3", "'a'"]
FILTERS = ["upper", "lower", "trim", "length", "list", "string", "first", "last", "join", "sort",
           "unique|list", "reverse|list", "tojson", "int", "float", "abs", "capitalize", "title",
           "default('d')", "default('d', true)", "join(', ')", "map('upper')|list", "e", "safe",
           "map(attribute='role')|list", "selectattr('role', 'equalto', 'user')|list", "items|list",
           "select('string')|list", "reject('none')|list", "replace('a', 'X')", "indent(2)",
           "tojson(indent=1)", "dictsort", "min", "max", "sum", "round", "batch(2)|list", "count",
           "rejectattr('n')|list", "sort(reverse=true)", "center(9)", "sort(attribute='role')",
           "select|list", "map('length')|list", "tojson(sort_keys=true)", "wordcount", "format(1)"]
TESTS = ["defined", "none", "string", "mapping", "iterable", "sequence", "number", "boolean", "true",
         "false", "integer", "float", "odd", "even", "lower", "upper", "callable", "undefined",
         "in [1, 'a']", "equalto 'a'", "divisibleby 3", "gt 1", "sameas none", "escaped", "ne 1"]
METHODS = [".strip()", ".split()", ".split(',')", ".upper()", ".items()|list", ".keys()|list",
           ".get('a')", ".get('b', 2)", ".startswith('H')", ".endswith('b')", ".replace('l', '')",
           ".title()", ".count('a')", ".find('b')", ".rsplit(None, 1)", ".join(words)", ".role",
           ".a", "['b']", "[0]", "[-1]", "[1:]", "[::-1]", "[:-1]", ".format(1)", ".index('a')",
           ".splitlines()", ".lstrip('H')", ".append(1)", ".x.y", ".partition(' ')", ".values()|list",
           "[number]", ".capitalize()", ".isdigit()", ".zfill(4)", "[0:5:2]"]
OPERATORS = ["+", "-", "*", "/", "//", "%", "~", "==", "!=", "<", ">", "<=", ">=", " in ", " not in ",
             " and ", " or "]
SPACE = ["", "", "", " ", "\n", "  \n", "\t", "text", "\n  "]


class Writer:
    def __init__(self, seed):
        self.random = random.Random(seed)

    def pick(self, values):
        return self.random.choice(values)

    def expression(self, depth):
        kind = self.random.randrange(12) if depth > 0 else self.random.randrange(2)
        if kind == 0:
            return self.pick(LITERALS)
        if kind <= 3:
            return self.pick(NAMES)
        inner = self.expression(depth - 1)
        if kind <= 5:
            return f"{inner}|{self.pick(FILTERS)}"
        if kind == 6:
            return f"({inner}) is {self.pick(['', 'not '])}{self.pick(TESTS)}"
        if kind <= 8:
            inner = inner if re.fullmatch(r"\w+", inner) else f"({inner})"
            return inner + self.pick(METHODS)
        if kind == 9:
            return f"{inner} if {self.expression(depth - 1)} else {self.expression(depth - 1)}"
        if kind == 10:
            before, behind = self.pick([("not ", ""), ("-", ""), ("[", "]"), ("(", ")"),
                                        ("{1: ", "}"), ("[1, ", "]")])
            return before + inner + behind
        return f"{inner} {self.pick(OPERATORS)} {self.expression(depth - 1)}"

    def tag(self, text):
        return (self.pick(["{%", "{%", "{%-", "{%+"]) + f" {text} "
                + self.pick(["%}", "%}", "-%}", "+%}"]))

    def statement(self, depth):
        kind = self.random.randrange(11) if depth > 0 else 0
        expression = self.expression(2)
        if kind <= 3:
            return self.pick(["{{", "{{-"]) + f" {expression} " + self.pick(["}}", "-}}"])
        body = self.body(depth - 1)
        if kind <= 5:
            text = self.tag(f"if {expression}") + body
            if self.random.randrange(2):
                text += self.tag(f"elif {self.expression(1)}") + self.body(depth - 1)
            if self.random.randrange(2):
                text += self.tag("else") + self.body(depth - 1)
            return text + self.tag("endif")
        if kind <= 7:
            target = self.pick(["x", "x", "x", "k, x"])
            items = self.pick([expression, "messages", "words", "numbers", "pairs",
                               "mapping.items()", "range(3)"])
            condition = self.pick(["", "", f" if {self.expression(1)}"])
            leave = self.pick(["", "", self.tag("if loop.index > 1") + self.tag("break")
                               + self.tag("endif"), "{{ loop.last }}{{ loop.previtem }}"])
            other = self.tag("else") + "none" if self.random.randrange(3) == 0 else ""
            return self.tag(f"for {target} in {items}{condition}") + leave + body + other + self.tag(
                "endfor")
        if kind == 8:
            return self.pick([self.tag(f"set x = {expression}"), self.tag("set x") + body
                              + self.tag("endset"), self.tag(f"set ns.v = {expression}")])
        if kind == 9:
            call = self.pick(["{{ f(1) }}", "{{ f() }}", "{{ f(y=2, x=3) }}", "{{ f(text)|upper }}"])
            return self.tag("macro f(x, y='d')") + body + self.tag("endmacro") + call
        return self.pick([self.tag("filter upper") + body + self.tag("endfilter"),
                          self.tag(f"with x = {expression}") + body + self.tag("endwith"),
                          "{# " + body.replace("#}", "").replace("{#", "") + " #}",
                          self.tag("generation") + body + self.tag("endgeneration")])

    def body(self, depth):
        parts = []
        for _ in range(self.random.randrange(1, 3)):
            parts += [self.pick(SPACE), self.statement(depth), self.pick(SPACE)]
        return "".join(parts)

    def template(self):
        return "{% set ns = namespace(v=1) %}" + self.body(self.pick([0, 0, 1, 1, 2, 3]))


def is_address(text):
    """Whether jinja2 printed where an object lies, which is another place each time."""
    return text is not None and re.search(r" at 0x[0-9a-f]+>|<(class|function|built-in)",
                                          text) is not None


def main():
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 3000
    writer = Writer(int(sys.argv[2]) if len(sys.argv) > 2 else 20260704)
    touchstone = Touchstone()
    warnings.simplefilter("ignore", SyntaxWarning)  # of what jinja2 compiles templates to
    equal = raised = unsupported = different = 0
    for _ in range(count):
        source = writer.template()
        expected, expected_error = reference(source, copy.deepcopy(CONTEXT))  # indent changes lists
        handle, error = touchstone.parse(source)
        text = None
        if handle is not None:
            text, error = touchstone.render(handle, CONTEXT)
            touchstone.destroy(handle)
        if text is None and expected is None:
            raised += 1
        elif text is not None and text == expected:
            equal += 1
        elif is_address(expected) or (text is None and re.search(
                r"not supported|unsupported|64 bits|marked safe|complex|a size below|beyond|has no slices", error)):
            unsupported += 1
        else:
            different += 1
            if different <= 10:
                print(f"{source!r}\n  jinja2:     {expected_error or expected!r}")
                print(f"  touchstone: {error or text!r}")
    print(f"{count} random templates: {equal} equal, {raised} raised by both, {unsupported} not "
          f"supported, {different} different")
    return 0 if different == 0 and equal > count // 4 else 1


if __name__ == "__main__":
    sys.exit(main())
