"""Imports point one way, so that each layer can be read without those above it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import trioproxy

ROOT = Path(trioproxy.__file__).parent

LAYERS = (
    # From the bottom: a module may import those of the layers below it, and of its own package. What is not listed
    # by itself counts for its package.
    {"errors", "process", "transport", "ledger", "units"},
    {"http1", "net"},
    {"config", "apis", "body", "upstream.endpoint"},
    {"topology", "pace", "phases", "upstream"},
    {"downstream", "configfile", "record", "routing"},
    {"relay", "upload", "runtime"},
    {"answer"},
    {"exchange"},
    {"connection"},
    {"server"},
    {"", "bench"},
    {"commands"},
    {"cli"},
    {"__main__"},
)


def modules() -> list[str]:
    return sorted(
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix("__init__").removesuffix(".")
        for path in ROOT.rglob("*.py")
    )


def source(module: str) -> Path:
    """The file of a module."""
    path = ROOT.joinpath(*module.split(".")) if module else ROOT
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def unit(module: str) -> str:
    """The entry of the table that this module belongs to."""
    listed = any(module in names for names in LAYERS)
    return module if listed else module.partition(".")[0]


def layer(module: str) -> int:
    return next(number for number, names in enumerate(LAYERS) if unit(module) in names)


def imports(module: str) -> set[str]:
    """The modules of this project that a module imports, wherever in it."""
    path = source(module)
    package = module.split(".") if path.name == "__init__.py" and module else module.split(".")[:-1]
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ["trioproxy", *package[: len(package) - node.level + 1]] if node.level else []
            start = ".".join([*base, *([node.module] if node.module else [])])
            names = [f"{start}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            top, _, rest = name.partition(".")
            if top == "trioproxy":
                found.add(_module(rest))
    return found - {module}


def _module(name: str) -> str:
    """The module that an imported name is or is from."""
    known = set(modules())
    while name not in known:
        name = name.rpartition(".")[0]
    return name


def test_every_module_has_a_layer() -> None:
    for module in modules():
        assert any(unit(module) in names for names in LAYERS), f"put {module!r} into a layer"


@pytest.mark.parametrize("module", modules())
def test_a_module_imports_from_below(module: str) -> None:
    for other in imports(module):
        same_package = unit(module) == unit(other)
        assert same_package or layer(other) < layer(module), f"{module} must not import {other}"


@pytest.mark.parametrize("module", [module for module in modules() if unit(module) not in ("bench", "cli")])
def test_only_the_command_line_imports_the_benchmark(module: str) -> None:
    assert not [other for other in imports(module) if unit(other) == "bench"]


def test_the_mock_uses_nothing_of_what_it_judges() -> None:
    for module in modules():
        if module.startswith("bench.mock"):
            assert {unit(other) for other in imports(module)} <= {"bench"}, module


def test_only_net_opens_and_closes_sockets() -> None:
    """Others may name constants and types of ``socket``."""
    opening = {"socket", "create_connection", "create_server", "socketpair", "fromfd"}
    for module in modules():
        if unit(module) in ("net", "bench"):
            continue
        for node in ast.walk(ast.parse(source(module).read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in opening:
                assert ast.unparse(node.func.value) != "socket", f"{module}: {ast.unparse(node)}"
