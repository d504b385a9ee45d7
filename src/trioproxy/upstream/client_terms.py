"""What httpx says beside HTTP: how long a request may wait, who is told of its steps, how it fails.

Lives here: the ``timeout`` and ``trace`` extensions, and httpx's errors for what connections raise. Does not live here:
HTTP, and connections.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias, TypeVar, cast, final

import httpx
import trio

from ..errors import ProxyError

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

_T = TypeVar("_T")
_Callback: TypeAlias = Callable[[str, dict[str, object]], Awaitable[object]]


def extension(request: httpx.Request, name: str) -> object:
    """What a request says beside HTTP, if it does."""
    extensions = cast("Mapping[str, object]", request.extensions)  # pyright: ignore[reportUnknownMemberType] - a dict
    return extensions.get(name)


@final
class Timeouts:
    """How long a request may wait for what, in seconds, from its ``timeout`` extension."""

    __slots__ = ("connect", "pool", "read", "write")

    def __init__(self, request: httpx.Request) -> None:
        given = cast("Mapping[str, float | None]", extension(request, "timeout") or {})
        self.connect = seconds(given.get("connect"))
        self.read = seconds(given.get("read"))
        self.write = seconds(given.get("write"))
        self.pool = seconds(given.get("pool"))


def seconds(value: float | None) -> float:
    """A timeout of httpx's, where None is for ever."""
    return math.inf if value is None else value


async def within(limit: float, error: type[httpx.TimeoutException], what: Callable[[], Awaitable[_T]]) -> _T:
    """Await it; raises the error if it takes longer than so many seconds. What has come in time is never lost."""
    with trio.move_on_after(limit):
        return await what()
    raise error(f"it took longer than {limit:g} s")


@contextmanager
def as_errors(broken: type[httpx.NetworkError]) -> Generator[None]:
    """Raise what a connection raises as an error of httpx's.

    :param broken: for a connection that broke, or was closed here.
    """
    try:
        yield
    except trio.BrokenResourceError as error:
        raise broken(str(error) or "the connection broke") from error
    except trio.ClosedResourceError as error:
        raise broken(str(error) or "the connection was closed here") from error
    except ProxyError as error:
        raise httpx.RemoteProtocolError(error.message) from error


@final
class Trace:
    """Tells the request's ``trace`` extension what happens, in httpcore's words."""

    __slots__ = ("_callback", "_request")

    def __init__(self, request: httpx.Request) -> None:
        self._callback = cast("_Callback | None", extension(request, "trace"))
        self._request = request

    @property
    def wanted(self) -> bool:
        """Whether anybody listens."""
        return self._callback is not None

    async def of(
        self,
        name: str,
        what: Callable[[], Awaitable[_T]],
        told: Callable[[_T], object] = lambda result: None,
        info: dict[str, object] | None = None,
    ) -> _T:
        """Await something, and tell of its begin and of its end. Cancelled, nothing is told of the end.

        :param told: what to tell of its result.
        :param info: what to tell at its begin, if not the request.
        """
        if self._callback is None:
            return await what()
        await self.started(name, info)
        try:
            result = await what()
        except Exception as error:
            await self.failed(name, error)  # noqa: ASYNC120 - a cancel may replace it
            raise
        await self.complete(name, told(result))
        return result

    async def started(self, name: str, info: dict[str, object] | None = None) -> None:
        """Tell that something begins."""
        await self._tell(f"{name}.started", {"request": self._request} if info is None else info)

    async def complete(self, name: str, result: object = None) -> None:
        """Tell that it has ended well."""
        await self._tell(f"{name}.complete", {"return_value": result})

    async def failed(self, name: str, error: Exception) -> None:
        """Tell that it has not."""
        await self._tell(f"{name}.failed", {"exception": error})

    async def closed(self) -> None:
        """Tell that the connection is no longer the request's."""
        await self.started("http11.response_closed", {})
        await self.complete("http11.response_closed")

    async def _tell(self, event: str, info: dict[str, object]) -> None:
        if self._callback is not None:
            await self._callback(event, info)
