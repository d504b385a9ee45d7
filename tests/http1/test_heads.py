"""Heads: raw bytes in, what was refused and why, or what was understood; limits to the byte; every split."""

from __future__ import annotations

import pytest

from trioproxy.errors import Code, Fault, ProxyError
from trioproxy.http1 import (
    CHUNKED,
    NO_BODY,
    UNTIL_CLOSE,
    Framing,
    HeadLimits,
    HeadReader,
    RequestHead,
    ResponseHead,
    get,
    read_request_head,
    read_response_head,
)

from .driver import LIMITS, PARSER, Event, Refused, Unfinished, drive_requests, drive_responses, every_split


def request(raw: bytes) -> RequestHead:
    (event,) = [event for event in drive_requests(raw) if isinstance(event, RequestHead)]
    return event


def response(raw: bytes, method: bytes = b"GET") -> ResponseHead:
    (event,) = [event for event in drive_responses(raw, method=method) if isinstance(event, ResponseHead)]
    return event


def with_fields(*lines: bytes, line: bytes = b"POST /v1 HTTP/1.1", host: bytes = b"Host: h\r\n") -> bytes:
    return line + b"\r\n" + host + b"".join(field + b"\r\n" for field in lines) + b"\r\n"


def with_target(target: bytes, method: bytes = b"GET") -> bytes:
    return with_fields(line=method + b" " + target + b" HTTP/1.1")


def with_host(value: bytes) -> bytes:
    return with_fields(host=b"Host: " + value + b"\r\n")


