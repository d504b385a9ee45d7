"""What the documentation shows runs as it stands there."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import httpx
import pytest

from trioproxy import PoolTransport

_ROOT: Final = Path(__file__).parent.parent
_PAGE: Final = (_ROOT / "docs/pool-transport.md").read_text()
_BLOCKS: Final = re.findall(r"^```python\n(.*?)^```", _PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("number", range(len(_BLOCKS)))
def test_the_examples_of_pool_transport_run(number: int) -> None:
    """Whether a model server is there or not."""
    command = [sys.executable, "-W", "error", "-c", _BLOCKS[number]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_the_limits_that_are_said_to_be_the_default_are() -> None:
    (said,) = re.findall(r"\| `limits` \| `(.*?)` \|", _PAGE)
    shown = eval(said, {"httpx": httpx})
    assert shown == inspect.signature(PoolTransport).parameters["limits"].default
