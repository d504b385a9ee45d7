"""Requests to a real engine: several at once brought to a stage, and left.

Lives here: a request that asks nothing of the mock, how it comes to its stage, and how long it stays there. Does not
live here: watching the engine (engine.py), or what became of a request (engine_judge.py).

Whether a real engine is in prefill cannot be seen from outside: its gauges are brought up to date after a step, and
prefill may be one. So the stages before the first token are places in time, in parts of the time to the first token
that clients who stayed have had.
"""

from __future__ import annotations

import hashlib
import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

import msgspec
import trio

from .cases import MID_STREAM_TOKENS, Case, Stage, Way
from .client import Address, Client
from .payloads import Payload
from .records import RECEIVED_KEPT
from .responses import Response

ENGINE_STAGES: Final = (Stage.UPLOADING, Stage.BEFORE_HEAD, Stage.EARLY_HEAD, Stage.MID_STREAM, Stage.WHOLE)
"""Those that an engine can be brought to: it neither stalls nor waits after its last token when told to."""
_UPLOAD_DWELL: Final = 0.1
"""Seconds in which a part of a body comes to where it is held."""
_LASTING: Final = 3
"""Times what is watched: an answer's length. The pace at which clients that stayed got theirs may have been slow."""
_LINE: Final = "All work and no play makes a prompt. "


@final
@dataclass(slots=True, kw_only=True)
class EnginePace:
    """How fast the engine is, as clients that stayed have seen it, and how long things are watched. Seconds."""

    ttft: float = 0.1
    gap: float = 0.02
    """From one token to the next."""
    watch: float = 2.0
    """After leaving; what has not ended by then has been missed."""
    patience: float = 60.0
    """For a request to come to its stage, and for the engine to come to rest."""


class Asking(msgspec.Struct, kw_only=True, frozen=True):
    """What all requests of a run ask for.

    :param model: its name.
    :param ignore_eos: whether to ask that the end-of-text token does not end an answer. Not in OpenAI's API, but vLLM,
        SGLang and llama.cpp have it.
    :param keep: whether payloads keep their bytes.
    """

    model: str
    ignore_eos: bool = True
    keep: bool = False

    def payload(self, id_: str, size: int, *, tokens: int, stream: bool) -> Payload:
        """A chat completion of about ``size`` bytes. The id stands first, so that no prefix is found in a cache."""
        fields: dict[str, object] = {"model": self.model, "stream": stream, "max_tokens": tokens}
        if self.ignore_eos:
            fields["ignore_eos"] = True
        text = f"{id_} {_LINE * (size // len(_LINE) + 1)}"
        bare = len(msgspec.json.encode({**fields, "messages": [{"role": "user", "content": ""}]}))
        text = text[: max(len(id_) + 1, size - bare)]
        body = msgspec.json.encode({**fields, "messages": [{"role": "user", "content": text}]})
        return Payload((body,), id=id_, sha256=hashlib.sha256(body).hexdigest(), parent_id=None, keep=self.keep)


