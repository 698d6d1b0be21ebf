# SPDX-License-Identifier: Apache-2.0
"""What an IDE and mypy are told: the stub says of every argument what the functions have; the drop-ins are typed."""

import ast
import inspect
import pathlib

import pytest

from mica import functions

STUB = pathlib.Path(functions.__file__).with_suffix(".pyi")


def overloads(name):
    tree = ast.parse(STUB.read_text())
    return [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]


@pytest.mark.parametrize("name", ["attention", "attention_varlen", "attention_with_cache"])
def test_the_stub_has_the_arguments_of_the_function(name):
    parameters = inspect.signature(getattr(functions, name)).parameters
    made = overloads(name)
    assert len(made) == 3
    for node in made:
        assert [a.arg for a in node.args.args + node.args.kwonlyargs] == list(parameters)
    assert [ast.unparse(node.returns) for node in made] == ["A", "Tuple[A, A]", "Any"]


@pytest.mark.parametrize("package", ["mica", "flash_attn", "flash_attn_3"])
def test_packages_say_that_they_are_typed(package):
    module = pytest.importorskip(package, reason=f"{package} is not installed")
    assert (pathlib.Path(module.__file__).parent / "py.typed").is_file()
