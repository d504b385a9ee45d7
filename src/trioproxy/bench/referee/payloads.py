"""Request bodies: encoded once, mapped into memory once, and let go of when they have been sent.

Lives here: prompts of any size. All prompts of a run share one text in a temporary file that is mapped into memory, so
that a thousand requests of 1 MiB, follow-ups and children among them, cost one MiB. What makes a request's body its
own (its id, what it asks of the mock) stands at the end of its prompt. Does not live here: heads, sockets.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import tempfile
from collections.abc import Mapping
from types import TracebackType
from typing import Final, Protocol, final

import msgspec

from ..mock_request import mark

_LINE: Final = b"All work and no play makes a prompt. "
_END: Final = b'"}]}'


class Hash(Protocol):
    """What is used of ``hashlib``, which has no public name for it."""

    def copy(self) -> Hash: ...

    def update(self, data: bytes | memoryview, /) -> None: ...

    def hexdigest(self) -> str: ...


@final
class Payload:
    """One request's body, until it has been sent.

    :param parent_id: the request that this one follows up or was spawned by, whose bytes it shares.
    """

    __slots__ = ("_parts", "id", "keep", "length", "parent_id", "sha256")

    def __init__(
        self, parts: tuple[bytes | memoryview, ...], *, id: str, sha256: str, parent_id: str | None, keep: bool
    ) -> None:
        self._parts = parts
        self.id = id
        self.sha256 = sha256
        self.parent_id = parent_id
        self.keep = keep
        """Whether the bytes stay after they were sent."""
        self.length = sum(map(len, parts))

    @property
    def parts(self) -> tuple[bytes | memoryview, ...]:
        """The bytes in pieces; none once they were dropped."""
        return self._parts

    def upto(self, length: int) -> list[bytes | memoryview]:
        """The first ``length`` bytes, in pieces, without a copy."""
        pieces: list[bytes | memoryview] = []
        for part in self._parts:
            if length <= 0:
                break
            pieces.append(part if len(part) <= length else memoryview(part)[:length])
            length -= len(part)
        return pieces

    def sent(self) -> None:
        """It has been sent: the bytes go, unless they are to be kept."""
        if not self.keep:
            self._parts = ()


@final
class Payloads:
    """Makes payloads; a context manager that unmaps the shared text at its end.

    :param largest: bytes of the largest body that will be asked for.
    :param model: the model's name in every request.
    :param keep: whether payloads keep their bytes after they were sent.
    """

    __slots__ = ("_file", "_hashes", "_keep", "_map", "_model", "_view")

    def __init__(self, largest: int, *, model: str = "mock-model", keep: bool = False) -> None:
        self._keep = keep
        self._model = model
        self._hashes: dict[tuple[bytes, int], Hash] = {}
        self._file = tempfile.TemporaryFile(prefix="trioproxy-bench-")  # noqa: SIM115 - closed by __exit__
        repeated = _LINE * (65536 // len(_LINE))
        for _ in range(largest // len(repeated) + 1):
            self._file.write(repeated)
        self._file.flush()
        self._map = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        self._view = memoryview(self._map)

    def __enter__(self) -> Payloads:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._view.release()
        # Payloads that were kept, or not sent, may still refer to it: then it goes with the last of them.
        with contextlib.suppress(BufferError):
            self._map.close()
        self._file.close()

    def payload(
        self,
        id: str,
        size: int,
        *,
        knobs: Mapping[str, object] | None,
        stream: bool = True,
        max_tokens: int | None = None,
        parent_id: str | None = None,
    ) -> Payload:
        """A chat completion of exactly ``size`` bytes, or the least that it needs.

        :param knobs: for the mock model server; None asks nothing of it.
        :param max_tokens: for a real engine.
        """
        fields: dict[str, object] = {"model": self._model, "stream": stream}
        if max_tokens is not None:
            fields["max_tokens"] = max_tokens
        start = msgspec.json.encode(fields).removesuffix(b"}") + b',"messages":[{"role":"user","content":"'
        marked = b"" if knobs is None else mark({"id": id, "tag": id, **knobs})
        end = b"%b %b%b" % (id.encode(), marked, _END)
        filler = max(0, size - len(start) - len(end))
        hashed = self._hash(start, filler).copy()
        hashed.update(end)
        text = self._view[:filler]
        return Payload((start, text, end), id=id, sha256=hashed.hexdigest(), parent_id=parent_id, keep=self._keep)

    def _hash(self, start: bytes, filler: int) -> Hash:
        known = self._hashes.get((start, filler))
        if known is None:
            known = self._hashes[start, filler] = hashlib.sha256(start)
            with self._view[:filler] as text:
                known.update(text)
        return known
