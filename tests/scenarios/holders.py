"""Planted mistakes: something keeps a body beyond its forwarding. Measurements must find each of them.

Run as a program, ``python holders.py NAME serve …`` is ``trioproxy serve …`` with the mistake NAME in it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final

from trioproxy.body import BufferedBody, StreamedBody
from trioproxy.phases import ForwardingPhase, ResponseView
from trioproxy.relay import Relay
from trioproxy.transport import Buffer

kept: Final[list[object]] = []
"""What the planted mistakes keep; whoever plants one clears it afterwards."""

_responded: Final = ForwardingPhase.responded
_push: Final = StreamedBody.push
_feed: Final = Relay.feed


def keep_slice(self: ForwardingPhase, token_count: int | None = None) -> ResponseView:
    """The response's view keeps a slice of the body, 16 bytes of it: that pins all of the body."""
    assert isinstance(self.body, BufferedBody)
    view = self.body.begin_lease()
    kept.append(view[:16])
    view.release()
    self.body.end_lease()
    return _responded(self, token_count)


def keep_copy(self: ForwardingPhase, token_count: int | None = None) -> ResponseView:
    """A second holder has copied the body while that was allowed, and the copy lives on."""
    assert isinstance(self.body, BufferedBody)
    with self.body.lease("a second holder") as lease:
        kept.append(bytes(lease.view))
    return _responded(self, token_count)


def keep_parts(self: ForwardingPhase, token_count: int | None = None) -> ResponseView:
    """Something has parsed the body into many small objects, and keeps those."""
    assert isinstance(self.body, BufferedBody)
    with self.body.lease("a parser") as lease:
        kept.append(bytes(lease.view).split(b". "))
    return _responded(self, token_count)


def keep_pieces(self: StreamedBody, data: bytes) -> None:
    """Something keeps the pieces of a body that is streamed through."""
    kept.append(data)
    _push(self, data)


def keep_response(self: Relay, data: bytes) -> list[Buffer]:
    """Something accumulates a response that is only relayed."""
    kept.append(data)
    return _feed(self, data)


HOLDERS: Final[dict[str, tuple[type, str, Callable[..., object]]]] = {
    "slice": (ForwardingPhase, "responded", keep_slice),
    "copy": (ForwardingPhase, "responded", keep_copy),
    "parts": (ForwardingPhase, "responded", keep_parts),
    "pieces": (StreamedBody, "push", keep_pieces),
    "response": (Relay, "feed", keep_response),
}
"""By name: the class, its method, and the method with the mistake in it."""

if __name__ == "__main__":
    from trioproxy.cli import main

    owner, attribute, planted = HOLDERS[sys.argv.pop(1)]
    setattr(owner, attribute, planted)
    main()
