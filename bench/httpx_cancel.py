"""Does a client's pool survive cancellation? 60 tasks, 10 connections, and random cancels of up to 20 ms, for 5 s.

``python -m bench.httpx_cancel`` runs httpx on trioproxy's ``PoolTransport``, ``--transport httpcore`` runs the same on
httpx's own transport. Afterwards nothing is under way: the pool must be empty or idle, and a request must get its
answer. The server answers after up to 5 ms; some requests close their connection, so that cancels also fall on
connecting. The exit
status is 1 if the pool did not survive: slots that nobody has are lost for good, and a pool that has lost all of them
never answers again.
"""

from __future__ import annotations

import sys
from collections import Counter
from functools import partial
from random import Random
from typing import Final, NamedTuple

import click
import httpx
import trio

from trioproxy import PoolTransport

_ANSWER: Final = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
_TASKS: Final = 60
_CONNECTIONS: Final = 10
_LONGEST: Final = 0.02
_PAUSE: Final = 0.1
"""Seconds at most between two requests of a task: without it the machine is so busy that nearly none completes."""
_PATIENCE: Final = 5.0


class Survey(NamedTuple):
    """What was seen."""

    completed: int
    cancelled: int
    failed: int
    """Requests that ended with an error of httpx's."""
    afterwards: str
    """The pool when nothing was under way any more."""
    lost: int
    """Connections that it has then and that are not idle, and requests that wait."""
    answered: bool
    """Whether a request was answered after it all."""


async def _serve(random: Random, stream: trio.SocketStream) -> None:
    try:
        while await stream.receive_some():
            await trio.sleep(random.random() * 0.005)
            await stream.send_all(_ANSWER)
    except trio.BrokenResourceError:
        pass
    finally:
        with trio.move_on_after(1, shield=True):
            await stream.aclose()


async def survey(kind: str, *, seconds: float, seed: int, longest: float = _LONGEST) -> Survey:
    """Do it.

    :param longest: seconds after which a request is cancelled, at most.
    """
    random = Random(seed)
    limits = httpx.Limits(max_connections=_CONNECTIONS, max_keepalive_connections=_CONNECTIONS)
    transport = PoolTransport(limits=limits) if kind == "trioproxy" else httpx.AsyncHTTPTransport(limits=limits)
    completed = cancelled = failed = 0

    async def ask(client: httpx.AsyncClient, url: str, until: float) -> None:
        nonlocal completed, cancelled, failed
        while trio.current_time() < until:
            with trio.move_on_after(random.random() * longest) as scope:  # noqa: ASYNC912 - a request has some
                try:
                    # Some close their connection, so that there is always one to be opened.
                    headers = {"connection": "close"} if random.random() < 0.3 else {}
                    response = await client.get(url, headers=headers)
                    completed += response.status_code == 200
                except httpx.HTTPError:
                    failed += 1
            cancelled += scope.cancelled_caught
            await trio.sleep(random.random() * _PAUSE)

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, partial(_serve, random), 0, host="127.0.0.1"))
        url = f"http://localhost:{listeners[0].socket.getsockname()[1]}/"
        client = httpx.AsyncClient(transport=transport, timeout=None)
        async with trio.open_nursery() as tasks:
            until = trio.current_time() + seconds
            for _ in range(_TASKS):
                tasks.start_soon(ask, client, url, until)
        afterwards, lost = _state(transport)
        answered = False
        with trio.move_on_after(_PATIENCE):
            answered = (await client.get(url)).status_code == 200
        with trio.move_on_after(_PATIENCE):
            await client.aclose()
        nursery.cancel_scope.cancel()
    return Survey(completed, cancelled, failed, afterwards, lost, answered)


def _state(transport: httpx.AsyncBaseTransport) -> tuple[str, int]:
    if isinstance(transport, PoolTransport):
        counts = transport.counts
        return repr(counts), counts.held + counts.connecting + counts.waiting
    assert isinstance(transport, httpx.AsyncHTTPTransport)
    connections = Counter(str(connection.info()) for connection in transport._pool.connections)  # pyright: ignore[reportPrivateUsage] - httpx shows it nowhere
    states = ", ".join(f"{count} × {state}" for state, count in connections.items())
    lost = sum(count for state, count in connections.items() if "IDLE" not in state)
    return f"{sum(connections.values())} connections: {states or 'none'}", lost


@click.command()
@click.option(
    "--transport", "kind", type=click.Choice(["trioproxy", "httpcore"]), default="trioproxy", show_default=True
)
@click.option("--seconds", default=5.0, show_default=True)
@click.option("--seed", default=1, show_default=True)
def main(kind: str, seconds: float, seed: int) -> None:
    """Cancel requests at random, then look at what is left of the pool."""
    found = trio.run(partial(survey, kind, seconds=seconds, seed=seed))
    click.echo(f"{kind}: {found.completed} completed, {found.cancelled} cancelled, {found.failed} failed")
    click.echo(f"afterwards: {found.afterwards}")
    click.echo(f"lost: {found.lost} of {_CONNECTIONS} connections")
    click.echo("the next request: " + ("answered" if found.answered else f"no answer within {_PATIENCE:g} s"))
    sys.exit(0 if not found.lost and found.answered else 1)


if __name__ == "__main__":
    main()
