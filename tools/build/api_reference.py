#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes docs/user/reference.md from include/mica/*.h, mica.hpp and the docstrings of the Python package; imports nothing of it.

Usage: api_reference.py [--check]. --check: exit status 1 if the page is not what would be written, or if a public Python
name has no docstring.
"""

import ast
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/user/reference.md"
# The package, and the file of each module that offers names of its own.
PYTHON = {"mica": "python/mica/__init__.py", "mica.distributed": "python/mica/distributed/__init__.py"}
# Modules without __all__: the names that are public.
NAMED = {"mica.fp8": ["attention", "attention_varlen", "attention_with_cache", "quantise"],
         "mica.integrations.transformers": ["register"], "mica.integrations.sdpa": ["register"]}

HEAD = """# Reference

Written by `tools/build/api_reference.py` from the headers and docstrings; change those. How things hang together:
[C and C++](c.md), [Python](python.md), [several GPUs](distributed.md).
"""


def prose(comment):
    """A C or C++ comment as one paragraph."""
    lines = [re.sub(r"^\s*(/\*+|\*+/|\*|//)\s?", "", line) for line in comment.strip().splitlines()]
    return re.sub(r"\s*\*/$", "", " ".join(line.strip() for line in lines)).strip()


def fenced(code, language):
    return f"```{language}\n{code.rstrip()}\n```\n"


def c_declarations(text):
    """(name, comment above it, code) of every struct, enumeration, type and function, in the header's order."""
    body = text[text.index("#define MICA_", text.index("#ifndef")):]
    pattern = re.compile(r"(?P<comment>(?:/\*(?:(?!\*/).)*\*/\n)?)"
                         r"(?P<code>typedef (?:struct|enum) \w+ \{.*?\n?\} (?P<block>\w+);"
                         r"|typedef [^;{]*?\(\*(?P<callback>\w+)\)[^;]*;"
                         r"|MICA_API [^;]*?\b(?P<function>mica_\w+)\([^;]*;(?:[ ]*/\*.*?\*/)?)", re.S)
    for match in pattern.finditer(body):
        name = match["block"] or match["callback"] or match["function"]
        yield name, prose(match["comment"]), match["code"].replace("MICA_API ", "")


def c_part():
    out = ["## C\n"]
    for header in ("mica.h", "enums.h"):
        out.append(f"### `mica/{header}`\n")
        for name, comment, code in c_declarations((ROOT / "include/mica" / header).read_text()):
            out.append(f"#### `{name}`\n")
            out += [comment + "\n"] if comment else []
            out.append(fenced(code, "c"))
    return out


def after_group(text, at):
    """Behind the bracket that closes the one at `at`."""
    depth = 0
    for end in range(at, len(text)):
        depth += (text[end] in "({") - (text[end] in ")}")
        if depth == 0:
            return end + 1
    raise ValueError(f"no end of {text[at:at + 40]!r}")


def without_bodies(code):
    """A class with its functions declared, not defined: initialisers and bodies become a semicolon."""
    out, at = "", 0
    for match in re.finditer(r"^  (?!//)[^\n;{}]*?\b[\w~=]+\(", code, re.M):
        if match.start() < at:
            continue
        end = after_group(code, match.end() - 1)
        words = re.match(r"(?: const)?(?: noexcept)?", code[end:])
        end += words.end()
        rest = re.match(r"\s*(:(?!:)|\{)", code[end:])
        if not rest:
            continue
        out += code[at:end] + ";"
        at = end + rest.start(1)
        while True:  # an initialiser list may have braces of its own; the body is the last group
            at = after_group(code, code.index("{", at))
            if not re.match(r"\s*[,{]", code[at:]):
                break
    return out + code[at:]


def cpp_part():
    """Classes and functions of the namespace, with the comment above each; of a class, what is public."""
    text = (ROOT / "include/mica/mica.hpp").read_text()
    text = text[text.index("inline namespace face {"):]
    out = ["## C++\n", "### `mica/mica.hpp`\n"]
    pattern = re.compile(r"(?P<comment>(?:^//[^\n]*\n)+)(?:template [^\n]*\n)?(?P<code>^(?:class|struct) (?P<type>\w+)[^;]*?\{\n.*?^\};"
                         r"|^(?:inline|constexpr|void|TensorOf<T>)[^;{]*?\b(?P<function>\w+)\((?:[^;{]|\{\})*)", re.M | re.S)
    for match in pattern.finditer(text):
        code = match["code"]
        if match["type"]:
            code = re.sub(r"^ (private|protected):\n(?:(?! public:|^\}).*\n)*", "", code, flags=re.M)
            code = re.sub(r"\n\n+(?=\})", "\n", without_bodies(code))
        else:
            code = code.strip() + ";"
        out += [f"#### `mica::{match['type'] or match['function']}`\n", prose(match["comment"]) + "\n", fenced(code, "cpp")]
    return out


def names_of(path):
    """name -> file that defines it, by the imports of a package's __init__.py; only what __all__ has."""
    tree = ast.parse(path.read_text())
    offered = next(ast.literal_eval(node.value) for node in tree.body if isinstance(node, ast.Assign)
                   and getattr(node.targets[0], "id", "") == "__all__")
    where = {alias.asname or alias.name: path.parent / f"{node.module}.py"
             for node in tree.body if isinstance(node, ast.ImportFrom) and node.level == 1 for alias in node.names}
    return {name: where[name] for name in offered}


def definition(path, name):
    tree = ast.parse(path.read_text())
    return next(node for node in tree.body
                if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == name)


def signature(node):
    if isinstance(node, ast.ClassDef):
        return f"class {node.name}({', '.join(map(ast.unparse, node.bases))})"
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    words = ast.unparse(node.args)
    return f"{node.name}({words}){returns}"


def python_part(complaints):
    out = ["## Python\n"]
    modules = {module: names_of(ROOT / path) for module, path in PYTHON.items()}
    for module, names in NAMED.items():
        modules[module] = {name: ROOT / "python" / (module.replace(".", "/") + ".py") for name in names}
    for module, names in modules.items():
        out.append(f"### `{module}`\n")
        for name, path in names.items():
            node = definition(path, name)
            text = ast.get_docstring(node)
            if not text:
                complaints.append(f"{path.relative_to(ROOT)}: {module}.{name} has no docstring")
            out += [f"#### `{module}.{name}`\n", fenced(signature(node), "python"), fenced(text or "", "text")]
    return out


def main():
    complaints = []
    page = "\n".join([HEAD, *c_part(), *cpp_part(), *python_part(complaints)])
    if "--check" not in sys.argv:
        PAGE.write_text(page)
    elif not PAGE.is_file() or PAGE.read_text() != page:
        complaints.append("docs/user/reference.md is not what the sources say: python3 tools/build/api_reference.py")
    print("\n".join([*complaints, f"{page.count('#### ')} names, {len(complaints)} complaints"]))
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
