"""What the official SDKs make of the proxy's own errors, with the repetitions that they do by default.

Lives here: real clients in threads of their own, and model servers that count what reaches them. Does not live here:
what works (test_openai_sdk.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, TypeVar, final

import anthropic
import openai
import pytest
import trio

from trioproxy import Deadlines, Proxy, Settings

_T = TypeVar("_T")
SHORT: Final = Settings(deadlines=Deadlines(first_byte=0.2))


@final
class Silent:
    """A model server that takes requests and never answers."""

    def __init__(self) -> None:
        self.requests = 0

    async def serve(self, stream: trio.SocketStream) -> None:
        """One connection."""
        with contextlib.suppress(trio.BrokenResourceError):  # what an abort looks like
            async for data in stream:
                self.requests += data.count(b" HTTP/1.1\r\n")


@asynccontextmanager
async def proxied(settings: Settings = SHORT) -> AsyncGenerator[tuple[Silent, str, openai.OpenAI, anthropic.Anthropic]]:
    """A silent model server, the proxy in front of it, and a client of each kind."""
    silent = Silent()
    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, silent.serve, 0, host="127.0.0.1"))
        proxy = Proxy([f"http://127.0.0.1:{listener.socket.getsockname()[1]}"], settings=settings)
        [(host, port)] = await nursery.start(proxy.serve)
        url = f"http://{host}:{port}"
        with (
            openai.OpenAI(base_url=f"{url}/v1", api_key="none") as first,
            anthropic.Anthropic(base_url=url, api_key="none") as second,
        ):
            yield silent, url, first, second
        nursery.cancel_scope.cancel()


async def ask(question: Callable[[], _T]) -> _T:
    """In a thread, whose work is bounded by the deadlines of the proxy."""
    return await trio.to_thread.run_sync(question)


def chat(client: openai.OpenAI, *, stream: bool) -> object:
    """A chat completion."""
    return client.chat.completions.create(model="m", messages=[{"role": "user", "content": "Hi"}], stream=stream)  # pyright: ignore[reportCallIssue, reportUnknownVariableType] - overloads by the literal


def message(client: anthropic.Anthropic) -> object:
    """A message of Anthropic's API."""
    return client.messages.create(model="m", max_tokens=5, messages=[{"role": "user", "content": "Hi"}])


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_that_was_too_slow_for_its_deadline_is_not_sent_again_by_openai(stream: bool) -> None:
    async with proxied() as (silent, _, client, _):
        assert client.max_retries == 2
        with pytest.raises(openai.InternalServerError) as caught:
            await ask(lambda: chat(client, stream=stream))
        assert (caught.value.status_code, caught.value.code) == (504, "first_byte_timeout")
        assert caught.value.request_id
        assert silent.requests == 1


async def test_nor_by_anthropic_which_understands_the_error() -> None:
    async with proxied() as (silent, _, _, client):
        assert client.max_retries == 2
        with pytest.raises(anthropic.APIStatusError) as caught:
            await ask(lambda: message(client))
        assert caught.value.status_code == 504
        assert caught.value.type == "timeout_error"
        assert caught.value.request_id
        assert silent.requests == 1


async def test_a_path_that_is_closed_is_not_found() -> None:
    async with proxied() as (silent, url, _, _):
        with openai.OpenAI(base_url=f"{url}/admin", api_key="none") as client:
            with pytest.raises(openai.NotFoundError) as caught:
                await ask(client.models.list)
            assert caught.value.code == "path_not_allowed"
        with anthropic.Anthropic(base_url=url, api_key="none") as other:
            with pytest.raises(anthropic.NotFoundError) as refused:
                await ask(lambda: other.post("/v1/messages/batches", cast_to=object, body={}))
            assert refused.value.type == "not_found_error"
        assert silent.requests == 0


async def test_what_never_left_is_repeated_and_succeeds_when_there_is_somebody() -> None:
    """A 503 with Retry-After: the SDK comes again, and finds the model server that has come up meanwhile."""
    with trio.socket.socket() as place:
        await place.bind(("127.0.0.1", 0))
        port = place.getsockname()[1]
    answer = b'{"object":"list","data":[]}'
    seen = 0

    async def up(stream: trio.SocketStream) -> None:
        nonlocal seen
        async with stream:
            await stream.receive_some()
            seen += 1
            await stream.send_all(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
                % (len(answer), answer)
            )

    async with trio.open_nursery() as nursery:
        [(host, proxy_port)] = await nursery.start(Proxy([f"http://127.0.0.1:{port}"]).serve)
        with openai.OpenAI(base_url=f"http://{host}:{proxy_port}/v1", api_key="none") as client:

            async def come_up() -> None:
                await trio.sleep(0.5)
                await trio.serve_tcp(up, port, host="127.0.0.1")

            nursery.start_soon(come_up)
            assert (await ask(client.models.list)).data == []
        assert seen == 1
        nursery.cancel_scope.cancel()
