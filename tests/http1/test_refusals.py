"""Heads that are refused: raw bytes in, the status and the reason out, on every split."""

from __future__ import annotations

import pytest

from trioproxy.errors import Code, ProxyError

from .driver import Refused, drive_requests, drive_responses, every_split, with_fields, with_host, with_target

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
    (b"GET / HTTP/0.9\r\nHost: h\r\n\r\n", 505, "got '0.9'"),
    (b"GET / HTTP/1.2\r\nHost: h\r\n\r\n", 505, "got '1.2'"),
    (b"GET / HTTP/3.0\r\nHost: h\r\n\r\n", 505, "got '3.0'"),
    (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, "got '2.0'"),
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
    (with_fields(b"Content-Length : 5"), BAD, "whitespace between the name 'Content-Length' and the colon"),
    (with_fields(b"Content-Length\t: 5"), BAD, "whitespace between the name 'Content-Length' and the colon"),
    (with_fields(b"X(: a"), BAD, "not a token: 'X('"),
    (with_fields(b"Transfer\xa0Encoding: chunked"), BAD, "not a token"),
    (with_fields("Tran\u017ffer-Encoding: chunked".encode()), BAD, "not a token"),
    (with_fields(b"Content_Length: 5"), BAD, "'content_length'"),
    (with_fields(b"TRANSFER_ENCODING: chunked"), BAD, "'transfer_encoding'"),
    # Content-Length
    (with_fields(b"Content-Length: 01"), BAD, "got '01'"),
    (with_fields(b"Content-Length: 00"), BAD, "got '00'"),
    (with_fields(b"Content-Length: +1"), BAD, "got '+1'"),
    (with_fields(b"Content-Length: -1"), BAD, "got '-1'"),
    (with_fields(b"Content-Length: 0x1"), BAD, "got '0x1'"),
    (with_fields(b"Content-Length: 1_0"), BAD, "got '1_0'"),
    (with_fields(b"Content-Length: 1, 1"), BAD, "got '1, 1'"),
    (with_fields(b"Content-Length: 1 1"), BAD, "got '1 1'"),
    (with_fields(b"Content-Length: 1.0"), BAD, "got '1.0'"),
    (with_fields("Content-Length: \u0661".encode()), BAD, "Content-Length must be"),
    (with_fields(b"Content-Length:"), BAD, "got ''"),
    (with_fields(b"Content-Length: 1000000000000000000"), BAD, "at most 18 digits"),
    (with_fields(b"Content-Length: 1", b"Content-Length: 1"), BAD, "Content-Length must come only once"),
    (with_fields(b"Content-Length: 1", b"content-length: 2"), BAD, "Content-Length must come only once"),
    # Transfer-Encoding
    (with_fields(b"Transfer-Encoding: gzip, chunked"), 501, "got 'gzip, chunked'"),
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
    (with_fields(b"Expect: 200-ok"), 417, "got '200-ok'"),
    (with_fields(b"Expect: 100-continue, else"), 417, "got 'else'"),
    (with_fields(b"Expect: 100-continue", b"Expect: else"), 417, "got 'else'"),
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
    (b"HTTP/1.1 200 OK\r\nContent_Length: 1\r\n\r\n", "'content_length'"),
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
