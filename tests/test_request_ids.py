"""A request has the id that its client gave it, wherever the client can see it; a client without one is given one."""

from __future__ import annotations

import re

import pytest
from trio.testing import MockClock

from script import conversation, get, message, post

OK = message("HTTP/1.1 200 OK", "Content-Length: 0")


def ids_in(text: str) -> list[str]:
    return re.findall(r"(?im)^x-request-id: (.*?)\r?$", text)


async def test_the_clients_own_goes_both_ways(autojump_clock: MockClock) -> None:
    async with conversation() as talk:
        client = await talk.client()
        await client.says(get("/", "X-Request-Id: mine-1"))
        upstream = await talk.upstream()
        assert ids_in(await upstream.takes()) == ["mine-1"]
        await upstream.says(OK)
        assert ids_in(await client.takes()) == ["mine-1"]


async def test_the_upstreams_own_is_kept(autojump_clock: MockClock) -> None:
    async with conversation() as talk:
        client = await talk.client()
        await client.says(get("/", "X-Request-Id: mine-1"))
        upstream = await talk.upstream()
        await upstream.takes()
        await upstream.says(message("HTTP/1.1 200 OK", "X-Request-Id: theirs", "Content-Length: 0"))
        assert ids_in(await client.takes()) == ["theirs"]


async def test_an_error_carries_it(autojump_clock: MockClock) -> None:
    async with conversation() as talk:
        talk.refusing.add("10.0.0.1")
        client = await talk.client()
        await client.says(post("{}", "/x", "X-Request-Id: mine-2"))
        heard = await client.takes()
        assert heard.startswith("HTTP/1.1 503 ")
        assert ids_in(heard) == ["mine-2"]
        assert '"request_id":"mine-2"' in heard


@pytest.mark.parametrize("value", ["", "two words", "x" * 129, "é", 'a"b'])
async def test_one_that_is_none_is_passed_on_but_not_taken_over(value: str, autojump_clock: MockClock) -> None:
    async with conversation() as talk:
        client = await talk.client()
        await client.says(get("/", f"X-Request-Id: {value}"))
        upstream = await talk.upstream()
        assert ids_in(await upstream.takes()) == [value]
        await upstream.says(OK)
        [given] = ids_in(await client.takes())
        assert re.fullmatch("[0-9a-f]{8}-[0-9a-f]+", given)


async def test_without_one_both_sides_get_the_same(autojump_clock: MockClock) -> None:
    async with conversation() as talk:
        client = await talk.client()
        await client.says(get())
        upstream = await talk.upstream()
        [there] = ids_in(await upstream.takes())
        await upstream.says(OK)
        assert ids_in(await client.takes()) == [there]