BAD = 400
# raw bytes, status, what the message says
REFUSED_REQUESTS: list[tuple[bytes, int, str]] = [
    # The start line
    (b"GET  / HTTP/1.1\r\nHost: h\r\n\r\n", BAD, "single spaces"),
    (b"GET / HTTP/1.1 \r\nHost: h\r\n\r\n", BAD, "single spaces"),
    (b" GET / HTTP/1.1\r\nHost: h\r\n\r\n", BAD, "single spaces"),
    (b"GET\t/\tHTTP/1.1\r\nHost: h\r\n\r\n", BAD, "single spaces"),
    (b"GET /\r\n\r\n", BAD, "single spaces"),
    (b"\xff\xfe / HTTP/1.1\r\nHost: h\r\n\r\n", BAD, "method must be a token"),
    (b"GE(T / HTTP/1.1\r\nHost: h\r\n\r\n", BAD, "method must be a token"),
    (b"GET / http/1.1\r\nHost: h\r\n\r\n", BAD, "request line must be"),
    (b"GET / HTTP/11.1\r\nHost: h\r\n\r\n", BAD, "request line must be"),
    (b"GET / HTTP/1.01\r\nHost: h\r\n\r\n", BAD, "request line must be"),
    (b"GET / HTTP/1\r\nHost: h\r\n\r\n", BAD, "request line must be"),
    (b"GET / HTTP/0.9\r\nHost: h\r\n\r\n", 505, "got b'0.9'"),
    (b"GET / HTTP/1.2\r\nHost: h\r\n\r\n", 505, "got b'1.2'"),
    (b"GET / HTTP/3.0\r\nHost: h\r\n\r\n", 505, "got b'3.0'"),
    (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, "got b'2.0'"),
    (b"CONNECT h:443 HTTP/1.1\r\nHost: h:443\r\n\r\n", 405, "CONNECT"),
    # Lines
    (b"GET / HTTP/1.1\nHost: h\n\n", BAD, "bare LF"),
    (b"GET / HTTP/1.1\r\nHost: h\n\r\n", BAD, "bare LF"),
    (b"GET / HTTP/1.1\r\nHost: h\r\n\n", BAD, "bare LF"),
    (b"GET / HTTP/1.1\r\nHost: h\rX: a\r\n\r\n", BAD, "CR was not followed by LF"),
    (b"GET / HTTP/1.1\r\nHost: h\r\r\n\r\n", BAD, "CR was not followed by LF"),
    (b"GET / HTTP/1.1\r\nHost: h\r\nX: a\x00b\r\n\r\n", BAD, "0x00"),
    (b"GET / HTTP/1.1\r\nHost: h\r\nX: a\x0bb\r\n\r\n", BAD, "0x0b"),
    (b"GET / HTTP/1.1\r\nHost: h\r\nX: a\x7fb\r\n\r\n", BAD, "0x7f"),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", BAD, "0x16"),  # TLS on a plain port
    (b"\n", BAD, "bare LF"),
    (b"\rGET / HTTP/1.1\r\n\r\n", BAD, "CR was not followed by LF"),
    (b"\r\n" * 9, BAD, "at most 8 empty lines"),
    # Fields
    (with_fields(b"X: a", b" b"), BAD, "header line 3 begins with whitespace"),
    (with_fields(b"X: a", b"\tb"), BAD, "header line 3 begins with whitespace"),
    (b"GET / HTTP/1.1\r\n Host: h\r\n\r\n", BAD, "header line 1 begins with whitespace"),
    (with_fields(b"Authorization Bearer secret"), BAD, "header line 2 has no colon"),
    (with_fields(b": a"), BAD, "header line 2 has an empty name"),
    (with_fields(b"Content-Length : 5"), BAD, "whitespace between the name b'Content-Length' and the colon"),
    (with_fields(b"Content-Length\t: 5"), BAD, "whitespace between the name b'Content-Length' and the colon"),
    (with_fields(b"X(: a"), BAD, "not a token: b'X('"),
    (with_fields(b"Transfer\xa0Encoding: chunked"), BAD, "not a token"),
    (with_fields("Tran\u017ffer-Encoding: chunked".encode()), BAD, "not a token"),
    (with_fields(b"Content_Length: 5"), BAD, "b'content_length'"),
    (with_fields(b"TRANSFER_ENCODING: chunked"), BAD, "b'transfer_encoding'"),
    # Content-Length
    (with_fields(b"Content-Length: 01"), BAD, "got b'01'"),
    (with_fields(b"Content-Length: 00"), BAD, "got b'00'"),
    (with_fields(b"Content-Length: +1"), BAD, "got b'+1'"),
    (with_fields(b"Content-Length: -1"), BAD, "got b'-1'"),
    (with_fields(b"Content-Length: 0x1"), BAD, "got b'0x1'"),
    (with_fields(b"Content-Length: 1_0"), BAD, "got b'1_0'"),
    (with_fields(b"Content-Length: 1, 1"), BAD, "got b'1, 1'"),
    (with_fields(b"Content-Length: 1 1"), BAD, "got b'1 1'"),
    (with_fields(b"Content-Length: 1.0"), BAD, "got b'1.0'"),
    (with_fields("Content-Length: \u0661".encode()), BAD, "Content-Length must be"),
    (with_fields(b"Content-Length:"), BAD, "got b''"),
    (with_fields(b"Content-Length: 1000000000000000000"), BAD, "at most 18 digits"),
    (with_fields(b"Content-Length: 1", b"Content-Length: 1"), BAD, "Content-Length must come only once"),
    (with_fields(b"Content-Length: 1", b"content-length: 2"), BAD, "Content-Length must come only once"),
    # Transfer-Encoding
    (with_fields(b"Transfer-Encoding: gzip, chunked"), 501, "got b'gzip, chunked'"),
    (with_fields(b"Transfer-Encoding: gzip"), BAD, "must be exactly chunked"),
    (with_fields(b"Transfer-Encoding: identity"), BAD, "must be exactly chunked"),
    (with_fields(b"Transfer-Encoding: chunked, chunked"), BAD, "must be exactly chunked"),
    (with_fields(b"Transfer-Encoding: chunked, gzip"), BAD, "must be exactly chunked"),
    (with_fields(b"Transfer-Encoding: chunked,"), BAD, "must be exactly chunked"),
    (with_fields(b"Transfer-Encoding: chunked;a=b"), BAD, "must be exactly chunked"),
    (with_fields(b'Transfer-Encoding: "chunked"'), BAD, "must be exactly chunked"),
    (with_fields(b"Transfer-Encoding: xchunked"), BAD, "must be exactly chunked"),
    (with_fields(b"Transfer-Encoding:"), BAD, "must be exactly chunked"),
    (with_fields("Transfer-Encoding: chun\u212aed".encode()), BAD, "must be exactly chunked"),
    (
        with_fields(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"),
        BAD,
        "Transfer-Encoding must come only",
    ),
    (with_fields(b"Transfer-Encoding: chunked", b"Content-Length: 5"), BAD, "must not come together"),
    (with_fields(b"Content-Length: 5", b"Transfer-Encoding: gzip"), BAD, "must not come together"),
    (with_fields(b"Transfer-Encoding: chunked", line=b"POST / HTTP/1.0"), BAD, "does not exist in HTTP/1.0"),
    # Host
    (with_fields(host=b""), BAD, "must have a Host"),
    (with_fields(b"Host: h"), BAD, "Host must come only once"),
    (with_fields(b"Host: h", line=b"GET / HTTP/1.0"), BAD, "Host must come only once"),
    *(
        (with_host(value), BAD, "Host must")
        for value in (
            b"",
            b"a/b",
            b"..",
            b"a..b",
            b".a",
            b":80",
            b":1.2",
            b"h:98777",
            b"h:65536",
            b"h:-1",
            b"h:8o",
            b"h:80:80",
            b"[::1",
            b"::1",
            b"[::1]x",
            b"[:::1]",
            b"[1.2.3.4]",
            b"[fe80::1%25eth0]",
            b"[v1.x]",
            b"[]",
            b"user@h",
            b"h?x",
            b"h#x",
            b"h\\x",
            b"a b",
            b"a, b",
            b'"h"',
            b"<h>",
            b"h%2fx",
            b"h%zz",
            b"h%8",
            "h\u00f6".encode(),
        )
    ),
    # Targets
    (with_target(b"/#frag"), BAD, "fragment"),
    (with_target(b"/a b"), BAD, "single spaces"),
    (with_target("/h\u00f6".encode()), BAD, "visible ASCII"),
    (with_target(b"path"), BAD, "must begin with / or be an http URL"),
    (with_target(b"h:443"), BAD, "must begin with / or be an http URL"),
    (with_target(b"ftp://h/"), BAD, "must begin with / or be an http URL"),
    (with_target(b"http:/h/"), BAD, "must begin with / or be an http URL"),
    (with_target(b"http:///x"), BAD, "the request target must be a host"),
    (with_target(b"http://a/b@c".replace(b"/b", b"")), BAD, "user or password"),
    (with_target(b"http://u:p@h/"), BAD, "user or password"),
    (with_target(b"http://h:99999/"), BAD, "port up to 65535"),
    (with_target(b"http://..//"), BAD, "the request target must be a host"),
    (with_target(b"*"), BAD, "OPTIONS only"),
    (with_target(b"*x", b"OPTIONS"), BAD, "must begin with /"),
    (with_target(b"/a%"), BAD, "two hex digits"),
    (with_target(b"/a%2"), BAD, "two hex digits"),
    (with_target(b"/a%2?b=22"), BAD, "two hex digits"),
    (with_target(b"/a%zz"), BAD, "two hex digits"),
    (with_target(b"/a%00b"), BAD, "%00"),
    (with_target(b"http://h/a%00b"), BAD, "%00"),
    # Expectations
    (with_fields(b"Expect: 200-ok"), 417, "got b'200-ok'"),
    (with_fields(b"Expect: 100-continue, else"), 417, "got b'else'"),
    (with_fields(b"Expect: 100-continue", b"Expect: else"), 417, "got b'else'"),
]


@pytest.mark.parametrize(("raw", "status", "message"), REFUSED_REQUESTS)
def test_refused_requests(raw: bytes, status: int, message: str) -> None:
    events = drive_requests(raw)
    (refused,) = events
    assert isinstance(refused, Refused)
    assert ProxyError(Code(refused.code), "").status == status
    assert message in refused.message
    for cuts in every_split(raw):
        assert drive_requests(raw, cuts) == events, cuts


REFUSED_RESPONSES: list[tuple[bytes, str]] = [
    (b"HTTP/1.1  200 OK\r\n\r\n", "status line must be"),
    (b"HTTP/1.1 20 OK\r\n\r\n", "status line must be"),
    (b"HTTP/1.1 2000 OK\r\n\r\n", "status line must be"),
    (b"HTTP/1.1 200OK\r\n\r\n", "status line must be"),
    (b"HTTP/1.1 2x0 OK\r\n\r\n", "status line must be"),
    (b"http/1.1 200 OK\r\n\r\n", "status line must be"),
    (b"ICY 200 OK\r\n\r\n", "status line must be"),
    (b"HTTP/1.1 099 OK\r\n\r\n", "from 100 to 599"),
    (b"HTTP/1.1 600 OK\r\n\r\n", "from 100 to 599"),
    (b"HTTP/2.0 200 OK\r\n\r\n", "only HTTP/1.0 and HTTP/1.1"),
    (b"HTTP/0.9 200 OK\r\n\r\n", "only HTTP/1.0 and HTTP/1.1"),
    (b"\r\nHTTP/1.1 200 OK\r\n\r\n", "empty line"),
    (b"HTTP/1.1 200 O\x08K\r\n\r\n", "0x08"),
    (b"HTTP/1.1 200 OK\n\n", "bare LF"),
    (b"HTTP/1.1 200 OK\r\nX : a\r\n\r\n", "whitespace between"),
    (b"HTTP/1.1 200 OK\r\nX: a\r\n b\r\n\r\n", "begins with whitespace"),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n", "only once"),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 1, 1\r\n\r\n", "Content-Length must be"),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", "must not come together"),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", "only transfer coding"),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, chunked\r\n\r\n", "exactly chunked"),
    (b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "does not exist in HTTP/1.0"),
    (b"HTTP/1.1 200 OK\r\nContent_Length: 1\r\n\r\n", "b'content_length'"),
    (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 1, 1\r\n\r\n", "Content-Length must be"),
]


