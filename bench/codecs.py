"""Both head parsers on the same mutated byte streams, and a strict origin behind them.

``python -m bench.codecs --cases 100000`` says how many streams were accepted and refused, every way in which the two
parsers differ, and whether any difference is one of framing or not in the list of known ones; then it fails.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Final, NamedTuple

import click

from bench.mutations import request_stream, response_stream
from bench.strict import AmbiguousError, requests_in
from trioproxy.errors import Fault, ProxyError
from trioproxy.http1 import (
    LAST_CHUNK,
    BodyDecoder,
    Framing,
    HeadLimits,
    HeadParser,
    HeadReader,
    RequestHead,
    ResponseHead,
    chunk_prefix,
    decoder,
    head_parser,
    read_request_head,
    read_response_head,
)
from trioproxy.upstream.request import Client, Forwarder

LIMITS: Final = HeadLimits()
KNOWN: Final[dict[tuple[str, str], str]] = {}
"""Why one parser may refuse what the other accepts, by (the one that refuses, its message). None is known."""


class Exchanged(NamedTuple):
    """One message as it was read."""

    head: RequestHead | ResponseHead
    body: bytes
    whole: bool

    @property
    def framing(self) -> tuple[Framing, bool, bytes, bool]:
        """Where this message ends and the next one begins."""
        return self.head.framing, self.head.keep_alive, self.body, self.whole


class Reading(NamedTuple):
    """A stream as one parser has it read."""

    messages: list[Exchanged]
    refused: str
    """The code and the message of the refusal that ended it, or nothing."""


class Difference(NamedTuple):
    """A stream on which the parsers differ."""

    kind: str
    known: str
    """The reason in the list; empty: it is not there."""
    framing: bool


def read(data: bytes, parser: HeadParser, *, responses: bool) -> Reading:
    """Read a whole stream; of responses, all are to a GET."""
    fault = Fault.UPSTREAM if responses else Fault.CLIENT
    reader = HeadReader(LIMITS, fault=fault)
    found: list[Exchanged] = []
    try:
        while data:
            raw = reader.feed(data)
            if raw is None:
                break
            head: RequestHead | ResponseHead
            if responses:
                head = read_response_head(raw, parser, LIMITS, request_method=b"GET")
            else:
                head = read_request_head(raw, parser, LIMITS)
            data = reader.take_rest()
            body: BodyDecoder = decoder(head.framing, fault, LIMITS)
            found.append(Exchanged(head, b"", body.done))
            if not body.done and data:
                pieces, consumed = body.decode(data)
                found[-1] = Exchanged(head, b"".join(pieces), body.done)
                data = data[consumed:]
            interim = isinstance(head, ResponseHead) and head.status < 200 and head.status != 101
            if not found[-1].whole or not (head.keep_alive or interim):
                break
            if isinstance(head, ResponseHead) and head.status == 101:
                break
    except ProxyError as error:
        return Reading(found, f"{error.code.value}: {error.message}")
    return Reading(found, "")


def compare(one: Reading, other: Reading, names: tuple[str, str]) -> Difference | None:
    """How two readings of a stream differ, if they do."""
    if one == other:
        return None
    for mine, theirs in zip(one.messages, other.messages, strict=False):
        if mine.framing != theirs.framing:
            return Difference("different framing", "", True)
        if mine != theirs:
            return Difference("different fields", "", False)
    if len(one.messages) == len(other.messages):
        return Difference(f"refused differently: {one.refused!r}, {other.refused!r}", "", False)
    refusing = 0 if len(one.messages) < len(other.messages) else 1
    reason = (one, other)[refusing].refused
    kind = f"only {names[refusing]} refuses: {reason}" if reason else "different number of messages"
    return Difference(kind, KNOWN.get((names[refusing], reason), ""), not reason)


_FORWARDER: Final = Forwarder(b"bench-0")


def forwarded(message: Exchanged) -> bytes:
    """A request as it goes to an upstream."""
    head = message.head
    assert isinstance(head, RequestHead)
    chunked = head.framing.length < 0 or head.framing.kind.value == "chunked"
    out = _FORWARDER.head(head, length=None if chunked else len(message.body), client=Client(), request_id=b"1")
    if not chunked:
        return out + message.body
    chunk = chunk_prefix(len(message.body)) + message.body + b"\r\n" if message.body else b""
    return out + chunk + LAST_CHUNK


def misread(reading: Reading) -> str:
    """What a strict origin makes of the requests that were accepted, if that is not what they were."""
    whole = [message for message in reading.messages if message.whole]
    sent = b"".join(forwarded(message) for message in whole)
    try:
        seen = [(message.method, message.target, message.body) for message in requests_in(sent)]
    except AmbiguousError as error:
        return f"a strict origin refuses {error}"
    meant: list[tuple[bytes, bytes, bytes]] = []
    for message in whole:
        assert isinstance(message.head, RequestHead)
        meant.append((message.head.method, message.head.target, message.body))
    return "" if seen == meant else f"a strict origin reads {seen} instead of {meant}"


class Finding(NamedTuple):
    """What came of one stream."""

    stream: bytes
    verdict: str
    difference: Difference | None
    misread: str


def case(number: int, seed: int) -> Finding:
    """Make a stream and read it with both parsers."""
    random = Random(f"{seed}/{number}")
    responses = random.random() < 0.4
    stream = response_stream(random) if responses else request_stream(random)
    return examine(stream, responses=responses)


def examine(stream: bytes, *, responses: bool) -> Finding:
    """Read a stream with both parsers."""
    one, other = (read(stream, parser, responses=responses) for parser in (_LLHTTP, _H11))
    kind = "response" if responses else "request"
    verdict = f"{kind} stream " + (f"refused: {one.refused.partition(':')[0]}" if one.refused else "accepted")
    return Finding(
        stream, verdict, compare(one, other, ("llhttp", "h11")), "" if responses else misread(one) or misread(other)
    )


_LLHTTP: Final = head_parser("llhttp")
_H11: Final = head_parser("h11")

_TYPICAL: Final = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: model:8000\r\nAccept: */*\r\nAccept-Encoding: gzip, deflate\r\n"
    b"Connection: keep-alive\r\nUser-Agent: OpenAI/Python 1.60\r\nContent-Type: application/json\r\n"
    b"Authorization: Bearer sk-0123456789\r\nX-Stainless-Lang: python\r\nX-Stainless-OS: Linux\r\n"
    b"X-Request-Id: 12345\r\nContent-Length: 600\r\n\r\n"
)


def cost(parser: HeadParser, rounds: int = 2000) -> float:
    """Microseconds of CPU for a typical request's head, gate and rules included."""
    best = float("inf")
    for _ in range(5):
        start = time.process_time()
        for _ in range(rounds):
            read_request_head(_TYPICAL, parser, LIMITS)
        best = min(best, (time.process_time() - start) / rounds * 1e6)
    return best


