"""What an upstream's URL may be, and how its name becomes addresses outside of any exchange."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from trioproxy import Code, ProxyError
from trioproxy.upstream.endpoint import Endpoint


@pytest.mark.parametrize(
    ("url", "host", "port", "tls", "shown"),
    [
        ("http://model", "model", 80, False, "http://model"),
        ("http://model:8000/", "model", 8000, False, "http://model:8000"),
        ("model:8000", "model", 8000, False, "http://model:8000"),
        ("[::1]:8000", "::1", 8000, False, "http://[::1]:8000"),
        ("HTTP://Model:8000", "model", 8000, False, "http://Model:8000"),
        ("http://127.0.0.1:1", "127.0.0.1", 1, False, "http://127.0.0.1:1"),
        ("http://[::1]:65535", "::1", 65535, False, "http://[::1]:65535"),
        ("https://model", "model", 443, True, "https://model"),
        ("https://[::1]:8443/", "::1", 8443, True, "https://[::1]:8443"),
        ("unix:/run/model.sock", "", 0, False, "unix:/run/model.sock"),
    ],
)
def test_a_url(url: str, host: str, port: int, tls: bool, shown: str) -> None:
    endpoint = Endpoint(url)
    assert (endpoint.host, endpoint.port, endpoint.tls, endpoint.url) == (host, port, tls, shown)
    assert repr(endpoint) == f"<Endpoint {shown}>"


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("", "must look like http://HOST:PORT"),
        ("model", "must look like http://HOST:PORT"),
        ("model:x", "the port must be a number from 1 to 65535"),
        ("user@model:80", "a user or a password is refused"),
        ("//model:8000", "must look like http://HOST:PORT"),
        ("http://", "must look like http://HOST:PORT"),
        ("http://:8000", "must look like http://HOST:PORT"),
        ("ftp://model", "must look like http://HOST:PORT"),
        ("unix:", "the absolute path of a socket"),
        ("unix:model", "the absolute path of a socket"),
        ("unix://model", "the absolute path of a socket"),
        ("unix:/run/", "the absolute path of a socket"),
        ("unix:/" + "x" * 107, "at most 107 bytes"),
        ("https://model/v1", "must end after the port: .* (give https://model)"),
        ("http://user@model", "a user or a password is refused"),
        ("http://user:secret@model", "a user or a password is refused"),
        ("http://:secret@model", "a user or a password is refused"),
        ("http://model/v1", "must end after the port: .* (give http://model)"),
        ("http://model:8000/?x=1", "must end after the port"),
        ("http://model:8000#x", "must end after the port"),
        ("http://model:0", "the port must be a number from 1 to 65535"),
        ("http://model:65536", "the port must be a number from 1 to 65535"),
        ("http://model:x", "the port must be a number from 1 to 65535"),
        ("http://model:-1", "the port must be a number from 1 to 65535"),
        ("http://[::1", "must look like http://HOST:PORT"),
        ("http://mo del:8000", "must look like http://HOST:PORT"),
        ("http://mo\ndel:8000", "must look like http://HOST:PORT"),
        (" http://model:8000", "must look like http://HOST:PORT"),
        ("http://model\x00:8000", "must look like http://HOST:PORT"),
        ("http://mod\\el:8000", "must look like http://HOST:PORT"),
    ],
)
def test_a_url_that_is_refused_and_why(url: str, what: str) -> None:
    with pytest.raises(ValueError) as caught:
        Endpoint(url)
    message = str(caught.value)
    before, _, after = what.partition(" .* ")
    assert before in message
    assert after in message
    assert "secret" not in message


@pytest.mark.parametrize(
    ("url", "family", "sockaddr"),
    [
        ("http://127.0.0.1:8000", socket.AF_INET, ("127.0.0.1", 8000)),
        ("http://[::1]:8000", socket.AF_INET6, ("::1", 8000, 0, 0)),
        ("https://127.0.0.1", socket.AF_INET, ("127.0.0.1", 443)),
        ("unix:/run/model", socket.AF_UNIX, "/run/model"),
    ],
)
async def test_an_address_needs_no_look_up(
    url: str, family: socket.AddressFamily, sockaddr: tuple[object, ...] | str, resolver: Resolver
) -> None:
    endpoint = Endpoint(url)
    assert endpoint.literal
    assert endpoint.resolved
    (address,) = await endpoint.addresses()
    assert (address.family, address.sockaddr) == (family, sockaddr)
    await endpoint.resolve(trio.CapacityLimiter(1))
    assert resolver.calls == 0


class Resolver:
    """Stands in for the system's; each look-up waits until it is let go."""

    def __init__(self) -> None:
        self.calls = 0
        self.running = 0
        self.go = threading.Semaphore(0)
        self.answer: Callable[[], list[str]] = lambda: ["10.0.0.1", "10.0.0.2"]

    def getaddrinfo(self, host: object, port: int, **kwargs: object) -> list[tuple[object, ...]]:
        self.calls += 1
        self.running += 1
        assert self.go.acquire(timeout=5)
        self.running -= 1
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port)) for host in self.answer()]


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Resolver:
    stand_in = Resolver()
    monkeypatch.setattr("trioproxy.upstream.endpoint.socket.getaddrinfo", stand_in.getaddrinfo)
    return stand_in


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(5000):
        if condition():
            return
        await trio.sleep(0.001)
    raise TimeoutError


