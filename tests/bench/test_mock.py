"""The mock model server: what it answers, when, and what it knows about clients that leave.

Times are virtual and streams in memory wherever sockets are not the point.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import socket
import struct
import sys
import time
import tracemalloc
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any, NamedTuple, cast

import h11
import hypothesis
import openai
import pytest
import trio
import trio.testing
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from trioproxy.bench.mock import MockServer, MockSettings, RequestRecord
from trioproxy.bench.mock_answer import token_text
from trioproxy.bench.mock_request import Body, Plan

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
DEFAULTS = MockSettings()
SEEN_WITHIN = 0.05
"""Seconds in which an abort must be seen: generous, since other work shares the machine. Alone it is under 1 ms."""


# ---- a client made of h11, on any stream


class Reply(NamedTuple):
    status: int
    headers: dict[bytes, bytes]
    body: bytes
    pieces: list[tuple[float, bytes]]
    """What each receive brought, with the time."""

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[str]:
        return [event.removeprefix("data: ") for event in self.body.decode().split("\n\n")[:-1]]


def request(method: str, path: str, body: object = None, *extra: str) -> bytes:
    content = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    head = [f"{method} {path} HTTP/1.1", "Host: mock", f"Content-Length: {len(content)}", *extra, "", ""]
    return "\r\n".join(head).encode() + content


def post(path: str = CHAT, *, stream: bool = True, **metadata: object) -> bytes:
    return post_with(metadata, path, stream=stream)


def post_with(metadata: dict[str, object], path: str = CHAT, *, stream: bool = True) -> bytes:
    return request("POST", path, {"model": "m", "stream": stream, "metadata": metadata})


class Client:
    """Reads responses, one after the other, and fails on what h11 does not take."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self.left_over = b""

    async def ask(self, data: bytes) -> Reply:
        await self.stream.send_all(data)
        return await self.read(data.partition(b" ")[0])

    async def read(self, method: bytes = b"POST") -> Reply:
        http = h11.Connection(h11.CLIENT)
        http.send(h11.Request(method=method, target="/", headers=[("host", "mock"), ("content-length", "0")]))
        http.send(h11.EndOfMessage())
        if self.left_over:
            http.receive_data(self.left_over)
        response: h11.Response | None = None
        body = b""
        pieces: list[tuple[float, bytes]] = []
        while True:
            await trio.lowlevel.checkpoint()
            event = http.next_event()
            if event is h11.NEED_DATA:
                piece = bytes(await self.stream.receive_some(65536))
                pieces.append((trio.current_time(), piece))
                http.receive_data(piece)
            elif isinstance(event, h11.Response):
                response = event
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                self.left_over = http.trailing_data[0]
                assert response is not None
                return Reply(response.status_code, dict(response.headers), body, pieces)


@asynccontextmanager
async def in_memory(settings: MockSettings = DEFAULTS) -> AsyncGenerator[tuple[MockServer, Client]]:
    server = MockServer(settings, clock=trio.current_time)
    ours, theirs = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.serve_stream, theirs)
        yield server, Client(ours)
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def on_sockets(settings: MockSettings = DEFAULTS) -> AsyncGenerator[tuple[MockServer, tuple[str, int]]]:
    server = MockServer(settings)
    async with trio.open_nursery() as nursery:
        address = await nursery.start(server.serve)
        yield server, address
        nursery.cancel_scope.cancel()


async def connect(address: tuple[str, int]) -> Client:
    return Client(await trio.open_tcp_stream(*address))


# ---- endpoints


