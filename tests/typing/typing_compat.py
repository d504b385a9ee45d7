"""``Proxy.serve`` takes the task status of trio-typing's protocol, of the right type only.

``serve`` calls ``started``, not the functions here (ASYNC128). Checked in an environment of its own, where trio-typing
is installed: its stubs shadow Trio's own hints.
"""

import trio_typing

import trioproxy


async def start(proxy: trioproxy.Proxy, status: trio_typing.TaskStatus[list[tuple[str, int]]]) -> None:  # noqa: ASYNC128
    await proxy.serve("127.0.0.1", 0, task_status=status)


async def start_wrongly(proxy: trioproxy.Proxy, status: trio_typing.TaskStatus[int]) -> None:  # noqa: ASYNC128
    await proxy.serve("127.0.0.1", 0, task_status=status)  # type: ignore[arg-type]
