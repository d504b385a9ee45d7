"""Public vectors: no ambiguous framing passes, and how the bytes were cut changes nothing."""

from __future__ import annotations

import re

import pytest

from trioproxy.http1 import Framing, RequestHead

from .driver import (
    Body,
    Closed,
    Event,
    Refused,
    Unfinished,
    drive_requests,
    drive_responses,
    every_split,
    load_vectors,
)

VECTORS = load_vectors("llhttp.jsonl")
GADGETS = load_vectors("te_gadgets.jsonl")

_CLOSE = "a message that closes is the last one read: what follows is left to the connection, and never parsed"
_NO_TUNNEL = "Upgrade never changes a request's framing: what follows the body must be a request"
_CONNECT = "CONNECT gets 405"
_STAR = "* is for OPTIONS only"
_HTTP_ONLY = "HTTP/1.0 and 1.1 only"
_ZEROS = "Content-Length without leading zeros"
_FRAGMENT = "no fragment in a target"
_EMPTY_LINE = "no empty line before a response"
_CODING = "Transfer-Encoding of a response is exactly chunked, too"
_UNKNOWN_METHOD = "any token is a method (RFC 9110 section 9.1)"

STRICTER: dict[str, str] = {
    # llhttp accepts, we refuse.
    "request/connection.md::CRLF between requests, implicit `keep-alive`": "its second request has no Host",
    "request/connection.md::Multiple tokens with folding and LWS": _NO_TUNNEL,
    "request/connection.md::Emitting part of body and pausing": _NO_TUNNEL,
    "request/connection.md::Upgrade GET request": _NO_TUNNEL,
    "request/connection.md::Upgrade POST request": _NO_TUNNEL,
    "request/content-length.md::`Content-Length` with zeroes": _ZEROS,
    "request/content-length.md::`Content-Length` with follow-up headers": _ZEROS,
    "request/finish.md::It should be unsafe to finish inside of the header": "the line that was cut has no colon",
    "request/method.md::CONNECT request": _CONNECT,
    "request/method.md::CONNECT request with CAPS": _CONNECT,
    "request/method.md::CONNECT with body": _CONNECT,
    "request/uri.md::Underscore in hostname": _CONNECT,
    "request/method.md::M-SEARCH request": _STAR,
    "request/method.md::PRI request HTTP2": _STAR,
    "request/method.md::SOURCE request with ICE": _HTTP_ONLY,
    "request/method.md::OPTIONS request with RTSP": _HTTP_ONLY,
    "request/method.md::ANNOUNCE request with RTSP": _HTTP_ONLY,
    "request/sample.md::No HTTP version": _HTTP_ONLY,
    "request/transfer-encoding.md::POST with `chunked` as last transfer-encoding": _FRAGMENT,
    "request/transfer-encoding.md::POST with `chunked` as last transfer-encoding (multiple headers)": _FRAGMENT,
    "request/uri.md::Fragment in URI": _FRAGMENT,
    "request/uri.md::`host:port` and basic auth": "no userinfo in a target",
    "response/connection.md::HTTP 304 with Content-Length": _EMPTY_LINE,
    "response/connection.md::HTTP 100 first, then 400": _EMPTY_LINE,
    "response/pipelining.md::Should parse multiple events": _EMPTY_LINE,
    "response/sample.md::Response starting with CRLF": _EMPTY_LINE,
    "response/sample.md::RTSP response": _HTTP_ONLY,
    "response/sample.md::ICE response": _HTTP_ONLY,
    "response/sample.md::HTTP version 0.9": _HTTP_ONLY,
    "response/transfer-encoding.md::`chunked` before other transfer-encoding": _CODING,
    "response/transfer-encoding.md::multiple transfer-encoding where chunked is not the last one": _CODING,
    "response/transfer-encoding.md::`chunkedchunked` transfer-encoding does not enable chunked enconding": _CODING,
}
LAXER: dict[str, str] = {
    # llhttp refuses, or accepts only when told to be lenient; we accept.
    "request/connection.md::No restart when keep-alive is off (1.0)": _CLOSE,
    "request/connection.md::Resetting flags when keep-alive is off (1.0, lenient)": _CLOSE,
    "request/connection.md::CRLF between requests, explicit `close`": _CLOSE,
    "request/connection.md::CRLF between requests, explicit `close` followed by tab": _CLOSE,
    "request/connection.md::CRLF between requests, explicit `close` (lenient)": _CLOSE,
    "request/invalid.md::HTTP protocol and ANNOUNCE method": _UNKNOWN_METHOD,
    "request/invalid.md::Invalid method": _UNKNOWN_METHOD,
    "response/connection.md::HTTP/1.1 with keep-alive disabled and 204 status": _CLOSE,
    "response/connection.md::HTTP/1.1 with keep-alive disabled and 204 status (lenient)": _CLOSE,
    "response/connection.md::HTTP/1.1 with keep-alive disabled, content-length": _CLOSE,
    "response/connection.md::HTTP/1.1 with keep-alive disabled, content-length (lenient)": _CLOSE,
}