async def test_health_and_models() -> None:
    async with in_memory(MockSettings(model="llama")) as (server, client):
        assert (await client.ask(request("GET", "/health"))).status == 200
        models = (await client.ask(request("GET", "/v1/models"))).json
        assert models["object"] == "list"
        assert [entry["id"] for entry in models["data"]] == ["llama"]
        head = await client.ask(request("HEAD", "/health"))
        assert (head.status, head.body) == (200, b"")
        assert [record.path for record in server.records] == ["/health", "/v1/models", "/health"]


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/"), ("GET", CHAT), ("POST", "/v1/embeddings"), ("DELETE", "/health")]
)
async def test_anything_else_is_not_found(method: str, path: str) -> None:
    async with in_memory() as (server, client):
        reply = await client.ask(request(method, path, b"x" * 100))
        assert reply.status == 404
        error = reply.json["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["code"] == "not_found"
        assert (server.records[0].status, server.records[0].body_bytes) == (404, 100)
        assert (await client.ask(request("GET", "/health"))).status == 200


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"", None),
        (b"{", None),
        (b"[]", None),
        (b"\xef\xbb\xbf{}", None),
        (b'{"model": "\xff"}', None),
        (b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", None),
        (b'{"max_tokens": -1}', "max_tokens"),
        (b'{"max_tokens": 1e400}', "max_tokens"),
        (b'{"metadata": {"head": "middle"}}', "metadata.head"),
        (b'{"metadata": {"prefill": "-1"}}', "metadata.prefill"),
        (b'{"metadata": {"prefill": "nan"}}', "metadata.prefill"),
        (b'{"metadata": {"tokens": "many"}}', "metadata.tokens"),
        (b'{"metadata": {"status": 200}}', "metadata.status"),
        (b'{"metadata": {"token_bytes": 0}}', "metadata.token_bytes"),
    ],
)
async def test_a_bad_body_is_refused_and_the_connection_goes_on(body: bytes, param: str | None) -> None:
    async with in_memory() as (_, client):
        reply = await client.ask(request("POST", CHAT, body))
        assert reply.status == 400
        error = reply.json["error"]
        assert error["type"] == "invalid_request_error"
        assert error["param"] == param
        assert (await client.ask(request("GET", "/health"))).status == 200


async def test_what_is_no_http_is_refused() -> None:
    async with in_memory() as (server, client):
        assert (await client.ask(b"POST nonsense\r\n\r\n")).status == 400
        assert await client.stream.receive_some(1) == b""
        assert not server.records


async def test_records_over_http_and_reset() -> None:
    async with in_memory() as (server, client):
        await client.ask(post(tokens=2, interval=0, id="mine"))
        await client.ask(request("POST", TEXT, {"max_tokens": 1}, "X-Request-Id: theirs"))
        await client.ask(request("GET", "/health"))
        listed = json.loads((await client.ask(request("GET", "/mock/requests"))).body)
        assert [(entry["id"], entry["tokens"], entry["stream"]) for entry in listed] == [
            ("mine", 2, True),
            ("theirs", 1, False),
            (server.records[2].id, 0, False),
        ]
        (mine,) = json.loads((await client.ask(request("GET", "/mock/requests?id=mine"))).body)
        assert mine["abandoned"] is None
        assert mine["seen"] <= mine["body_read"] <= mine["first_token"] <= mine["finished"]
        assert json.loads((await client.ask(request("GET", "/mock/requests?id=nobody"))).body) == []
        for method in "POST", "DELETE":
            await client.ask(request("GET", "/health"))
            assert (await client.ask(request(method, "/mock/reset"))).status == 200
            assert not server.records


# ---- completions


def series(page: bytes) -> dict[str, float]:
    families = text_string_to_metric_families(page.decode())
    return {
        " ".join([sample.name, *filter(None, [sample.labels.get("finished_reason")])]): sample.value
        for family in families
        for sample in family.samples
    }


async def test_metrics_as_vllm_has_them_and_none_for_the_aborted(autojump_clock: trio.testing.MockClock) -> None:
    async with in_memory() as (server, client):
        reply = await client.ask(request("GET", "/metrics"))
        assert reply.headers[b"content-type"].startswith(b"text/plain; version=0.0.4")
        assert set(series(reply.body).values()) == {0.0}
        await client.ask(post(tokens=3, prefill=1))
        after = series((await client.ask(request("GET", "/metrics"))).body)
        assert after["vllm:generation_tokens_total"] == 3
        assert after["vllm:request_success_total length"] == 0
        assert after["vllm:request_success_total stop"] == 1
        assert after["vllm:prompt_tokens_total"] > 0
        assert len(server.records) == 1, "whoever polls metrics does not push records out"


@pytest.mark.parametrize(("ignored", "running", "made"), [(False, 0, 3), (True, 1, 5)])
async def test_what_is_running_after_the_client_left(
    ignored: bool, running: int, made: int, autojump_clock: trio.testing.MockClock
) -> None:
    server = MockServer(clock=trio.current_time)
    async with trio.open_nursery() as nursery:
        streams: list[trio.abc.Stream] = []
        for _ in range(2):
            ours, theirs = trio.testing.memory_stream_pair()
            nursery.start_soon(server.serve_stream, theirs)
            streams.append(ours)
        leaving, watching = streams[0], Client(streams[1])
        await leaving.send_all(post(tokens=9, interval=1, ignore_disconnect=ignored))
        await trio.sleep(2.5)
        seen = series((await watching.ask(request("GET", "/metrics"))).body)
        assert (seen["vllm:num_requests_running"], seen["vllm:generation_tokens_total"]) == (1, 3)
        await leaving.aclose()
        await trio.sleep(2)
        seen = series((await watching.ask(request("GET", "/metrics"))).body)
        assert (seen["vllm:num_requests_running"], seen["vllm:generation_tokens_total"]) == (running, made)
        assert seen["vllm:request_success_total stop"] == 0
        nursery.cancel_scope.cancel()


