"""The official OpenAI SDK, in a thread of its own, through the proxy to the mock model server."""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import httpx
import openai
import pytest
import trio
from openai.types.chat import ChatCompletionChunk, ChatCompletionMessageParam

import trioproxy
from certificates import server_context, trusting_context, write_files
from trioproxy.bench.mock import MockServer, MockSettings

from .serving import serving

_T = TypeVar("_T")
MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Say something ☃"}]
TOKENS = 5


@asynccontextmanager
async def served(
    tls: bool = False, settings: trioproxy.Settings | None = None
) -> AsyncGenerator[tuple[trioproxy.Proxy, openai.OpenAI], None]:
    """A mock, a proxy in front of it, and a client of the proxy."""
    async with trio.open_nursery() as nursery:
        host, port = await nursery.start(MockServer(MockSettings(tokens=TOKENS, interval=0.001)).serve)
        proxy = trioproxy.Proxy([f"http://{host}:{port}"], settings=settings)
        [(host, port)] = await nursery.start(partial(proxy.serve, tls=server_context() if tls else None))
        url = f"{'https' if tls else 'http'}://{host}:{port}/v1"
        http = openai.DefaultHttpxClient(verify=trusting_context() if tls else True, trust_env=False)
        with openai.OpenAI(base_url=url, api_key="not-needed", max_retries=0, http_client=http) as client:
            yield proxy, client
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def served_by_a_process(directory: Path) -> AsyncGenerator[openai.OpenAI, None]:
    """The same with the proxy in a process of its own, as ``trioproxy serve --tls-cert``, and TLS on both sides."""
    ca, chain, key = await trio.to_thread.run_sync(write_files, directory)
    mock = MockServer(MockSettings(tokens=TOKENS, interval=0.001))
    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(
            partial(trio.serve_ssl_over_tcp, mock.serve_stream, 0, server_context(), host="127.0.0.1")
        )
        upstream = f"https://127.0.0.1:{listener.transport_listener.socket.getsockname()[1]}"
        options = ["--tls-cert", str(chain), "--tls-key", str(key), "--upstream-ca", str(ca)]
        async with serving(upstream, *options) as process:
            host, port = process.address
            http = openai.DefaultHttpxClient(verify=ssl.create_default_context(cafile=str(ca)), trust_env=False)
            url = f"https://{host}:{port}/v1"
            with openai.OpenAI(base_url=url, api_key="not-needed", max_retries=0, http_client=http) as client:
                yield client
        nursery.cancel_scope.cancel()


async def ask(call: Callable[[], _T]) -> _T:
    return await trio.to_thread.run_sync(call)


async def test_models() -> None:
    async with served() as (_, client):
        models = await ask(client.models.list)
        assert [model.id for model in models.data] == ["mock-model"]


@pytest.mark.parametrize("tls", [False, True])
async def test_chat_completion(tls: bool) -> None:
    async with served(tls) as (proxy, client):
        answer = await ask(lambda: client.chat.completions.create(model="mock-model", messages=MESSAGES))
        assert answer.choices[0].finish_reason == "stop"
        assert len((answer.choices[0].message.content or "").split()) == TOKENS
        assert answer.usage is not None
        assert answer.usage.completion_tokens == TOKENS == proxy.statistics().tokens["completion"]


@pytest.mark.parametrize("tls", [False, True])
async def test_chat_completion_streamed(tls: bool) -> None:
    def stream() -> tuple[str, int]:
        with client.chat.completions.create(
            model="mock-model", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
        ) as events:
            chunks = list(events)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        return text, sum(chunk.usage.completion_tokens for chunk in chunks if chunk.usage)

    async with served(tls) as (proxy, client):
        text, tokens = await ask(stream)
        assert len(text.split()) == TOKENS == tokens == proxy.statistics().tokens["completion"]
        assert proxy.statistics().outcomes["completed"] == 1


@pytest.mark.parametrize("asked", [False, True])
async def test_usage_that_the_proxy_asks_for_is_seen_by_the_proxy_alone(asked: bool) -> None:
    more = {"stream_options": {"include_usage": True}} if asked else None

    def stream() -> list[ChatCompletionChunk]:
        with client.chat.completions.create(
            model="mock-model", messages=MESSAGES, stream=True, extra_body=more
        ) as events:
            return list(events)

    async with served(settings=trioproxy.Settings(usage="inject")) as (proxy, client):
        chunks = await ask(stream)
        assert proxy.statistics().tokens["completion"] == TOKENS
        assert [bool(chunk.usage) for chunk in chunks] == [False] * (len(chunks) - 1) + [asked]
        assert all(chunk.choices for chunk in chunks[:-1])


async def test_a_process_that_speaks_tls_on_both_sides(tmp_path: Path) -> None:
    def stream() -> str:
        with client.chat.completions.create(model="mock-model", messages=MESSAGES, stream=True) as events:
            return "".join(chunk.choices[0].delta.content or "" for chunk in events if chunk.choices)

    async with served_by_a_process(tmp_path) as client:
        answer = await ask(lambda: client.chat.completions.create(model="mock-model", messages=MESSAGES))
        assert len((answer.choices[0].message.content or "").split()) == TOKENS
        assert len((await ask(stream)).split()) == TOKENS


async def test_completion() -> None:
    async with served() as (_, client):
        answer = await ask(lambda: client.completions.create(model="mock-model", prompt="Once", max_tokens=3))
        assert len(answer.choices[0].text.split()) == 3


async def test_completion_streamed() -> None:
    def stream() -> str:
        with client.completions.create(model="mock-model", prompt="Once", stream=True) as events:
            return "".join(chunk.choices[0].text for chunk in events if chunk.choices)

    async with served() as (_, client):
        assert len((await ask(stream)).split()) == TOKENS


async def test_an_error_of_the_proxy_is_one_of_the_sdk() -> None:
    """The proxy's JSON is in the form that the SDK reads: message, code and param arrive as its attributes."""
    async with served() as (_, client):
        with pytest.raises(openai.BadRequestError) as caught:
            await ask(
                lambda: client.post(
                    "/chat/completions",
                    cast_to=httpx.Response,
                    content=b'{"model": "a", "model": "b", "messages": []}',
                    options={"headers": {"content-type": "application/json"}},
                )
            )
        assert caught.value.code == "duplicate_field"
        assert caught.value.param == "model"
        assert "send it once" in caught.value.message


async def test_no_upstream_is_a_503_of_the_sdk() -> None:
    async with trio.open_nursery() as nursery:
        proxy = trioproxy.Proxy(["http://127.0.0.1:1"])
        [(host, port)] = await nursery.start(proxy.serve)
        with (
            openai.OpenAI(base_url=f"http://{host}:{port}/v1", api_key="not-needed", max_retries=0) as client,
            pytest.raises(openai.InternalServerError) as caught,
        ):
            await ask(client.models.list)
        assert caught.value.status_code == 503
        assert caught.value.code == "connect_failed"
        nursery.cancel_scope.cancel()
