"""The head of a request as its upstream gets it."""

from __future__ import annotations

import pytest

from trioproxy import Code, Fault, ProxyError
from trioproxy.http1 import HeadLimits, HeadReader, RequestHead, head_parser, read_request_head
from trioproxy.upstream.request import Client, Forwarder

FORWARDER = Forwarder(b"trioproxy-1234")
CLIENT = Client(b"192.0.2.7")


def parse(*lines: str) -> RequestHead:
    raw = HeadReader(HeadLimits(), fault=Fault.CLIENT).feed("\r\n".join([*lines, "", ""]).encode("latin-1"))
    assert raw is not None
    return read_request_head(raw, head_parser("llhttp"), HeadLimits())


def forward(*lines: str, length: int | None = 0, client: Client = CLIENT) -> list[str]:
    written = FORWARDER.head(parse(*lines), length=length, client=client, request_id=b"ours")
    assert written.endswith(b"\r\n\r\n")
    return written[:-4].decode("latin-1").split("\r\n")


def values(lines: list[str], name: str) -> list[str]:
    return [line.partition(": ")[2] for line in lines if line.lower().startswith(name + ":")]


def test_the_whole_of_it() -> None:
    assert forward("POST /v1?q HTTP/1.1", "Host: a:1", "X-A: 1", "x-a: 2", "Content-Length: 5", length=5) == [
        "POST /v1?q HTTP/1.1",
        "Host: a:1",
        "X-A: 1",
        "x-a: 2",
        "x-request-id: ours",
        "via: 1.1 trioproxy-1234",
        "x-forwarded-for: 192.0.2.7",
        "x-forwarded-proto: http",
        "x-forwarded-host: a:1",
        "content-length: 5",
    ]


@pytest.mark.parametrize(
    "field",
    [
        "Connection: x",
        "Proxy-Connection: keep-alive",
        "Keep-Alive: timeout=5",
        "Proxy-Authenticate: Basic",
        "Proxy-Authorization: Basic eDp5",
        "TE: trailers",
        "Trailer: X-T",
        "Upgrade: websocket",
        "Expect: 100-continue",
        "Forwarded: for=1.2.3.4",
        "X-Named: 1",
        "X-Named-Too: 1",
    ],
)
def test_what_is_dropped(field: str) -> None:
    lines = forward("GET / HTTP/1.1", "Host: a", "Connection: x-named, Close", field, "connection: ,X-NAMED-TOO ,")
    assert field not in lines
    assert not values(lines, field.partition(":")[0].lower())
    assert not values(lines, "connection")


@pytest.mark.parametrize("name", ["X-Forwarded-For", "x-forwarded-proto", "X-FORWARDED-HOST"])
def test_what_a_client_claims_about_the_way_is_replaced(name: str) -> None:
    lines = forward("GET / HTTP/1.1", "Host: a", f"{name}: evil", f"Connection: {name}")
    assert len(values(lines, name.lower())) == 1
    assert "evil" not in "".join(lines)


def test_a_nomination_does_not_remove_what_the_next_hop_relies_on() -> None:
    lines = forward(
        "POST / HTTP/1.1", "Host: a", "Content-Length: 5", "Connection: host, content-length, via", length=5
    )
    assert values(lines, "host") == ["a"]
    assert values(lines, "content-length") == ["5"]
    assert len(values(lines, "via")) == 1


def test_a_client_without_an_address_adds_none() -> None:
    assert not values(forward("GET / HTTP/1.1", "Host: a", "X-Forwarded-For: evil", client=Client()), "x-forwarded-for")


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_via_comes_after_the_others(version: str) -> None:
    lines = forward(f"GET / HTTP/{version}", "Host: a", "Via: 1.0 other, 1.1 more", "Via: 1.1 last")
    assert values(lines, "via") == ["1.0 other, 1.1 more", "1.1 last", f"{version} trioproxy-1234"]


@pytest.mark.parametrize("via", ["1.1 trioproxy-1234", "1.0 x, 1.1 trioproxy-1234 (y), 1.1 z"])
def test_its_own_name_in_via_is_a_loop(via: str) -> None:
    with pytest.raises(ProxyError) as caught:
        FORWARDER.check_loop(parse("GET / HTTP/1.1", "Host: a", "Via: 1.1 other", f"Via: {via}", "Connection: via"))
    assert caught.value.code is Code.LOOP_DETECTED
    FORWARDER.check_loop(parse("GET / HTTP/1.1", "Host: a", "Via: 1.1 trioproxy-9999"))


def test_an_id_of_the_clients_is_kept() -> None:
    assert values(forward("GET / HTTP/1.1", "Host: a", "X-Request-ID: mine"), "x-request-id") == ["mine"]


@pytest.mark.parametrize(
    ("lines", "host"),
    [
        (["GET / HTTP/1.1", "Host: A:80"], "A:80"),
        (["GET / HTTP/1.0"], ""),
        (["GET http://b/ HTTP/1.1", "Host: a"], "b"),
        (["GET http://b/ HTTP/1.0"], "b"),
    ],
)
def test_there_is_one_host_and_it_is_the_clients(lines: list[str], host: str) -> None:
    sent = forward(*lines)
    assert values(sent, "host") == [host]
    assert values(sent, "x-forwarded-host") == ([host] if host else [])


@pytest.mark.parametrize("target", ["/", "/a//b/../c;d?x=%zz&y=%00", "/%41%2f%2F?", "/'\"<>{}|^`\\", "*"])
def test_the_target_goes_on_unchanged(target: str) -> None:
    method = "OPTIONS" if target == "*" else "GET"
    assert forward(f"{method} {target} HTTP/1.1", "Host: a")[0] == f"{method} {target} HTTP/1.1"


def test_an_absolute_target_goes_on_in_origin_form() -> None:
    assert forward("GET http://b/x?y HTTP/1.1", "Host: a")[0] == "GET /x?y HTTP/1.1"


@pytest.mark.parametrize(
    ("method", "length", "framing"),
    [
        ("GET", 0, []),
        ("HEAD", 0, []),
        ("DELETE", 0, []),
        ("POST", 0, ["content-length: 0"]),
        ("PUT", 0, ["content-length: 0"]),
        ("PATCH", 0, ["content-length: 0"]),
        ("GET", 5, ["content-length: 5"]),
        ("POST", None, ["transfer-encoding: chunked"]),
        ("GET", None, ["transfer-encoding: chunked"]),
    ],
)
@pytest.mark.parametrize("claimed", ["Content-Length: 9", "Transfer-Encoding: chunked", "X: y"])
def test_the_framing_is_the_proxys_own(method: str, length: int | None, framing: list[str], claimed: str) -> None:
    lines = forward(f"{method} / HTTP/1.1", "Host: a", claimed, length=length)
    assert [line for line in lines if line.lower().startswith(("content-length", "transfer-encoding"))] == framing
