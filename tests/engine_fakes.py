"""Gateways and engine metrics, made to be good or bad, on real sockets.

Lives here: what stands between the tool and the mock model server in tests of ``--engine-metrics``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial

import trio

from trioproxy.bench.mock import MockServer

CHUNK = 65536


async def gateway(  # noqa: ASYNC114, ASYNC128 - started by _serve
    upstream: tuple[str, int],
    propagates: bool,
    *,
    task_status: trio.TaskStatus[tuple[str, int]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Passes bytes; a client that leaves is passed on at once, or never: then the answer is read to its end."""

    async def serve(client: trio.SocketStream) -> None:
        async with client, await trio.open_tcp_stream(*upstream) as engine, trio.open_nursery() as nursery:
            nursery.start_soon(answers, client, engine, nursery.cancel_scope)
            with contextlib.suppress(trio.BrokenResourceError):
                async for piece in client:
                    await engine.send_all(piece)
            if propagates:
                nursery.cancel_scope.cancel()

    async def answers(client: trio.SocketStream, engine: trio.SocketStream, scope: trio.CancelScope) -> None:
        listening = True
        with contextlib.suppress(trio.BrokenResourceError):
            async for piece in engine:
                if listening:
                    try:
                        await client.send_all(piece)
                    except trio.BrokenResourceError:
                        listening = False
        scope.cancel()

    await _serve(serve, task_status)


async def pages(  # noqa: ASYNC114, ASYNC128 - started by _serve
    render: Callable[[], str],
    *,
    task_status: trio.TaskStatus[tuple[str, int]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serves what ``render`` returns, to any request of a head alone."""

    async def serve(client: trio.SocketStream) -> None:
        async with client:
            with contextlib.suppress(trio.BrokenResourceError):
                async for head in client:
                    assert head.endswith(b"\r\n\r\n")
                    body = render().encode()
                    await client.send_all(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))

    await _serve(serve, task_status)


async def _serve(handler: Callable[[trio.SocketStream], object], status: trio.TaskStatus[tuple[str, int]]) -> None:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with trio.open_nursery() as nursery:
        address = listener.socket.getsockname()
        nursery.start_soon(partial(trio.serve_listeners, handler, [listener]))  # type: ignore[arg-type]
        status.started((address[0], address[1]))


class StalePage:
    """vLLM's page of before its #29928 was fixed: when all requests were aborted, the gauges stay as they were."""

    def __init__(self, server: MockServer) -> None:
        self._server = server
        self._ended = 0
        self._running = 0

    def __call__(self) -> str:
        load = self._server.load
        ended = sum(load.finished.values())
        if load.running or ended != self._ended:
            self._running = load.running
        self._ended = ended
        return (
            f"vllm:num_requests_running {self._running}\n"
            f"vllm:generation_tokens_total {load.generation_tokens}\nvllm:prompt_tokens_total {load.prompt_tokens}\n"
        )


def llama_page(server: MockServer) -> str:
    """llama.cpp's: tokens are counted when a request comes to its end by itself."""
    ended = sum(record.tokens for record in server.records if record.finished is not None)
    return (
        f"# TYPE llamacpp:tokens_predicted_total counter\nllamacpp:tokens_predicted_total {ended}\n"
        f"llamacpp:n_decode_total {server.load.generation_tokens}\n"
        f"llamacpp:requests_processing {server.load.running}\nllamacpp:requests_deferred 0\n"
    )