@click.command()
@click.option("--cases", default=100_000, show_default=True, help="How many streams.")
@click.option("--seed", default=1, show_default=True, help="Other streams for another seed.")
@click.option("--only", type=int, help="Only this case, in full: what a failure names.")
def main(cases: int, seed: int, only: int | None) -> None:
    """Compare the head parsers on mutated streams."""
    if only is not None:
        found = case(only, seed)
        click.echo(f"{found.stream!r}\n{found.verdict}\n{found.difference}\n{found.misread}")
        sys.exit(1 if _failed([found]) else 0)
    verdicts: Counter[str] = Counter()
    differences: dict[Difference, list[int]] = {}
    failures: list[int] = []
    for number in range(cases):
        found = case(number, seed)
        verdicts[found.verdict] += 1
        if found.difference is not None:
            differences.setdefault(found.difference, []).append(number)
        if _failed([found]):
            failures.append(number)
    for verdict, count in verdicts.most_common():
        click.echo(f"{count:8} {verdict}")
    click.echo(f"{sum(map(len, differences.values())):8} read differently by the two parsers")
    for difference, numbers in differences.items():
        click.echo(f"{len(numbers):8} {difference.kind} ({difference.known or 'NOT IN THE LIST'})")
        click.echo(f"         for example {case(numbers[0], seed).stream.hex()}")
    one, other = cost(_LLHTTP), cost(_H11)
    click.echo(f"a head of 12 fields: llhttp {one:.1f} µs, h11 {other:.1f} µs ({other / one:.1f} ×)")
    for number in failures[:10]:
        click.echo(f"FAILED: python -m bench.codecs --seed {seed} --only {number}", err=True)
    if failures:
        sys.exit(1)


def _failed(findings: Sequence[Finding]) -> bool:
    return any(
        found.misread or (found.difference is not None and (found.difference.framing or not found.difference.known))
        for found in findings
    )


if __name__ == "__main__":
    main()
