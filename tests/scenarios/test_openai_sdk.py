"""The official OpenAI SDK, in a thread of its own, through the proxy to the mock model server."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import httpx
import openai
import pytest
import trio
from openai.types.chat import ChatCompletionMessageParam

import trioproxy
from trioproxy.bench.mock import MockServer, MockSettings

_T = TypeVar("_T")
MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Say something ☃"}]
TOKENS = 5


@asynccontextmanager
async def served() -> AsyncGenerator[tuple[trioproxy.Proxy, openai.OpenAI], None]:
    """A mock, a proxy in front of it, and a client of the proxy."""
    async with trio.open_nursery() as nursery:
        host, port = await nursery.start(MockServer(MockSettings(tokens=TOKENS, interval=0.001)).serve)
        proxy = trioproxy.Proxy([f"http://{host}:{port}"])
        [(host, port)] = await nursery.start(proxy.serve)
        with openai.OpenAI(base_url=f"http://{host}:{port}/v1", api_key="not-needed", max_retries=0) as client:
            yield proxy, client
        nursery.cancel_scope.cancel()


async def ask(call: Callable[[], _T]) -> _T:
    return await trio.to_thread.run_sync(call)


async def test_models() -> None:
    async with served() as (_, client):
        models = await ask(client.models.list)
        assert [model.id for model in models.data] == ["mock-model"]


async def test_chat_completion() -> None:
    async with served() as (proxy, client):
        answer = await ask(lambda: client.chat.completions.create(model="mock-model", messages=MESSAGES))
        assert answer.choices[0].finish_reason == "stop"
        assert len((answer.choices[0].message.content or "").split()) == TOKENS
        assert answer.usage is not None
        assert answer.usage.completion_tokens == TOKENS == proxy.statistics().tokens["completion"]


async def test_chat_completion_streamed() -> None:
    def stream() -> tuple[str, int]:
        with client.chat.completions.create(
            model="mock-model", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
        ) as events:
            chunks = list(events)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        return text, sum(chunk.usage.completion_tokens for chunk in chunks if chunk.usage)

    async with served() as (proxy, client):
        text, tokens = await ask(stream)
        assert len(text.split()) == TOKENS == tokens == proxy.statistics().tokens["completion"]
        assert proxy.statistics().outcomes["completed"] == 1


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
