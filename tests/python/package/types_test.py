# SPDX-License-Identifier: Apache-2.0
"""What an IDE and mypy are told: the stub says of every argument what the functions have; the drop-ins are typed."""

import ast
import importlib
import inspect
import pathlib

import pytest

from mica import functions

FUNCTIONS = ["attention", "attention_varlen", "attention_with_cache"]
STUB = pathlib.Path(functions.__file__).with_suffix(".pyi")


def overloads(name):
    tree = ast.parse(STUB.read_text())
    return [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_stub_has_the_arguments_of_the_function(name):
    parameters = inspect.signature(getattr(functions, name)).parameters
    made = overloads(name)
    assert len(made) == 3
    for node in made:
        assert [a.arg for a in node.args.args + node.args.kwonlyargs] == list(parameters)
    assert [ast.unparse(node.returns) for node in made] == ["A", "Tuple[A, A]", "Any"]


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("face", ["_array_face", "_torch_face"])
def test_a_face_has_the_arguments_of_the_function_in_its_order(name, face):
    """They are handed on by their place."""
    if face == "_torch_face":
        pytest.importorskip("torch", reason="torch is not installed")
    module = importlib.import_module("mica." + face)
    wanted = list(inspect.signature(getattr(functions, name)).parameters)
    assert list(inspect.signature(getattr(module, name)).parameters) == wanted


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_hands_on_all_its_arguments_in_their_order(name):
    tree = ast.parse(inspect.getsource(getattr(functions, name)))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
             and node.func.attr == name]
    assert len(calls) == 1
    assert [argument.id for argument in calls[0].args] == list(inspect.signature(getattr(functions, name)).parameters)


def test_the_numbers_of_a_call_have_one_order():
    from mica import _describe
    assert list(inspect.signature(_describe.options).parameters) == list(_describe.Options.__slots__)
    pytest.importorskip("torch", reason="torch is not installed")
    from mica import _torch_ops
    assert list(_torch_ops.NUMBER_NAMES) == [name for name in _describe.Options.__slots__
                                             if name not in ("place", "descale_per_page", "pieces")]  # the ops do without


@pytest.mark.parametrize("package", ["mica", "flash_attn", "flash_attn_3", "ring_flash_attn"])
def test_packages_say_that_they_are_typed(package):
    module = pytest.importorskip(package, reason=f"{package} is not installed")
    assert (pathlib.Path(module.__file__).parent / "py.typed").is_file()