@pytest.mark.parametrize(("raw", "message"), REFUSED_RESPONSES)
def test_refused_responses(raw: bytes, message: str) -> None:
    events = drive_responses(raw)
    (refused,) = events
    assert isinstance(refused, Refused)
    assert refused.code == "bad_response"
    assert message in refused.message
    for cuts in every_split(raw):
        assert drive_responses(raw, cuts) == events, cuts


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


def test_messages_are_bounded_and_keep_secrets() -> None:
    for raw in (
        with_fields(b"Authorization : Bearer secret"),
        with_fields(b"Authorization: Bearer", b" secret"),
        with_fields(b"secret"),
        with_fields(b"X-Key: secret\x07"),
        with_target(b"/%?key=secret"),
        with_target(b"http://u:secret@h/"),
        with_target(b"x://u:secret@h/"),
        b"GET /?key=secret  HTTP/1.1\r\n\r\n",
        with_host(b"u?secret"),
    ):
        (refused,) = drive_requests(raw)
        assert isinstance(refused, Refused)
        assert "secret" not in refused.message
    (refused,) = drive_requests(with_fields(b"Content-Length: " + b"9" * 5000))
    assert isinstance(refused, Refused)
    assert len(refused.message) < 300


def exact(limits: HeadLimits, fits: bytes, over: bytes, status: int) -> None:
    """`fits` is accepted and `over` refused, however they are cut."""

    def seen(raw: bytes, cuts: list[int]) -> Event:
        return drive_requests(raw, cuts, limits)[0]

    for cuts in ([], *every_split(fits)):
        assert isinstance(seen(fits, cuts), RequestHead), cuts
    for cuts in ([], *every_split(over)):
        refused = seen(over, cuts)
        assert isinstance(refused, Refused)
        assert ProxyError(Code(refused.code), "").status == status, cuts


