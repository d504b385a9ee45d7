"""What clients see of endpoints that fail, and how probes are sent."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from script import OK, OK_HEARD, Conversation, conversation, get, message
from trioproxy import Health, Settings

PROBED = Settings(health=Health(path="/health", interval=5, timeout=2, fall=2, rise=1))


def status(number: int, *fields: str) -> str:
    return message(f"HTTP/1.1 {number} Whatever", *fields, "Content-Length: 0")


async def answered(talk: Conversation, said: str) -> None:
    """One request at the first upstream, with this answer."""
    client = await talk.client()
    await client.says(get())
    await wait_all_tasks_blocked()
    upstream = talk.answering("10.0.0.1")
    await upstream.takes()
    await upstream.says(said)
    await client.takes()
    await client.leaves()
    await wait_all_tasks_blocked()


async def ready(talk: Conversation) -> bool:
    client = await talk.client()
    await client.says(get("/readyz", "Connection: close"))
    heard = await client.takes()
    assert heard.startswith(("HTTP/1.1 200 ", "HTTP/1.1 503 ")), heard
    assert heard.startswith("HTTP/1.1 200 ") is talk.proxy.ready
    return talk.proxy.ready


@pytest.mark.parametrize(
    ("said", "broken"),
    [
        (status(503), True),
        (status(502), True),
        (status(504), True),
        (status(503, "Retry-After: 1"), False),
        (status(500), False),
        (status(429), False),
        (status(404), False),
        (OK, False),
    ],
)
async def test_which_answers_are_failures(autojump_clock: MockClock, said: str, broken: bool) -> None:
    async with conversation() as talk:
        for _ in range(4):
            await answered(talk, said)
        assert await ready(talk)
        await answered(talk, said)
        assert await ready(talk) is not broken
        await answered(talk, OK)
        assert await ready(talk)


async def test_one_that_cannot_be_reached_is_passed_over_then_left_alone(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with conversation(upstreams=2) as talk:
        talk.refusing.add("10.0.0.1")
        for _ in range(30):
            client = await talk.client()
            await client.says(get("/", "Connection: close"))
            await wait_all_tasks_blocked()
            upstream = talk.answering("10.0.0.2")
            await upstream.takes()
            await upstream.says(OK)
            assert (await client.takes()).startswith("HTTP/1.1 200 ")
        assert talk.count("completed") == 30
        assert talk.dialled.count("10.0.0.1") == 5
        assert await ready(talk)


async def test_probes_take_an_endpoint_out_and_bring_it_back(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with conversation(PROBED) as talk:
        answers = iter([OK, status(404), status(500), status(503), status(503), OK, OK])
        expected = iter([True, True, True, False, False, True, True])
        client = await talk.client()
        for answer, well in zip(answers, expected, strict=True):
            upstream = await talk.upstream()
            assert (await upstream.takes()).startswith("GET /health HTTP/1.1\r\n")
            await upstream.says(answer)
            await upstream.hears_end()
            assert talk.proxy.ready is well
            await trio.sleep(5.5)
        await (await talk.upstream()).takes()
        assert talk.proxy.statistics().outcomes["completed"] == 0
        await client.leaves()
    assert "upstream http://10.0.0.1 is down: it answered with status 503" in caplog.text.replace(":80", "") or (
        "is down: it answered with status 503" in caplog.text
    )
    assert "is up again" in caplog.text


async def test_an_endpoint_that_is_silent_is_down(autojump_clock: MockClock, caplog: pytest.LogCaptureFixture) -> None:
    async with conversation(PROBED) as talk:
        await talk.client()
        for _ in range(2):
            upstream = await talk.upstream()
            await upstream.takes()
            await trio.sleep(2.01)
            await upstream.hears_end()
            await trio.sleep(5.5)
        assert not talk.proxy.ready
        await (await talk.upstream()).takes()
    assert "is down: no answer within 2 s" in caplog.text


async def test_health_of_the_proxy_itself(autojump_clock: MockClock) -> None:
    async with conversation() as talk:
        client = await talk.client()
        for path in ("/healthz", "/readyz"):
            for method in ("GET", "HEAD"):
                await client.says(message(f"{method} {path} HTTP/1.1", "Host: a"))
                assert (await client.takes()).startswith("HTTP/1.1 200 OK\r\n")
        assert talk.count("served") == 4
        talk.proxy.drain()
        assert not talk.proxy.ready
        await client.hears_end()
    assert OK_HEARD
