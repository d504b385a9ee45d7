"""docs/bench-memory.md says of every figure what the code says."""

from __future__ import annotations

from pathlib import Path

import pytest

from trioproxy.bench.referee.memory_metrics import MEMORY
from trioproxy.bench.referee.metrics import Definition

PAGE = Path(__file__).parents[3] / "docs" / "bench-memory.md"


@pytest.mark.parametrize("definition", MEMORY, ids=lambda definition: definition.name)
def test_each_figure_is_in_the_docs(definition: Definition) -> None:
    assert f"| `{definition.name}` | {definition.unit} | {definition.text} |" in PAGE.read_text()