@final
class EngineRequest:
    """One request, in steps: ``reach``, ``leave``, ``close``; or ``finish`` for one that stays."""

    __slots__ = ("address", "case", "client", "failed", "id", "kept", "passed", "payload", "response")

    def __init__(self, case: Case, address: Address, payload: Payload) -> None:
        self.case = case
        self.address = address
        self.payload = payload
        self.id = payload.id
        self.kept = b"".join(payload.parts).decode() if payload.keep else None
        self.response = Response(None, keep=RECEIVED_KEPT)
        self.client: Client | None = None
        self.failed: str | None = None
        """Why it did not come to its stage."""
        self.passed: str | None = None
        """What it had got already that it should not have at its stage."""

    async def reach(self, pace: EnginePace) -> None:
        """Connect, send and wait for the stage; then go on reading until cancelled, as a client that waits does."""
        await self._begin(pace)
        client = self.client
        if client is None:
            return
        with trio.move_on_after(pace.patience):
            match self.case.stage:
                case Stage.UPLOADING:
                    await self._read_for(_UPLOAD_DWELL)
                case Stage.BEFORE_HEAD:
                    await self._read_for(pace.ttft / 2)
                case Stage.WHOLE:
                    await self._read_for(1.5 * pace.ttft + MID_STREAM_TOKENS * pace.gap)
                case Stage.EARLY_HEAD:
                    await client.read_until(lambda response: response.status is not None)
                    await self._read_for(pace.ttft / 4)
                case _:
                    await client.read_until(lambda response: response.tokens >= MID_STREAM_TOKENS)
        self._check()

    async def _begin(self, pace: EnginePace) -> None:
        try:
            client = self.client = await Client.connect(self.address, self.response)
        except OSError as error:
            self.failed = f"cannot connect to {self.address.authority}: {error.strerror or error}"
            return
        length = int(self.payload.length * self.case.fraction)
        with trio.move_on_after(pace.patience):
            await client.send([self.address.head(self.payload), *self.payload.upto(length)])
        self.payload.sent()

    async def _read_for(self, seconds: float) -> None:
        assert self.client is not None
        with trio.move_on_after(seconds):
            await self.client.read_until(lambda _: False)

    def _check(self) -> None:
        client, response, stage = self.client, self.response, self.case.stage
        assert client is not None
        self.failed = refusal(response)
        if self.failed is not None:
            return
        if client.over:
            self.failed = client.broken or "the answer was over before the stage was reached"
        elif stage is Stage.MID_STREAM and not response.tokens:
            self.failed = "no token came"
        elif stage is Stage.EARLY_HEAD and response.status is None:
            self.failed = "no head came"
        if stage in (Stage.BEFORE_HEAD, Stage.EARLY_HEAD) and response.tokens:
            self.passed = "the answer had begun"
        elif stage is Stage.BEFORE_HEAD and response.status is not None:
            self.passed = "the head had come"

    async def read_on(self) -> None:
        """Read until there is nothing more."""
        if self.client is not None and self.failed is None:
            await self.client.read_until(lambda _: False)

    def leave(self) -> None:
        """Leave now, unless it has failed."""
        if self.client is None or self.failed is not None:
            return
        if self.client.over and self.case.stage is not Stage.UPLOADING:
            self.failed = self.client.broken or "the answer was over before the client left"
            return
        self.client.leave(self.case.way)

    async def finish(self, pace: EnginePace) -> str | None:
        """Stay to the end; returns why there is no whole answer, None if there is."""
        await self._begin(pace)
        client, response = self.client, self.response
        if client is None:
            return self.failed
        with trio.move_on_after(pace.patience):
            await client.read_until(lambda response: response.complete)
        if (refused := refusal(response)) is not None:
            return refused
        if not response.complete:
            return client.broken or f"no whole answer in {pace.patience:g} s"
        if self.case.stage is not Stage.WHOLE and not response.done:
            return "the stream is over without its end mark"
        return None

    @property
    def left(self) -> float | None:
        """When it left."""
        return None if self.client is None else self.client.times.left

    @property
    def over(self) -> bool:
        """Whether its answer, or its connection, has ended."""
        return self.client is None or self.client.over

    def close(self) -> None:
        """Close the connection, if it is open."""
        if self.client is not None:
            self.client.close()


def refusal(response: Response) -> str | None:
    """What a response says that is not an answer."""
    if response.status is None or response.status == 200:
        return None
    said = bytes(response.kept[:200]).decode(errors="replace").strip()
    return f"answered with status {response.status}{': ' + said if said else ''}"


async def gather(requests: Sequence[EngineRequest], pace: EnginePace) -> None:
    """Bring all to their stage; those that are there first go on reading, so that the gateway does not stall."""
    async with trio.open_nursery() as nursery:
        waiting = len(requests)

        async def one(request: EngineRequest) -> None:
            nonlocal waiting
            await request.reach(pace)
            waiting -= 1
            if not waiting:
                nursery.cancel_scope.cancel()
            await request.read_on()

        for request in requests:
            nursery.start_soon(one, request)


async def leave_all(requests: Sequence[EngineRequest], pace: EnginePace) -> float:
    """Leave with all of them, at once but for clients whose own deadline fires; returns when the last one did."""
    if requests and requests[0].case.way is Way.DEADLINE:
        for request in requests:
            await trio.sleep(random.random() * pace.gap / len(requests))
            request.leave()
    else:
        await trio.lowlevel.checkpoint()
        for request in requests:
            request.leave()
    return max((request.left for request in requests if request.left is not None), default=time.monotonic())


def lasting(pace: EnginePace, most: int | None) -> int:
    """How many tokens last longer than is watched; ``most`` if it is given."""
    return most or min(8192, 2 * MID_STREAM_TOKENS + math.ceil(_LASTING * pace.watch / max(pace.gap, 0.001)))