_request_line_without_host = re.compile(rb"([A-Z-]+ [^ \r\n]+ HTTP/1\.1\r\n)(?!(?:[^\r\n]+\r\n)*?[Hh][Oo][Ss][Tt]:)")


def drive(vector: dict[str, object], data: bytes, cuts: list[int] | None = None) -> list[Event]:
    if str(vector["type"]).startswith("request"):
        return drive_requests(data, cuts or ())
    return drive_responses(data, cuts or ())


def variants(vector: dict[str, object]) -> list[bytes]:
    """The vector, with the end of the head that most of them lack; with Host, so that other rules get their turn."""
    data = bytes.fromhex(str(vector["bytes_hex"]))
    if str(vector["type"]).startswith("request"):
        data = _request_line_without_host.sub(rb"\1Host: h\r\n", data)
    return [data, data + b"\r\n", data + b"\r\n\r\n"]


def accepts(vector: dict[str, object]) -> bool:
    """Whether we accept the vector once its head has ended."""
    for data in variants(vector):
        events = drive(vector, data)
        if events and not isinstance(events[-1], Unfinished):
            return not isinstance(events[-1], Refused)
    raise AssertionError(f"nothing happened: {vector}")


def always_accepts(vector: dict[str, object]) -> bool:
    """Whether we accept the vector whatever ends it."""
    return not any(isinstance(event, Refused) for data in variants(vector) for event in drive(vector, data))


def test_verdicts_are_those_of_strict_llhttp_but_for_a_list_of_reasons() -> None:
    stricter: set[str] = set()
    laxer: set[str] = set()
    for vector in VECTORS:
        identity = str(vector["id"])
        if "lenient" in str(vector["type"]) or vector["verdict"] == "reject":
            if always_accepts(vector):
                laxer.add(identity)
        elif not accepts(vector):
            stricter.add(identity)
    assert stricter == set(STRICTER)
    assert laxer == set(LAXER)


def test_what_follows_a_message_that_closes_is_not_parsed() -> None:
    for vector in VECTORS:
        if LAXER.get(str(vector["id"])) == _CLOSE:
            events = drive(vector, variants(vector)[0])
            assert isinstance(events[-1], Closed)
            assert len(events) == 3  # one head, one body


@pytest.mark.parametrize("number", range(0, len(VECTORS), 10))
def test_every_split_gives_the_same_events(number: int) -> None:
    for vector in VECTORS[number : number + 10]:
        for data in {bytes.fromhex(str(vector["bytes_hex"])), variants(vector)[2]}:
            whole = drive(vector, data)
            for cuts in every_split(data):
                assert drive(vector, data, cuts) == whole, (vector["id"], cuts)


def smuggle(gadget: dict[str, object]) -> bytes:
    line = bytes.fromhex(str(gadget["gadget_header_hex"]))
    return b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n" + line + b"\r\n\r\n0\r\n\r\n"


@pytest.mark.parametrize("gadget", GADGETS, ids=[str(gadget["id"]) for gadget in GADGETS])
def test_disguised_transfer_encoding_is_refused_or_not_one(gadget: dict[str, object]) -> None:
    events = drive_requests(smuggle(gadget))
    if isinstance(events[-1], Refused):
        assert events[-1].code == "bad_request"
        assert len(events) == 1
        return
    head, body = events
    assert isinstance(head, RequestHead)
    assert head.framing == Framing.of_length(5)
    assert body == Body(b"0\r\n\r\n", True)
    # Harmless: one line whose name nobody takes for Transfer-Encoding.
    assert not [key for key, _, _ in head.fields if b"transfer" in key.replace(b"_", b"-")]


def test_disguises_give_the_same_events_on_every_split() -> None:
    for gadget in GADGETS:
        data = smuggle(gadget)
        whole = drive_requests(data)
        for cuts in every_split(data):
            assert drive_requests(data, cuts) == whole, (gadget["id"], cuts)