def test_the_size_limit_is_exact_to_the_byte() -> None:
    fits = with_fields(b"X: " + b"a" * 50)
    exact(HeadLimits(size=len(fits)), fits, with_fields(b"X: " + b"a" * 51), 431)
    exact(HeadLimits(size=len(fits)), b"\r\n" * 8 + fits, b"\r\n" * 8 + with_fields(b"X: " + b"a" * 51), 431)


def test_the_field_limit_is_exact_to_the_field() -> None:
    lines = [b"X: a"] * 5
    exact(HeadLimits(fields=6), with_fields(*lines), with_fields(*lines, b"Y: b"), 431)


def test_the_target_limit_is_exact_to_the_byte() -> None:
    exact(HeadLimits(target=10), with_target(b"/" + b"a" * 9), with_target(b"/" + b"a" * 10), 414)


def test_a_limit_is_told_on_the_byte_that_breaks_it() -> None:
    for limits, raw, status in (
        (HeadLimits(size=40), b"GET / HTTP/1.1\r\nX: ".ljust(40, b"a"), 431),
        (HeadLimits(target=10), b"GET /".ljust(15, b"a"), 414),
    ):
        reader = HeadReader(limits, fault=Fault.CLIENT)
        assert reader.feed(raw[:-1]) is None
        with pytest.raises(ProxyError) as refused:
            reader.feed(raw[-1:])
        assert refused.value.status == status


