"""Heads that are accepted: raw bytes in, what was understood out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trioproxy.errors import Fault
from trioproxy.http1 import (
    CHUNKED,
    NO_BODY,
    UNTIL_CLOSE,
    Framing,
    HeadReader,
    RequestHead,
    ResponseHead,
    get,
    read_response_head,
)
from trioproxy.http1.rules import check_authority, plain_authority

from .driver import (
    LIMITS,
    PARSER,
    Refused,
    Unfinished,
    drive_requests,
    drive_responses,
    request,
    with_fields,
    with_host,
    with_target,
)


def response(raw: bytes, method: bytes = b"GET") -> ResponseHead:
    (event,) = [event for event in drive_responses(raw, method=method) if isinstance(event, ResponseHead)]
    return event


def test_a_usual_request_is_understood() -> None:
    head = request(
        b"POST /v1/chat/completions?x=%zz HTTP/1.1\r\nhOst: api.example.com:8080\r\nX-Empty:\r\n"
        b"X-Trim: \t a\tb \t\r\nX-Latin: \xe9\r\nContent-Length: 5\r\n\r\n"
    )
    assert head == RequestHead(
        method=b"POST",
        target=b"/v1/chat/completions?x=%zz",
        http_11=True,
        fields=[
            (b"host", b"hOst", b"api.example.com:8080"),
            (b"x-empty", b"X-Empty", b""),
            (b"x-trim", b"X-Trim", b"a\tb"),
            (b"x-latin", b"X-Latin", b"\xe9"),
            (b"content-length", b"Content-Length", b"5"),
        ],
        framing=Framing.of_length(5),
        keep_alive=True,
        expect_continue=False,
        host=b"api.example.com:8080",
        te_trailers=False,
    )


def test_a_usual_response_is_understood() -> None:
    head = response(b"HTTP/1.1 200 All right\r\nContent-Length: 0\r\nSet-Cookie: a\r\nSet-Cookie: b\r\n\r\n")
    assert head == ResponseHead(
        status=200,
        reason=b"All right",
        http_11=True,
        fields=[
            (b"content-length", b"Content-Length", b"0"),
            (b"set-cookie", b"Set-Cookie", b"a"),
            (b"set-cookie", b"Set-Cookie", b"b"),
        ],
        framing=Framing.of_length(0),
        keep_alive=True,
    )


@pytest.mark.parametrize("line", [b"HTTP/1.1 200", b"HTTP/1.1 200 "])
def test_a_reason_phrase_may_be_missing(line: bytes) -> None:
    assert response(line + b"\r\nContent-Length: 0\r\n\r\n").reason == b""


@pytest.mark.parametrize(
    ("lines", "framing"),
    [
        ([], NO_BODY),
        ([b"Content-Length: 0"], Framing.of_length(0)),
        ([b"Content-Length:\t7 "], Framing.of_length(7)),
        ([b"Content-Length: 999999999999999999"], Framing.of_length(10**18 - 1)),
        ([b"Transfer-Encoding: chunked"], CHUNKED),
        ([b"Transfer-Encoding:\t ChUnKeD\t"], CHUNKED),
        ([b"Content-Length-X: 3"], NO_BODY),
        # Upgrade never changes the framing.
        ([b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"Content-Length: 7"], Framing.of_length(7)),
    ],
)
def test_framing_of_requests(lines: list[bytes], framing: Framing) -> None:
    for method in (b"GET", b"POST", b"OPTIONS", b"BREW"):
        assert request(with_fields(*lines, line=method + b" / HTTP/1.1")).framing == framing


@pytest.mark.parametrize("status", [100, 103, 101, 204])
@pytest.mark.parametrize("length", [b"1, 1", b"+1", b"01", b"x", b"", b"9" * 20])
def test_a_length_that_is_none_is_refused_even_where_it_means_nothing(status: int, length: bytes) -> None:
    """Parsers differ there: found by ``python -m bench.codecs``."""
    (found,) = drive_responses(b"HTTP/1.1 %d X\r\nContent-Length: %b\r\n\r\n" % (status, length))
    assert isinstance(found, Refused)


@pytest.mark.parametrize(
    ("status", "method", "lines", "framing"),
    [
        (200, b"GET", [], UNTIL_CLOSE),
        (200, b"GET", [b"Content-Length: 3"], Framing.of_length(3)),
        (200, b"GET", [b"Transfer-Encoding: Chunked"], CHUNKED),
        (200, b"HEAD", [], NO_BODY),
        (200, b"HEAD", [b"Content-Length: 3"], NO_BODY),
        (200, b"HEAD", [b"Transfer-Encoding: chunked"], NO_BODY),
        (404, b"HEAD", [b"Content-Length: 3"], NO_BODY),
        (200, b"head", [b"Content-Length: 3"], Framing.of_length(3)),  # methods are case-sensitive
        (304, b"GET", [b"Content-Length: 3"], NO_BODY),
        (304, b"GET", [b"Transfer-Encoding: chunked"], NO_BODY),
        (204, b"GET", [b"Content-Length: 3"], NO_BODY),
        (204, b"GET", [b"Content-Length: 3", b"Transfer-Encoding: gzip"], NO_BODY),
        (100, b"POST", [], NO_BODY),
        (103, b"POST", [b"Content-Length: 3"], NO_BODY),
        (101, b"GET", [b"Upgrade: websocket", b"Connection: upgrade", b"Content-Length: 3"], NO_BODY),
        (205, b"GET", [b"Content-Length: 0"], Framing.of_length(0)),
    ],
)
def test_framing_of_responses(status: int, method: bytes, lines: list[bytes], framing: Framing) -> None:
    raw = b"HTTP/1.1 %d X\r\n" % status + b"".join(line + b"\r\n" for line in lines) + b"\r\n"
    head = read_response_head(raw, PARSER, LIMITS, request_method=method)
    assert head.framing == framing
    if status < 200 or status == 204:
        assert get(head.fields, b"content-length") is None
        assert get(head.fields, b"transfer-encoding") is None
    else:
        assert len(head.fields) == len(lines)


@pytest.mark.parametrize(
    ("version", "lines", "keep_alive"),
    [
        (b"1.1", [], True),
        (b"1.1", [b"Connection: close"], False),
        (b"1.1", [b"Connection: CLOSE"], False),
        (b"1.1", [b"Connection: keep-alive"], True),
        (b"1.1", [b"Connection: keep-alive", b"Connection: x, close"], False),
        (b"1.1", [b"Connection: x,close,keep-alive"], False),
        (b"1.1", [b"Connection: closed"], True),
        (b"1.1", [b"Proxy-Connection: close"], True),
        (b"1.0", [], False),
        (b"1.0", [b"Connection: keep-alive"], True),
        (b"1.0", [b"Connection: x", b"Connection: Keep-Alive"], True),
        (b"1.0", [b"Connection: keep-alive, close"], False),
    ],
)
def test_keep_alive(version: bytes, lines: list[bytes], keep_alive: bool) -> None:
    assert request(with_fields(*lines, line=b"GET / HTTP/" + version)).keep_alive is keep_alive
    raw = b"".join(line + b"\r\n" for line in lines) + b"\r\n"
    assert response(b"HTTP/" + version + b" 200 OK\r\nContent-Length: 0\r\n" + raw).keep_alive is keep_alive
    assert response(b"HTTP/" + version + b" 200 OK\r\n" + raw).keep_alive is False  # it ends with the connection


@pytest.mark.parametrize(
    ("method", "target", "host", "forwarded"),
    [
        (b"GET", b"/", b"h", b"/"),
        (b"GET", b"//a//b", b"h", b"//a//b"),
        (b"GET", b"/?a=%zz%00", b"h", b"/?a=%zz%00"),
        (b"GET", b"/%41%2f%7E?%", b"h", b"/%41%2f%7E?%"),
        (b"GET", b'/"<>\\^`{|}~', b"h", b'/"<>\\^`{|}~'),
        (b"OPTIONS", b"*", b"h", b"*"),
        (b"GET", b"http://other", b"other", b"/"),
        (b"GET", b"HTTPS://other:8080/a/b?c", b"other:8080", b"/a/b?c"),
        (b"GET", b"http://other?x=/y", b"other", b"/?x=/y"),
        (b"GET", b"http://[::1]:80/a", b"[::1]:80", b"/a"),
        (b"OPTIONS", b"http://other", b"other", b"*"),
        (b"OPTIONS", b"http://other/", b"other", b"/"),
        (b"OPTIONS", b"http://other?x", b"other", b"/?x"),
    ],
)
def test_targets(method: bytes, target: bytes, host: bytes, forwarded: bytes) -> None:
    head = request(with_target(target, method))
    assert (head.target, head.host) == (forwarded, host)
    assert head.fields == [(b"host", b"Host", host)]


def test_an_absolute_target_gives_an_old_request_its_host() -> None:
    head = request(b"GET http://other/a HTTP/1.0\r\nX: y\r\n\r\n")
    assert head.fields == [(b"host", b"Host", b"other"), (b"x", b"X", b"y")]
    assert request(b"GET /a HTTP/1.0\r\n\r\n").host == b""


@pytest.mark.parametrize(
    "host",
    [
        b"h", b"H.example.", b"1.2.3.4", b"1.2.3.4:0", b"h:65535", b"h:", b"[::]", b"[::1]:443", b"[::ffff:1.2.3.4]",
        b"under_score", b"xn--hwa", b"h%C3%B6", b"a-.b~!$&'()*+,;=c",
    ],
)  # fmt: skip
def test_hosts(host: bytes) -> None:
    assert request(with_host(host)).host == host


@given(st.text("aZ9-_~%.:[]", max_size=12).map(str.encode) | st.from_regex(rb"[a1.%]{0,4}:6[0-9]{3,5}", fullmatch=True))
def test_what_the_quick_pattern_of_hosts_matches_is_a_host(host: bytes) -> None:
    if plain_authority(host):
        check_authority(host, "Host")


@pytest.mark.parametrize(
    ("lines", "version", "waits"),
    [
        ([b"Expect: 100-Continue", b"Content-Length: 5"], b"1.1", True),
        ([b"Expect: 100-continue", b"Transfer-Encoding: chunked"], b"1.1", True),
        ([b"Expect: 100-continue", b"Content-Length: 5"], b"1.0", False),
        ([b"Expect: 100-continue", b"Content-Length: 0"], b"1.1", False),
        ([b"Expect: 100-continue"], b"1.1", False),
        ([b"Content-Length: 5"], b"1.1", False),
    ],
)
def test_expect_continue(lines: list[bytes], version: bytes, waits: bool) -> None:
    assert request(with_fields(*lines, line=b"POST / HTTP/" + version)).expect_continue is waits


@pytest.mark.parametrize(
    ("lines", "taken"),
    [
        ([], False),
        ([b"TE: trailers"], True),
        ([b"TE: gzip;q=0.5, Trailers"], True),
        ([b"TE: gzip", b"TE: trailers"], True),
        ([b"TE: gzip"], False),
        ([b"Trailer: trailers"], False),
    ],
)
def test_te_trailers(lines: list[bytes], taken: bool) -> None:
    assert request(with_fields(*lines)).te_trailers is taken


def test_empty_lines_before_a_request_are_skipped_and_start_nothing() -> None:
    reader = HeadReader(LIMITS, fault=Fault.CLIENT)
    for byte in b"\r\n" * 8:
        assert reader.feed(bytes([byte])) is None
        assert not reader.started
    assert reader.feed(b"G") is None
    assert reader.started
    assert reader.feed(b"ET / HTTP/1.1\r\n\r\nrest") == b"GET / HTTP/1.1\r\n\r\n"
    assert not reader.started
    assert reader.take_rest() == b"rest"
    assert reader.take_rest() == b""


def test_the_rest_stays_until_it_is_taken() -> None:
    one = with_fields()
    reader = HeadReader(LIMITS, fault=Fault.CLIENT)
    assert reader.feed(one + one + one[:5]) == one
    assert reader.feed(b"") == one
    assert reader.feed(b"") is None
    assert reader.started
    assert reader.feed(one[5:]) == one
    assert reader.take_rest() == b""


def test_a_head_that_has_begun_is_unfinished() -> None:
    assert drive_requests(b"GET / HT") == [Unfinished()]
    assert drive_requests(b"\r\n\r") == []