async def test_chat_streamed_with_usage() -> None:
    body: dict[str, object] = {
        "model": "m",
        "stream": True,
        "max_tokens": 3,
        "stream_options": {"include_usage": True},
        "messages": [],
    }
    async with in_memory(MockSettings(interval=0)) as (server, client):
        reply = await client.ask(request("POST", CHAT, body, "X-Request-Id: abc"))
        assert reply.headers[b"content-type"].startswith(b"text/event-stream")
        assert reply.headers[b"x-request-id"] == b"abc"
        *events, done = reply.events
        assert done == "[DONE]"
        chunks = [json.loads(event) for event in events]
        assert {(chunk["id"], chunk["object"], chunk["model"]) for chunk in chunks} == {
            (chunks[0]["id"], "chat.completion.chunk", "m")
        }
        *choices, usage = chunks
        assert [chunk["choices"][0]["delta"] for chunk in choices] == [
            {"role": "assistant", "content": ""},
            {"content": "0000 "},
            {"content": "0001 "},
            {"content": "0002 "},
            {},
        ]
        assert [chunk["choices"][0]["finish_reason"] for chunk in choices] == [None] * 4 + ["length"]
        assert usage["choices"] == []
        assert usage["usage"]["completion_tokens"] == 3
        assert server.records[0].tokens == 3


async def test_max_completion_tokens_bounds_and_metadata_overrides() -> None:
    async with in_memory(MockSettings(interval=0, tokens=5)) as (server, client):
        for body, made, reason in [
            ({}, 5, "stop"),
            ({"max_tokens": 9}, 5, "stop"),
            ({"max_tokens": 2}, 2, "length"),
            ({"max_tokens": None, "max_completion_tokens": 3}, 3, "length"),
            ({"max_tokens": 2, "metadata": {"tokens": "7"}}, 7, "length"),
            ({"metadata": {"tokens": 0}}, 0, "stop"),
        ]:
            reply = (await client.ask(request("POST", TEXT, body))).json
            (choice,) = reply["choices"]
            assert choice["finish_reason"] == reason
            assert choice["text"] == b"".join(token_text(index, 5) for index in range(made)).decode()
            assert reply["usage"]["completion_tokens"] == made
            assert server.records[-1].tokens == made


async def test_odd_but_legal_bodies_are_served() -> None:
    surrogate = b'{"model": "\\ud800@token@\\"", "prompt": "\\ud800", "stream": true, "max_tokens": 1.0, "user": {}}'
    async with in_memory(MockSettings(interval=0)) as (server, client):
        reply = await client.ask(request("POST", TEXT, surrogate))
        first = json.loads(reply.events[0])
        assert first["choices"][0]["text"] == "0000 "
        assert first["model"] == '?@token@"'
        assert server.records[0].tokens == 1
        assert (await client.ask(request("POST", TEXT, {"stream": None, "metadata": None}))).status == 200


@pytest.mark.parametrize("path", [CHAT, TEXT])
async def test_a_client_of_http_1_0_gets_an_unframed_stream(path: str) -> None:
    async with in_memory() as (_, client):
        await client.stream.send_all(post(path, tokens=2, interval=0).replace(b"HTTP/1.1", b"HTTP/1.0"))
        received = b""
        while piece := await client.stream.receive_some():
            received += piece
        head, _, body = received.partition(b"\r\n\r\n")
        assert b"chunked" not in head.lower()
        assert body.startswith(b"data: {")
        assert body.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("size", [1, 2, 5, 9, 10, 5000])
async def test_token_bytes(size: int) -> None:
    async with in_memory(MockSettings(interval=0, tokens=12)) as (_, client):
        reply = await client.ask(post(token_bytes=str(size)))
        texts = [json.loads(event)["choices"][0]["delta"].get("content") for event in reply.events[1:-2]]
        assert [len(text) for text in texts] == [size] * 12
        width = 1 if size == 1 else min(size - 1, 8)
        assert [int(text[:width]) for text in texts] == [index % 10**width for index in range(12)]


# ---- time


