"""The body of a request: who holds its bytes, and when they are gone.

Lives here: the storage with its leases and its release, the pipe for bodies that are streamed through, and the
account of how many bytes all bodies of a proxy hold. Does not live here: what the bytes mean, or sending them.

``bytes`` can be neither revoked nor watched, so a body is one ``bytearray`` of our own. Release empties it in
place: the memory is gone whoever still has a name for it, and a view that escaped its lease is found out, because
then the storage cannot be emptied.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Final, final

import trio

from .errors import Code, ProxyError
from .ledger import BodyLedger

READ_AHEAD: Final = 65536
"""How many bytes of a streamed body are held for a slow upstream, at most, besides the read under way."""
_WINDOW: Final = 65536
_PIECE_OVERHEAD: Final = 64
"""Bytes of memory that a piece takes beside its own."""
_FEW: Final = 16
_GROWTH_LIMIT: Final = 1 << 20


class LeaseExpired(RuntimeError):  # noqa: N818 - the name of what happened, as in trio.Cancelled
    """A body was read through a lease that had ended."""


@final
class Storage(bytearray):
    """The bytes of one body; a type of its own so that it can be weakly referenced."""

    __slots__ = ("__weakref__",)


@final
class BodyStage(enum.Enum):
    """How far a body has come in."""

    RECEIVING = "receiving"
    COMPLETE = "complete"
    FAILED = "failed"
    RELEASED = "released"


# CPython 3.11 looks a member of an enum up anew each time, for 0.1 µs.
_RECEIVING: Final = BodyStage.RECEIVING
_COMPLETE: Final = BodyStage.COMPLETE
_FAILED: Final = BodyStage.FAILED
_RELEASED: Final = BodyStage.RELEASED


@final
class BodyLease:
    """The right to read a body, until the ``with`` block ends."""

    __slots__ = ("_body", "_view", "holder")

    def __init__(self, body: BufferedBody, holder: str) -> None:
        self._body = body
        self._view: memoryview | None = None
        self.holder = holder

    def __enter__(self) -> BodyLease:
        self._view = self._body.begin_lease()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        view, self._view = self._view, None
        if view is not None:
            view.release()
            self._body.end_lease()

    @property
    def view(self) -> memoryview:
        """The body, read-only.

        :raises LeaseExpired: the lease has ended.
        """
        if self._view is None:
            raise LeaseExpired(f"{self.holder} read the body of a request after its lease had ended")
        return self._view


@final
class BufferedBody:
    """A body that is received whole before it is forwarded.

    :param ledger: the account that its bytes are held on.
    :param limit: the most that this body may have, in bytes.
    :param expected: what Content-Length said, in bytes; None if the length is not known before the end.
    """

    __slots__ = (
        "_done",
        "_expected",
        "_failure",
        "_leases",
        "_ledger",
        "_limit",
        "_reserved",
        "_size",
        "_storage",
        "arrived",
        "stage",
    )

    def __init__(self, ledger: BodyLedger, *, limit: int, expected: int | None) -> None:
        self._ledger = ledger
        self._limit = limit
        self._expected = expected
        self._storage: Storage | None = Storage()
        self._size = 0
        self._reserved = 0
        self._leases = 0
        self._failure: ProxyError | None = None
        self._done: trio.Event | None = None
        self.arrived = expected == 0
        """Whether the client has sent all of it, whatever became of it."""
        self.stage = _COMPLETE if expected == 0 else _RECEIVING

    def __len__(self) -> int:
        return self._size

    def __repr__(self) -> str:
        return f"<BufferedBody {self.stage.value} {self._size} bytes, {self._leases} leases>"

    @property
    def held(self) -> int:
        """Bytes of memory that this body has on the ledger."""
        return self._reserved

    # Receiving: the reader of the client's connection calls these, synchronously.

    def reserve(self) -> bool:
        """Make room for the next read, or say that the ledger has none."""
        if self.stage is not _RECEIVING or self._reserved > self._size:
            return True
        room = min(max(self._size, _WINDOW), _GROWTH_LIMIT)
        if self._expected is not None:
            room = min(room, self._expected - self._size)
        if not self._ledger.try_reserve(room):
            return False
        self._reserved += room
        return True

    def window(self) -> memoryview:
        """Room for the next bytes of a body whose length is known; :meth:`reserve` came before."""
        storage = self._storage
        if storage is None or self.stage is not _RECEIVING:  # while the reader waited: what still comes is dropped
            return memoryview(bytearray(_WINDOW))
        if len(storage) < self._reserved:
            storage.extend(bytes(self._reserved - len(storage)))
        return memoryview(storage)[self._size : min(self._size + _WINDOW, self._reserved)]

    def filled(self, count: int) -> None:
        """Take note of bytes received into the window."""
        if self.stage is _RECEIVING:
            self._size += count

    def last(self, count: int) -> memoryview:
        """The ``count`` bytes that came last; the caller releases the view before it awaits anything."""
        if self._storage is None or self.stage is not _RECEIVING:
            return memoryview(b"")
        return memoryview(self._storage)[self._size - count : self._size]

    def push(self, data: bytes) -> None:
        """Append bytes that were received elsewhere.

        :raises ProxyError: ``BODY_TOO_LARGE`` or ``OVERLOADED``.
        """
        if self._storage is None:
            return
        size = self._size + len(data)
        if size > self._limit:
            raise too_large(self._limit)
        if size > self._reserved:
            if not self._ledger.try_reserve(size - self._reserved):
                raise overloaded()
            self._reserved = size
        if len(self._storage) > self._size:  # room that a read in place did not fill
            del self._storage[self._size :]
        self._storage += data
        self._size = size

    def complete(self) -> None:
        """All of it is there."""
        self.arrived = True
        if self.stage is _RECEIVING:
            self.stage = _COMPLETE
            if self._storage is not None and len(self._storage) > self._size:
                del self._storage[self._size :]
            if self._done is not None:
                self._done.set()

    def fail(self, error: ProxyError) -> None:
        """The rest will not come: whoever waits for the body gets this error. What has come is let go of."""
        if self.stage is _RECEIVING:
            self.stage = _FAILED
            self._failure = error
            if self._leases == 0:  # now, so that its room is there for the next that waits
                self._drop()
            if self._done is not None:
                self._done.set()

    # Using: the exchange calls these.

    def replace(self, begin: int, end: int, text: bytes) -> bool:
        """Put other bytes in the place of some, in a body that is complete and that nobody reads; its other bytes are
        moved, not copied. False, and nothing is changed, if the ledger has no room."""
        storage, growth = self._storage, len(text) - (end - begin)
        if storage is None or self.stage is not _COMPLETE or self._leases:
            return False
        if growth > 0 and not self._ledger.try_reserve(growth):
            return False
        if growth < 0:
            self._ledger.free(-growth)
        storage[begin:end] = text
        self._size += growth
        self._reserved += growth
        return True

    async def wait_complete(self) -> None:
        """Wait until all of it is there.

        :raises ProxyError: it failed to come, with the reason.
        """
        if self.stage is _RECEIVING:
            self._done = trio.Event()
            await self._done.wait()
        if self._failure is not None:
            raise self._failure

    def lease(self, holder: str) -> BodyLease:
        """The right to read it for the length of a ``with`` block.

        :param holder: who reads, for messages.
        """
        return BodyLease(self, holder)

    def begin_lease(self) -> memoryview:
        """For :class:`BodyLease`: a read-only view, counted."""
        if self._storage is None or self.stage is _RELEASED:
            raise LeaseExpired("the body of this request has been released")
        self._leases += 1
        return memoryview(self._storage).toreadonly()

    def end_lease(self) -> None:
        """For :class:`BodyLease`: the view has been released."""
        self._leases -= 1
        if self._leases == 0 and self.stage is _RELEASED:
            self._drop()

    def release(self) -> None:
        """Let go of the bytes: now, or when the last lease ends. Idempotent."""
        if self.stage is not _RELEASED:
            self.stage = _RELEASED
            if self._done is not None:
                self._done.set()
            if self._leases == 0:
                self._drop()

    def _drop(self) -> None:
        storage, self._storage = self._storage, None
        if storage is None:
            return
        try:
            storage.clear()
        except BufferError:
            self._ledger.violations += 1
        self._ledger.free(self._reserved)
        self._reserved = 0


@final
class StreamedBody:
    """A body that is passed on while it comes in: a bounded pipe from the client's reader to the sender.

    :param ledger: the account that its bytes are held on.
    :param limit: the most that this body may have, in bytes.
    :param expected: what Content-Length said, in bytes, or None.
    :param resume: called when a full pipe has room again.
    """

    __slots__ = (
        "_failure",
        "_ledger",
        "_limit",
        "_pieces",
        "_resume",
        "_size",
        "_wake",
        "arrived",
        "expected",
        "held",
        "stage",
    )

    def __init__(self, ledger: BodyLedger, *, limit: int, expected: int | None, resume: Callable[[], None]) -> None:
        self._ledger = ledger
        self.expected = expected
        self.arrived = False
        self.stage = _RECEIVING
        self.held = 0
        self._limit = limit
        self._pieces: deque[bytes] = deque()
        self._resume = resume
        self._size = 0
        self._failure: ProxyError | None = None
        self._wake = trio.Event()

    def __len__(self) -> int:
        return self._size

    @property
    def full(self) -> bool:
        """Whether the reader must wait: many small pieces take more memory than their bytes."""
        return self.held + _PIECE_OVERHEAD * len(self._pieces) >= READ_AHEAD

    def push(self, data: bytes) -> None:
        """Append bytes that were received.

        :raises ProxyError: ``BODY_TOO_LARGE``.
        """
        if self.stage is not _RECEIVING:
            return
        self._size += len(data)
        if self._size > self._limit:
            raise too_large(self._limit)
        self.held += len(data)
        self._ledger.passing(len(data))
        self._pieces.append(data)
        self._wake.set()

    def complete(self) -> None:
        """All of it has come in."""
        self.arrived = True
        if self.stage is _RECEIVING:
            self.stage = _COMPLETE
            self._wake.set()

    def fail(self, error: ProxyError) -> None:
        """The rest will not come: the sender gets this error."""
        if self.stage is _RECEIVING:
            self.stage = _FAILED
            self._failure = error
            self._wake.set()

    async def next_pieces(self) -> list[bytes]:
        """What is there to send, in order; empty when all of it has been sent.

        :raises ProxyError: the rest failed to come, with the reason.
        """
        while not self._pieces and self.stage is _RECEIVING:
            self._wake = trio.Event()
            await self._wake.wait()
        if self._failure is not None:
            raise self._failure
        pieces = list(self._pieces) if len(self._pieces) <= _FEW else [b"".join(self._pieces)]
        self._empty()
        return pieces

    def release(self) -> None:
        """Let go of the bytes; what still comes is dropped. Idempotent."""
        if self.stage is not _RELEASED:
            self.stage = _RELEASED
            self._empty()
            self._wake.set()

    def _empty(self) -> None:
        was_full = self.full
        self._pieces.clear()
        self._ledger.passed(self.held)
        self.held = 0
        if was_full:
            self._resume()


def too_large(limit: int) -> ProxyError:
    """The refusal of a body over the limit for one."""
    return ProxyError(Code.BODY_TOO_LARGE, f"the request body is larger than this proxy's limit of {limit} bytes")


def overloaded() -> ProxyError:
    """The refusal of a body for which all bodies together leave no room."""
    return ProxyError(
        Code.OVERLOADED,
        "the proxy holds as many bytes of request bodies as it may; try again in a moment",
        retry_after=1,
    )
