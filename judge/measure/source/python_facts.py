# Facts about Python sources, as JSON on standard output: functions, complexity, repeated lines,
# functions that nothing reaches, imports that nothing uses, operators that can be exchanged, tests.
#
#   python3 -I -B python_facts.py ENTRY,ENTRY... FILE.py...
#
# Nothing is imported or run: sources are parsed.
import ast
import io
import json
import keyword
import sys
import tokenize

BRANCHES = (ast.If, ast.For, ast.While, ast.IfExp, ast.ExceptHandler, ast.comprehension, ast.Assert)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
CHANGES = {"+": "-", "-": "+", "*": "+", "/": "*", "<": "<=", ">": ">=", "+=": "-="}
BLOCK = 6


def complexity(function):
    count = 1
    for node in ast.walk(function):
        count += isinstance(node, BRANCHES)
        count += len(node.values) - 1 if isinstance(node, ast.BoolOp) else 0
    return count


def names_in(node):
    """All that is mentioned: names, attributes, and strings that could be names."""
    found = set()
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            found.add(part.id)
        elif isinstance(part, ast.Attribute):
            found.add(part.attr)
        elif isinstance(part, ast.Constant) and isinstance(part.value, str):
            found.add(part.value)
    return found


def unreached(trees, entries):
    """Functions that neither an entry point nor the module itself leads to, by name."""
    defined, waiting = {}, set(entries)
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, FUNCTIONS):
                defined.setdefault(node.name, []).append(node)
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                # A class is reached with its name; its methods by theirs.
                for part in node.bases + node.decorator_list:
                    waiting |= names_in(part)
                for part in node.body:
                    if not isinstance(part, FUNCTIONS):
                        waiting |= names_in(part)
            elif not isinstance(node, FUNCTIONS):
                waiting |= names_in(node)
    reached = set()
    while waiting:
        name = waiting.pop()
        if name in reached:
            continue
        reached.add(name)
        for function in defined.get(name, []):
            waiting |= names_in(function)
    return sorted(n for n in defined if n not in reached and not n.startswith("__"))


def unused_imports(tree):
    imported, used = {}, set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                imported[(alias.asname or alias.name).split(".")[0]] = node.lineno
        elif isinstance(node, ast.Name):
            used.add(node.id)
    return sorted(name for name in imported if name not in used and name != "annotations")


def tokens_of(text):
    return list(tokenize.generate_tokens(io.StringIO(text).readline))


def telling_lines(tokens):
    lines = {}
    for token in tokens:
        if token.type in (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT,
                          tokenize.DEDENT, tokenize.ENDMARKER, tokenize.STRING):
            continue
        lines.setdefault(token.start[0], []).append(token.string)
    return [" ".join(lines[n]) for n in sorted(lines)]


def duplicated(files):
    blocks = {}
    for lines in files:
        for i in range(len(lines) - BLOCK + 1):
            blocks.setdefault(tuple(lines[i:i + BLOCK]), []).append(1)
    count = 0
    for lines in files:
        repeated = set()
        for i in range(len(lines) - BLOCK + 1):
            if len(blocks[tuple(lines[i:i + BLOCK])]) > 1:
                repeated.update(range(i, i + BLOCK))
        count += len(repeated)
    return count


def mutations(text, tokens):
    """[offset in bytes, length, replacement] of operators between two values."""
    starts, offset = [], 0
    lines = text.splitlines(keepends=True)
    for line in lines:
        starts.append(offset)
        offset += len(line.encode())
    found, before = [], None
    for token in tokens:
        if token.type == tokenize.OP and token.string in CHANGES and before is not None:
            value = (before.type in (tokenize.NUMBER, tokenize.STRING) or
                     before.string in (")", "]") or
                     before.type == tokenize.NAME and not keyword.iskeyword(before.string))
            if value:
                row, column = token.start
                at = starts[row - 1] + len(lines[row - 1][:column].encode())
                found.append([at, len(token.string), CHANGES[token.string]])
        if token.type not in (tokenize.NL, tokenize.COMMENT):
            before = token
    return found


def tests(tree):
    """Functions that test, and places that can fail one."""
    count = asserts = 0
    for node in ast.walk(tree):
        count += isinstance(node, FUNCTIONS) and node.name.startswith("test")
        asserts += isinstance(node, (ast.Assert, ast.Raise))
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(
                node.func, "id", "")
            asserts += name.startswith(("assert", "fail")) or name in ("exit", "_exit")
    return {"tests": max(count, 1), "asserts": asserts}


def main():
    entries, paths = sys.argv[1].split(","), sys.argv[2:]
    trees, lines, result = [], [], {"functions": [], "unused_imports": [], "files": {}}
    for path in paths:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        tree, tokens = ast.parse(text), tokens_of(text)
        trees.append(tree)
        lines.append(telling_lines(tokens))
        for node in ast.walk(tree):
            if isinstance(node, FUNCTIONS):
                result["functions"].append([node.name, node.end_lineno - node.lineno + 1,
                                            complexity(node)])
        result["unused_imports"] += unused_imports(tree)
        result["files"][path] = {"mutations": mutations(text, tokens), **tests(tree)}
    result["dead"] = unreached(trees, entries)
    result["duplicated_lines"] = duplicated(lines)
    print(json.dumps(result))


main()
