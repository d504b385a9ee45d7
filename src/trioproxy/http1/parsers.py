"""The seam between our gate and whatever reads a head into fields.

Lives here: what a head parser is, and choosing one by name.
Must not live here: any rule of HTTP. A parser is handed exactly one head that the gate has passed, and what it says
is compared with what the gate saw.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Literal, Protocol

from .gate import RawField

ParserName = Literal["llhttp", "h11"]
"""The parsers there are: h11 for where httptools does not run, and to judge the other one (docs/codecs.md)."""


class ParserRefusal(Exception):  # noqa: N818 - not an error of ours: a verdict, which the rules may explain better
    """A parser found a head malformed; the message is its reason."""


class HeadParser(Protocol):
    """Reads one whole head. Keeps nothing between calls. Raises ParserRefusal, and nothing else for any bytes.

    The version and the reason phrase are the gate's: its pattern has them literally.
    """

    def request(self, head: bytes) -> tuple[bytes, bytes, list[RawField]]:
        """Method, target and fields, as they came."""
        ...

    def response(self, head: bytes) -> tuple[int, list[RawField]]:
        """Status and fields, as they came."""
        ...


def default_parser() -> ParserName:
    """The faster one that is there."""
    return "llhttp" if find_spec("httptools") else "h11"


def head_parser(name: ParserName) -> HeadParser:
    """The parser called `name`. Raises ImportError where its library is not installed (httptools is for CPython)."""
    if name == "llhttp":
        from .llhttp import LlhttpParser  # only the library that is used must be there

        return LlhttpParser()
    if name == "h11":
        from .h11_parser import H11Parser

        return H11Parser()
    raise ValueError(f"there is no head parser called {name!r}")