@pytest.mark.parametrize("given", ["settings", "numbers", "strings"])
@pytest.mark.parametrize("head", ["early", "late"])
async def test_prefill_head_and_interval(given: str, head: str, autojump_clock: trio.testing.MockClock) -> None:
    wanted: dict[str, object] = {"prefill": 5, "head": head, "interval": 2, "tokens": 3}
    settings = MockSettings()
    metadata: dict[str, object] = {}
    if given == "settings":
        settings = MockSettings(prefill=5, head="early" if head == "early" else "late", interval=2, tokens=3)
    elif given == "numbers":
        metadata = wanted
    else:
        metadata = {key: str(value) for key, value in wanted.items()}
    async with in_memory(settings) as (server, client):
        start = trio.current_time()
        reply = await client.ask(post_with(metadata))
        at: dict[str, float] = {}
        for when, piece in reply.pieces:
            for mark in "HTTP/1.1", '"role"', "0000 ", "0001 ", "0002 ", "[DONE]":
                if mark.encode() in piece:
                    at[mark] = when - start
        assert at == {
            "HTTP/1.1": 0.0 if head == "early" else 5.0,
            '"role"': 5.0,
            "0000 ": 5.0,
            "0001 ": 7.0,
            "0002 ": 9.0,
            "[DONE]": 9.0,
        }
        (record,) = server.records
        assert record.first_token == start + 5
        assert record.finished == start + 9


async def test_a_whole_answer_comes_after_its_last_token(autojump_clock: trio.testing.MockClock) -> None:
    async with in_memory(MockSettings(prefill=5, interval=2, tokens=3)) as (_, client):
        start = trio.current_time()
        reply = await client.ask(post(stream=False))
        assert reply.pieces[0][0] == start + 9


@pytest.mark.parametrize(
    ("after", "times"), [(0, [10, 11, 12, 12]), (2, [0, 1, 12, 12]), (3, [0, 1, 2, 12]), (4, [0, 1, 2, 2])]
)
async def test_stall(after: int, times: list[int], autojump_clock: trio.testing.MockClock) -> None:
    async with in_memory(MockSettings(interval=1, tokens=3)) as (_, client):
        start = trio.current_time()
        reply = await client.ask(post(TEXT, stall_after=after, stall="10"))
        marks = [b"0000 ", b"0001 ", b"0002 ", b"[DONE]"]
        assert [when - start for mark in marks for when, piece in reply.pieces if mark in piece] == times


async def test_a_stall_without_end(autojump_clock: trio.testing.MockClock) -> None:
    async with in_memory() as (server, client):
        with trio.move_on_after(1e6) as patience:
            await client.ask(post(stall_after=1, interval="inf"))
        assert patience.cancelled_caught
        assert server.records[0].tokens == 1


async def test_status_after_prefill(autojump_clock: trio.testing.MockClock) -> None:
    async with in_memory(MockSettings(prefill=3)) as (server, client):
        start = trio.current_time()
        for stream in True, False:
            reply = await client.ask(post(stream=stream, status="503"))
            assert reply.status == 503
            assert "error" in reply.json
        assert trio.current_time() == start + 6
        assert [(record.status, record.tokens) for record in server.records] == [(503, 0)] * 2


@pytest.mark.parametrize("head", ["early", "late"])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("after", [0, 2])
@pytest.mark.parametrize("cut", [None, "close"])
async def test_cut_after(head: str, stream: bool, after: int, cut: str | None) -> None:
    async with on_sockets(MockSettings(interval=0.001)) as (server, address):
        client = await connect(address)
        async with client.stream:
            await client.stream.send_all(post(stream=stream, head=head, cut_after=after, cut=cut))
            received = b""
            reset = False
            try:
                while piece := await client.stream.receive_some():
                    received += piece
            except trio.BrokenResourceError:
                reset = True
        assert reset is (cut is None)
        assert (b"HTTP/1.1 200" in received) is (after > 0 or (stream and head == "early"))
        assert b"[DONE]" not in received
        if stream and cut == "close":
            assert received.count(b'"content":"0') == after
        (record,) = server.records
        assert record.tokens == after
        assert (record.abandoned, record.finished is None) == (None, False)


# ---- HTTP


async def test_requests_on_a_connection_are_answered_in_order(autojump_clock: trio.testing.MockClock) -> None:
    async with in_memory(MockSettings(prefill=1, tokens=2)) as (server, client):
        await client.stream.send_all(post(id="a") + request("GET", "/health") + post(TEXT, stream=False, id="b"))
        assert (await client.read()).events[-1] == "[DONE]"
        assert (await client.read()).json == {"status": "ok"}
        assert "choices" in (await client.read()).json
        assert [record.id for record in server.records][::2] == ["a", "b"]
        first, second, third = server.records
        assert first.finished is not None
        assert first.finished <= second.seen <= third.seen
        assert all(record.abandoned is None for record in server.records)


