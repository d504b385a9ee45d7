"""The two head parsers against each other and against a strict origin, on streams that something happened to.

``python -m bench.codecs --cases 100000`` does the same for longer.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.codecs import KNOWN, Reading, case, compare, examine, misread, read
from bench.mutations import request_stream, response_stream
from trioproxy.http1 import CHUNKED, HeadParser, RequestHead, head_parser
from trioproxy.http1.gate import RawField

from .driver import load_vectors


@settings(max_examples=500, deadline=None)
@given(st.randoms(use_true_random=False), st.booleans())
def test_both_read_the_same_and_so_does_a_strict_origin(random: Random, responses: bool) -> None:
    stream = response_stream(random) if responses else request_stream(random)
    found = examine(stream, responses=responses)
    assert not found.misread
    assert found.difference is None or (found.difference.known and not found.difference.framing)


def test_a_thousand_streams_of_the_commands() -> None:
    verdicts: Counter[bool] = Counter()
    for number in range(1000):
        found = case(number, seed=0)
        assert not found.misread, number
        assert found.difference is None or (found.difference.known and not found.difference.framing), number
        verdicts["accepted" in found.verdict] += 1
    assert min(verdicts[True], verdicts[False]) > 200  # or the streams would be of no use


@pytest.mark.parametrize("kind", ["request", "response"])
def test_both_read_the_public_vectors_the_same(kind: str) -> None:
    for vector in load_vectors("llhttp.jsonl"):
        if str(vector["type"]).startswith(kind):
            found = examine(bytes.fromhex(str(vector["bytes_hex"])), responses=kind == "response")
            assert found.difference is None, vector["id"]
            assert not found.misread


def test_what_only_one_refuses_is_never_framing() -> None:
    """The list of known differences is of refusals only: what both accept, they frame alike."""
    for (name, message), reason in KNOWN.items():
        assert name in ("llhttp", "h11")
        assert "length" not in message.lower()
        assert "coding" not in message.lower()
        assert reason


# That it would be seen

STREAM = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\nxGET / HTTP/1.1\r\nHost: h\r\n\r\n"


class Wrong:
    """A parser that reads one thing otherwise."""

    def __init__(self, old: bytes, new: bytes) -> None:
        self._old, self._new = old, new

    def request(self, head: bytes) -> tuple[bytes, bytes, list[RawField]]:
        """See HeadParser."""
        method, target, fields = head_parser("h11").request(head)
        return method, target, [(name, value.replace(self._old, self._new)) for name, value in fields]

    def response(self, head: bytes) -> tuple[int, list[RawField]]:
        """See HeadParser."""
        raise NotImplementedError


@pytest.mark.parametrize(
    ("parser", "kind", "framing"),
    [
        (Wrong(b"1", b"2"), "different framing", True),
        (Wrong(b"h", b"i"), "different fields", False),
        (Wrong(b"h", b"/"), "only b refuses", False),
    ],
)
def test_a_parser_that_is_wrong_is_found(parser: HeadParser, kind: str, framing: bool) -> None:
    right = read(STREAM, head_parser("llhttp"), responses=False)
    assert len(right.messages) == 2
    found = compare(right, read(STREAM, parser, responses=False), ("a", "b"))
    assert found is not None
    assert found.kind.startswith(kind)
    assert (found.known, found.framing) == ("", framing)


def test_a_request_that_a_strict_origin_reads_otherwise_is_found() -> None:
    (message, _) = read(STREAM, head_parser("llhttp"), responses=False).messages
    assert misread(Reading([message], "")) == ""
    message.head.fields.append((b"x", b"x", b"y"))
    assert misread(Reading([message], "")) == ""
    message.head.fields.append((b"content-length ", b"Content-Length", b"9"))
    assert "refuses" in misread(Reading([message], ""))
    message.head.fields.pop()
    message.head.framing = CHUNKED
    assert misread(Reading([message], "")) == ""
    assert isinstance(message.head, RequestHead)
    message.head.method = b"GET /smuggled HTTP/1.1\r\nX: y\r\n\r\nPUT"
    with pytest.raises(ValueError):
        misread(Reading([message], ""))


def test_the_command_says_what_it_found() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench.codecs", "--cases", "50"], capture_output=True, text=True, timeout=60, check=True
    )
    assert "0 read differently by the two parsers" in done.stdout
    assert "a head of 12 fields: llhttp" in done.stdout