@pytest.mark.parametrize("wrong", [b"\n", b"\x00", b"\rx", b"\x1b"])
@pytest.mark.parametrize("place", range(20, 45, 3))
def test_of_several_faults_the_first_decides_on_every_split(place: int, wrong: bytes) -> None:
    limits = HeadLimits(size=36, target=22)
    line = b"GET /" + b"a" * 24 + b" HTTP/1.1\r\n"
    for raw in (line + b"\r\n", b"GET / HTTP/1.1\r\nX: " + b"a" * 40):
        broken = raw[:place] + wrong + raw[place:]
        whole = drive_requests(broken, limits=limits)
        for cuts in every_split(broken):
            assert drive_requests(broken, cuts, limits) == whole, (broken, cuts)


def test_default_limits_hold() -> None:
    head = with_fields(*[b"X: a"] * 99)
    assert len(request(head).fields) == 100
    big = with_fields(b"X: " + b"a" * (65536 - len(with_fields(b"X: "))))
    assert len(big) == 65536
    assert len(request(big).fields) == 2
    assert len(request(with_target(b"/" + b"a" * 8191)).target) == 8192
    for raw, code in (
        (with_fields(*[b"X: a"] * 100), "head_too_large"),
        (with_fields(b"X: " + b"a" * (65537 - len(with_fields(b"X: ")))), "head_too_large"),
        (with_target(b"/" + b"a" * 8192), "target_too_long"),
    ):
        assert drive_requests(raw) == [Refused(code, "")]


def test_limits_hold_without_the_reader() -> None:
    with pytest.raises(ProxyError) as refused:
        read_request_head(with_target(b"/aaa"), PARSER, HeadLimits(target=3))
    assert refused.value.code is Code.TARGET_TOO_LONG
    with pytest.raises(ProxyError) as refused:
        read_response_head(
            b"HTTP/1.1 200 OK\r\nA: b\r\nA: b\r\n\r\n", PARSER, HeadLimits(fields=1), request_method=b"GET"
        )
    assert refused.value.code is Code.BAD_RESPONSE


def test_a_head_that_has_begun_is_unfinished() -> None:
    assert drive_requests(b"GET / HT") == [Unfinished()]
    assert drive_requests(b"\r\n\r") == []