async def test_reading_ahead_is_bounded_and_nothing_is_lost(autojump_clock: trio.testing.MockClock) -> None:
    count = 4000
    taken = 0

    async def send_slowly(stream: trio.abc.Stream) -> None:
        nonlocal taken
        await trio.lowlevel.checkpoint()
        behind = request("GET", "/health") * count
        for start in range(0, len(behind), 1000):
            await stream.send_all(behind[start : start + 1000])
            taken += 1000

    server = MockServer(clock=trio.current_time)
    ours, theirs = trio.testing.lockstep_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.serve_stream, theirs)
        await ours.send_all(post(prefill=5, tokens=0))
        nursery.start_soon(send_slowly, ours)
        await trio.sleep(1)
        assert 64 * 1024 <= taken <= 66 * 1024
        client = Client(ours)
        await client.read()
        for _ in range(count):
            assert (await client.read(b"GET")).status == 200
        await ours.aclose()
    assert len(server.records) == count + 1


async def test_every_split_of_two_requests_is_the_same() -> None:
    await trio.lowlevel.checkpoint()
    head = f"POST {TEXT} HTTP/1.1\r\nHost: m\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    chunked = head + b'9\r\n{"max_tok\r\n8\r\nens":1}\n\r\n0\r\n\r\n'
    both = post(tokens=1, interval=0) + chunked
    for split in range(len(both) + 1):
        async with in_memory() as (server, client):
            await client.stream.send_all(both[:split])
            await trio.testing.wait_all_tasks_blocked()
            await client.stream.send_all(both[split:])
            assert (await client.read()).events[-1] == "[DONE]"
            assert (await client.read()).status == 200
            assert [(record.body_bytes, record.tokens) for record in server.records] == [
                (len(both) - len(chunked) - both.index(b"{"), 1),
                (17, 1),
            ]


async def test_bytes_behind_the_last_request_change_nothing() -> None:
    last = request("POST", TEXT, {"max_tokens": 1}, "Connection: close")
    async with in_memory() as (server, client):
        reply = await client.ask(last + b"\r\nGET / HTTP/1.1\r\n\r\n")
        assert (reply.status, reply.headers[b"connection"]) == (200, b"close")
        assert server.records[0].tokens == 1
        assert len(server.records) == 1


async def test_expect_continue_is_answered() -> None:
    async with in_memory() as (_, client):
        head, _, body = request("POST", TEXT, {"max_tokens": 1}, "Expect: 100-continue").partition(b"\r\n\r\n")
        await client.stream.send_all(head + b"\r\n\r\n")
        assert (await client.stream.receive_some()).startswith(b"HTTP/1.1 100 ")
        await client.stream.send_all(body)
        assert (await client.read()).status == 200


@pytest.mark.parametrize("expect", [(), ("Expect: 100-continue",)])
async def test_an_announced_body_over_the_limit(expect: tuple[str, ...]) -> None:
    head = request("POST", CHAT, None, *expect).replace(b"Length: 0", b"Length: %d" % (256 * 2**20 + 1))
    async with in_memory() as (server, client):
        assert (await client.ask(head)).status == 413
        assert server.records[0].status == 413
        assert server.records[0].abandoned is None


async def test_a_refusal_reaches_a_client_that_still_uploads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trioproxy.bench.mock_connection.BODY_LIMIT", 100_000)
    head = f"POST {CHAT} HTTP/1.1\r\nHost: m\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
    async with on_sockets() as (server, address):
        client = await connect(address)
        async with client.stream:
            await client.stream.send_all(head + chunk * 100)
            reply = await client.read()
        assert reply.status == 413
        assert reply.headers[b"connection"] == b"close"
        assert server.records[0].body_bytes < 300_000


@hypothesis.settings(max_examples=150, deadline=None)
@hypothesis.given(st.binary(max_size=60), st.integers(0, 300), st.booleans())
async def test_no_bytes_end_the_server(noise: bytes, where: int, at_end: bool) -> None:
    good = post(tokens=1, interval=0) + request("HEAD", "/x", b"y", "Connection: close")
    async with in_memory() as (_, client):
        await client.stream.send_all(good[:where] + noise + (b"" if at_end else good[where + len(noise) :]))
        await trio.testing.wait_all_tasks_blocked()
        await client.stream.aclose()
        await trio.testing.wait_all_tasks_blocked()


# ---- clients that leave


def fin(client: Client) -> None:
    assert isinstance(client.stream, trio.SocketStream)
    client.stream.socket.shutdown(socket.SHUT_WR)


def rst(client: Client) -> None:
    assert isinstance(client.stream, trio.SocketStream)
    client.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.stream.socket.close()