def fail() -> list[str]:
    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


async def test_a_waiter_that_is_cancelled_leaves_no_thread_and_the_look_up_goes_on(resolver: Resolver) -> None:
    endpoint = Endpoint("http://model:8000")
    limiter = trio.CapacityLimiter(1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(endpoint.resolve, limiter)
        await until(lambda: resolver.running == 1)
        threads = threading.active_count()
        for _ in range(50):
            with trio.move_on_after(0) as scope:
                await endpoint.addresses()
            assert scope.cancelled_caught
        assert threading.active_count() == threads
        assert (resolver.calls, limiter.borrowed_tokens) == (1, 1)
        resolver.go.release()
        addresses = await endpoint.addresses()
    assert [address.sockaddr for address in addresses] == [("10.0.0.1", 8000), ("10.0.0.2", 8000)]


async def test_one_look_up_at_a_time(resolver: Resolver) -> None:
    endpoint = Endpoint("http://model:8000")
    limiter = trio.CapacityLimiter(5)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(endpoint.resolve, limiter)
        await until(lambda: resolver.running == 1)
        for _ in range(5):
            await endpoint.resolve(limiter)  # returns
        for _ in range(5):
            nursery.start_soon(endpoint.addresses)
        await wait_all_tasks_blocked()
        resolver.go.release()
    assert resolver.calls == 1


async def test_whoever_resolves_and_is_cancelled_waits_for_the_thread(resolver: Resolver) -> None:
    """The thread is not abandoned, and what it found is kept."""
    endpoint = Endpoint("http://model:8000")
    limiter = trio.CapacityLimiter(1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(endpoint.resolve, limiter)
        await until(lambda: resolver.running == 1)
        nursery.cancel_scope.cancel()
        resolver.go.release()
    assert resolver.running == 0
    assert limiter.borrowed_tokens == 0


def find_none() -> list[str]:
    return []


def refuse_the_name() -> list[str]:
    raise UnicodeError("label empty or too long")


@pytest.mark.parametrize("error", [fail, find_none, refuse_the_name])
async def test_a_failure_and_then_a_recovery(error: Callable[[], list[str]], resolver: Resolver) -> None:
    endpoint = Endpoint("http://model:8000")
    limiter = trio.CapacityLimiter(1)
    good, resolver.answer = resolver.answer, error
    failed = trio.Event()

    async def wait() -> None:
        with pytest.raises(ProxyError, match="name of the model server cannot be resolved") as caught:
            await endpoint.addresses()
        assert caught.value.code is Code.CONNECT_FAILED
        failed.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        resolver.go.release()
        await endpoint.resolve(limiter)
    assert failed.is_set()
    assert not endpoint.resolved
    with pytest.raises(ProxyError):
        await endpoint.addresses()  # at once
    resolver.answer = good
    resolver.go.release()
    await endpoint.resolve(limiter)
    assert len(await endpoint.addresses()) == 2


async def test_a_refresh_replaces_what_was_known_and_a_failed_one_does_not(resolver: Resolver) -> None:
    endpoint = Endpoint("http://model:8000")
    limiter = trio.CapacityLimiter(1)
    for answer, known in (
        (lambda: ["10.0.0.1"], "10.0.0.1"),
        (lambda: ["10.0.0.9"], "10.0.0.9"),
        (fail, "10.0.0.9"),
        (lambda: ["10.0.0.5"], "10.0.0.5"),
    ):
        resolver.answer = answer
        resolver.go.release()
        await endpoint.resolve(limiter)
        (address,) = await endpoint.addresses()
        assert address.sockaddr == (known, 8000)
