"""Everything about HTTP/1.1 holds with both head parsers."""

from __future__ import annotations

from typing import get_args

import pytest

from trioproxy.http1 import ParserName, head_parser

from .driver import PARSER


@pytest.fixture(autouse=True, scope="module", params=get_args(ParserName))
def codec(request: pytest.FixtureRequest) -> ParserName:
    """The head parser in use."""
    name: ParserName = request.param
    PARSER.chosen = head_parser(name)
    return name