def close_sending(client: Client) -> None:
    """As a FIN, on a memory stream."""
    stapled = cast("trio.StapledStream[trio.testing.MemorySendStream, trio.testing.MemoryReceiveStream]", client.stream)
    stapled.send_stream.close()


class Stage(NamedTuple):
    name: str
    sent: bytes
    reached: Callable[[RequestRecord], bool]


def has_head(record: RequestRecord) -> bool:
    return record.body_bytes == 0


def has_body(record: RequestRecord) -> bool:
    return record.body_bytes > 0


def is_planned(record: RequestRecord) -> bool:
    return record.model == "m"


def has_answer(record: RequestRecord) -> bool:
    return record.status == 200


def has_made(tokens: int) -> Callable[[RequestRecord], bool]:
    return lambda record: record.tokens >= tokens


BIG: dict[str, object] = {"token_bytes": 2**20, "tokens": 100, "interval": 0}
STAGES: list[Stage] = [
    Stage("head only", request("POST", CHAT).replace(b"Length: 0", b"Length: 100"), has_head),
    Stage("uploading", post()[:-5], has_body),
    Stage("prefill", post(prefill=60), is_planned),
    Stage("prefill, early head", post(prefill=60, head="early"), has_answer),
    Stage("prefill, whole", post(prefill=60, stream=False), is_planned),
    Stage("error in prefill", post(prefill=60, status=500), is_planned),
    Stage("between tokens", post(interval=0.01, tokens=9999), has_made(3)),
    Stage("between tokens, whole", post(interval=0.01, tokens=9999, stream=False), has_made(3)),
    Stage("stall", post(interval=0, stall_after=2), has_made(2)),
    Stage("stall before the end", post(interval=0, tokens=2, stall_after=2), has_made(2)),
    Stage("blocked in a send", post_with(BIG), has_made(2)),
    Stage("blocked in the only send", post_with(BIG, stream=False), has_made(100)),
    Stage("read ahead", post(prefill=60) + request("GET", "/health") * 10, is_planned),
]


@pytest.mark.parametrize("leave", [fin, rst])
@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
async def test_leaving_is_seen_at_once_and_wastes_nothing(stage: Stage, leave: Callable[[Client], None]) -> None:
    async with on_sockets() as (server, address):
        client = await connect(address)
        async with client.stream:
            await client.stream.send_all(stage.sent)
            record = await server.wait_record(stage.reached)
            for _ in range(20):  # let it come to rest: sends are blocked, sleeps have begun
                await trio.testing.wait_all_tasks_blocked(0.001)
            left = time.monotonic()
            leave(client)
            with trio.fail_after(5):
                await server.wait_record(lambda r: r.abandoned is not None)
            assert record.abandoned is not None
            assert left <= record.abandoned < left + SEEN_WITHIN
            made = record.tokens
            await trio.sleep(0.03)
            assert (record.tokens, record.tokens_after_abandon, record.finished) == (made, 0, None)
            assert len(server.records) == 1


async def test_a_token_due_in_the_moment_of_leaving_is_not_made(mock_clock: trio.testing.MockClock) -> None:
    await trio.lowlevel.checkpoint()
    # The reader's and the responder's wake-ups must meet in one pass of the scheduler, which runs what is ready in
    # random order: hence the sweep over the passes between them, and its repetition.
    for passes in list(range(4)) * 10:
        async with in_memory(MockSettings(prefill=1)) as (server, client):
            await client.stream.send_all(post())
            await trio.testing.wait_all_tasks_blocked()
            close_sending(client)
            for _ in range(passes):
                await trio.lowlevel.checkpoint()
            mock_clock.jump(1)
            await trio.testing.wait_all_tasks_blocked()
            (record,) = server.records
            assert record.abandoned is not None
            assert record.tokens_after_abandon == 0


@pytest.mark.parametrize("stream", [True, False])
async def test_ignoring_it_makes_the_rest_and_counts_it(stream: bool, autojump_clock: trio.testing.MockClock) -> None:
    async with in_memory(MockSettings(prefill=10, interval=1, tokens=8)) as (server, client):
        start = trio.current_time()
        await client.stream.send_all(post(stream=stream, ignore_disconnect="true", stall_after=7, stall=100))
        await trio.sleep(12.5)
        await client.stream.aclose()
        with trio.fail_after(1000):
            record = await server.wait_record(lambda r: r.finished is not None)
        assert record.abandoned == start + 12.5
        assert record.finished == start + 117
        assert (record.tokens, record.tokens_after_abandon) == (8, 5)


