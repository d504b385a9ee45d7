"""A transport for tests of what reads and writes one: it takes as much as it is told to, and notes what happens.

Does not live here: a network; see script.py for conversations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

import trio

from trioproxy.net import Buffer, ReceiveTarget


@final
class Script:
    """Takes bytes in the portions of ``takes``, and has those of ``gives`` to be received.

    :param takes: how many bytes each attempt to send may hand over: 0 would block, None breaks; after the last,
        everything.
    :param gives: what each receive returns; None breaks.
    :param log: gets a note of each send and receive.
    """

    def __init__(
        self,
        takes: Sequence[int | None] = (),
        gives: Sequence[bytes | None] = (),
        log: Callable[[str], None] = lambda note: None,
    ) -> None:
        self.closed = False
        self.taken = bytearray()
        self._takes = list(takes)
        self._gives = list(gives)
        self._log = log

    async def receive(self) -> bytes:
        await trio.lowlevel.checkpoint()
        data = self._gives.pop(0)
        self._log(f"received {data!r}")
        if data is None:
            raise trio.BrokenResourceError("broken by the script")
        return data

    async def receive_into(self, target: ReceiveTarget) -> int:
        raise NotImplementedError

    def send_nowait(self, buffers: Sequence[Buffer]) -> int:
        data = b"".join(buffers)
        room = self._takes.pop(0) if self._takes else len(data)
        if room is None:
            self._log("broke")
            raise trio.BrokenResourceError("broken by the script")
        self.taken += data[:room]
        self._log(f"sent {data[:room]!r}")
        return min(room, len(data))

    async def send_some(self, buffers: Sequence[Buffer]) -> int:
        await trio.lowlevel.checkpoint()
        sent = self.send_nowait(buffers)
        while not sent:  # noqa: ASYNC110 - the script says how often it would block, a second each time
            await trio.sleep(1)
            sent = self.send_nowait(buffers)
        return sent

    async def wait_hangup(self, *, half_close: bool) -> None:
        await trio.sleep_forever()

    def readable_nowait(self) -> bool:
        return bool(self._gives)

    def shutdown_write(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self.closed = True

    def reset(self) -> None:
        self.closed = True

    async def aclose(self) -> None:
        raise NotImplementedError
