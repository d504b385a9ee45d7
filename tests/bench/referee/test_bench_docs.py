"""docs/bench.md says of every figure, stage, way and outcome what the code says."""

from __future__ import annotations

import ast
import enum
import inspect
from pathlib import Path

import click
import pytest

from trioproxy.bench.cli import cancel
from trioproxy.bench.referee import cases, metrics, records, report

DOCS = (Path(__file__).parents[3] / "docs" / "bench.md").read_text()


def meanings(kind: type[enum.Enum]) -> dict[str, str]:
    """The docstring below each member."""
    [definition] = ast.parse(inspect.getsource(kind)).body
    assert isinstance(definition, ast.ClassDef)
    found: dict[str, str] = {}
    for member, text in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(member, ast.Assign) and isinstance(text, ast.Expr):
            assert isinstance(member.value, ast.Constant)
            assert isinstance(text.value, ast.Constant)
            found[str(member.value.value)] = " ".join(str(text.value.value).replace("``", "`").split())
    return found


def rows(kind: type[enum.Enum], leave_out: str = "") -> str:
    return "\n".join(f"| `{name}` | {text} |" for name, text in meanings(kind).items() if name != leave_out)


@pytest.mark.parametrize("definition", metrics.CANCEL, ids=lambda definition: definition.name)
def test_each_figure_is_defined(definition: metrics.Definition) -> None:
    assert f"| `{definition.name}` | {definition.unit} | {definition.text} |" in DOCS


@pytest.mark.parametrize("expected", [rows(cases.Stage, "none"), rows(cases.Way, "stay")], ids=["stages", "ways"])
def test_stages_and_ways_are_explained(expected: str) -> None:
    assert expected in DOCS


def option_rows() -> list[str]:
    lines: list[str] = []
    for option in cancel.params:
        assert isinstance(option, click.Option)
        assert option.help
        names = " / ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
        default = option.default if option.show_default and not isinstance(option.default, tuple) else ""
        lines.append(f"| {names} | {default} | {option.help} |")
    return lines


@pytest.mark.parametrize("row", option_rows(), ids=lambda row: row.split("`")[1])
def test_options_are_explained(row: str) -> None:
    assert row in DOCS


def test_outcomes_are_explained() -> None:
    for name, text in meanings(records.Outcome).items():
        assert any(line.startswith(f"| `{name}` |") and line.endswith(f"| {text} |") for line in DOCS.splitlines())


def test_the_limits_of_a_void_run_are_those_of_the_code() -> None:
    assert f"late by (99th percentile) | {report.MAX_LATENESS_MS:g} ms |" in DOCS
    assert f"of one processor | {report.MAX_CPU_SHARE:.0%}".replace("%", " %") in DOCS
    assert f"swapped out | {report.MAX_SWAPPED >> 20} MiB |" in DOCS
    assert f"at least | {report.MIN_AVAILABLE:.0%}".replace("%", " %") in DOCS