@pytest.mark.parametrize("leave", [fin, rst])
async def test_ignoring_it_while_blocked_in_a_send(leave: Callable[[Client], None]) -> None:
    async with on_sockets(MockSettings(ignore_disconnect=True)) as (server, address):
        client = await connect(address)
        async with client.stream:
            await client.stream.send_all(post_with(BIG))
            await server.wait_record(lambda r: r.tokens > 1)
            for _ in range(20):
                await trio.testing.wait_all_tasks_blocked(0.001)
            leave(client)
            with trio.fail_after(5):
                record = await server.wait_record(lambda r: r.finished is not None)
        assert record.tokens == 100
        assert record.tokens_after_abandon > 50


@pytest.mark.parametrize("leave", [fin, rst])
@pytest.mark.parametrize("stream", [True, False])
async def test_leaving_after_the_last_byte_is_no_abandonment(leave: Callable[[Client], None], stream: bool) -> None:
    async with on_sockets() as (server, address):
        for _ in range(50):
            client = await connect(address)
            async with client.stream:
                await client.ask(post(stream=stream, tokens=1))
                leave(client)
        assert len(server.records) == 50
        for record in server.records:
            assert record.abandoned is None
            assert record.finished is not None


@pytest.mark.parametrize("comes_through", [True, False])
async def test_leaving_during_the_last_send_is_decided_by_the_send(comes_through: bool) -> None:
    server = MockServer(clock=trio.current_time)
    ours, theirs = trio.testing.memory_stream_pair()
    sending, go_on = trio.Event(), trio.Event()

    async def hook() -> None:
        sending.set()
        with trio.CancelScope(shield=comes_through):
            await go_on.wait()

    theirs.send_stream.send_all_hook = hook
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.serve_stream, theirs)
        await ours.send_all(post(stream=False, tokens=1))
        await sending.wait()
        await ours.aclose()
        await trio.testing.wait_all_tasks_blocked()
        go_on.set()
    (record,) = server.records
    assert (record.abandoned is None, record.finished is None) == (comes_through, not comes_through)


async def test_many_leave_at_once() -> None:
    count = 300
    async with on_sockets(MockSettings(prefill=60)) as (server, address):
        clients = [await connect(address) for _ in range(count)]
        for client in clients:
            await client.stream.send_all(post())
        await server.wait_record(lambda _: sum(record.model == "m" for record in server.records) == count)
        for client in clients:
            rst(client)
        with trio.fail_after(5):
            await server.wait_record(lambda _: all(record.abandoned is not None for record in server.records))
        for client in clients:
            await client.stream.aclose()
        client = await connect(address)
        async with client.stream:
            assert (await client.ask(request("GET", "/health"))).status == 200


async def test_the_end_of_the_server_ends_everything() -> None:
    clients: list[Client] = []
    async with on_sockets(MockSettings(prefill=60, ignore_disconnect=True)) as (server, address):
        for sent in post(), post()[:-5], b"", post_with(BIG) + b" " * 100_000:
            client = await connect(address)
            clients.append(client)
            await client.stream.send_all(sent)
        fin(clients[0])
        await server.wait_record(lambda r: r.abandoned is not None)
    for client in clients[1:]:
        with pytest.raises((trio.BrokenResourceError, h11.RemoteProtocolError)), trio.fail_after(5):
            await client.read()
    for client in clients:
        await client.stream.aclose()
    assert [record.finished for record in server.records] == [None] * 3
    assert [record.abandoned is None for record in server.records].count(False) == 1


async def test_accepting_survives_running_out_of_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with on_sockets() as (_, address):
        raw = trio.socket.socket()
        client = Client(trio.SocketStream(raw))
        lowest_free = os.dup(0)
        os.close(lowest_free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
        try:
            await raw.connect(address)
            await client.stream.send_all(request("GET", "/health"))
            with trio.move_on_after(0.12) as patience:
                await client.stream.receive_some()
            assert patience.cancelled_caught
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        async with client.stream:
            with trio.fail_after(5):
                assert (await client.read(b"GET")).status == 200


# ---- memory


def private_bytes() -> int:
    with open("/proc/self/smaps_rollup") as rollup:
        return sum(int(line.split()[1]) * 1024 for line in rollup if line.startswith("Private_"))


@pytest.mark.skipif(sys.platform != "linux", reason="smaps_rollup is Linux's")
@pytest.mark.parametrize("chunked", [True, False])
async def test_in_prefill_nothing_of_the_body_is_held(chunked: bool) -> None:
    piece = b" " * 65536
    fields = b'{"metadata": {"prefill": 60}}'
    body_bytes = 256 * len(piece) + len(fields)
    framing = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {body_bytes}"
    async with on_sockets() as (server, address):
        client = await connect(address)
        async with client.stream:
            before = private_bytes()
            tracemalloc.start()
            try:
                await client.stream.send_all(f"POST {CHAT} HTTP/1.1\r\nHost: m\r\n{framing}\r\n\r\n".encode())
                for part in [fields] + [piece] * 256:
                    await client.stream.send_all(b"%x\r\n%b\r\n" % (len(part), part) if chunked else part)
                if chunked:
                    await client.stream.send_all(b"0\r\n\r\n")
                with trio.fail_after(10):
                    record = await server.wait_record(lambda r: r.model is not None)
                await trio.testing.wait_all_tasks_blocked()
                assert record.body_bytes == body_bytes
                assert tracemalloc.get_traced_memory()[0] < 60_000
                assert private_bytes() - before < 2 * 2**20
            finally:
                tracemalloc.stop()


@hypothesis.given(st.lists(st.binary(max_size=300_000), max_size=8), st.booleans())
@hypothesis.settings(max_examples=25, deadline=None)
def test_a_body_is_what_was_appended(pieces: list[bytes], announced: bool) -> None:
    content = json.dumps({"model": "m", "prompt": b"".join(pieces).hex()}).encode()
    cuts = sorted({min(len(piece), len(content)) for piece in pieces} | {0, len(content)})
    body = Body(len(content) if announced else None)
    for start, end in pairwise(cuts):
        body.append(content[start:end])
    plan = body.plan(MockSettings())
    body.close()
    body.close()
    assert isinstance(plan, Plan)
    assert (plan.model, plan.prompt_tokens) == ("m", len(content) // 4)


# ---- the official SDK


def sdk_calls(address: tuple[str, int]) -> None:
    with openai.OpenAI(base_url=f"http://{address[0]}:{address[1]}/v1", api_key="none", max_retries=0) as sdk:
        assert [model.id for model in sdk.models.list()] == ["mock-model"]
        whole = sdk.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
        assert whole.choices[0].message.content == "0000 0001 0002 "
        assert whole.choices[0].finish_reason == "stop"
        assert whole.usage is not None
        assert whole.usage.completion_tokens == 3
        chunks = list(
            sdk.chat.completions.create(
                model="m",
                messages=[{"role": "user", "content": "hi"}],
                stream=True,
                stream_options={"include_usage": True},
                metadata={"tokens": "2"},
            )
        )
        assert chunks[0].choices[0].delta.role == "assistant"
        assert joined(chunk.choices[0].delta.content for chunk in chunks if chunk.choices) == "0000 0001 "
        assert chunks[-1].usage is not None
        assert sdk.completions.create(model="m", prompt="hi", max_tokens=1).choices[0].text == "0000 "
        texts = sdk.completions.create(model="m", prompt="hi", stream=True)
        assert joined(chunk.choices[0].text for chunk in texts) == "0000 0001 0002 "
        with pytest.raises(openai.RateLimitError) as caught:
            sdk.chat.completions.create(model="m", messages=[], metadata={"status": "429"})
        assert caught.value.code == "mock_error"


async def async_sdk_calls(address: tuple[str, int]) -> None:
    base = f"http://{address[0]}:{address[1]}/v1"
    async with openai.AsyncOpenAI(base_url=base, api_key="none", max_retries=0) as sdk:
        whole = await sdk.chat.completions.create(model="m", messages=[])
        assert whole.choices[0].message.content == "0000 0001 0002 "
        stream = await sdk.chat.completions.create(model="m", messages=[], stream=True)
        assert joined([chunk.choices[0].delta.content async for chunk in stream]) == "0000 0001 0002 "
        assert (await sdk.completions.create(model="m", prompt="hi")).choices[0].text == "0000 0001 0002 "
        texts = await sdk.completions.create(model="m", prompt="hi", stream=True)
        assert joined([chunk.choices[0].text async for chunk in texts]) == "0000 0001 0002 "


def joined(parts: Iterable[str | None]) -> str:
    return "".join(part or "" for part in parts)


async def test_the_sdk() -> None:
    async with on_sockets(MockSettings(interval=0.001, tokens=3)) as (server, address):
        await trio.to_thread.run_sync(sdk_calls, address)
        await trio.to_thread.run_sync(lambda: asyncio.run(async_sdk_calls(address)))
        assert len(server.records) == 10
        assert all(record.abandoned is None for record in server.records)


# ---- the ledger


async def test_the_newest_records_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trioproxy.bench.mock_record.KEPT_RECORDS", 3)
    async with in_memory() as (server, client):
        for number in range(5):
            await client.ask(request("GET", f"/{number}"))
        assert [record.path for record in server.records] == ["/2", "/3", "/4"]
