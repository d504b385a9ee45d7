"""What a request looks like on an upstream's connection.

Lives here: which fields are forwarded, dropped, and set by the proxy. Does not live here: sending it.
"""

from __future__ import annotations

from typing import Final, NamedTuple, final

from ..errors import Code, ProxyError
from ..http1 import FieldFilter, RequestHead, request_head_of

_FORWARDED: Final = FieldFilter(
    dropped=frozenset(
        {
            # The framing is ours, a 100 has been decided here already, and what a client claims about the way that its
            # request took is not to be believed (RFC 7239 8.1).
            b"content-length",
            b"expect",
            b"forwarded",
            b"x-forwarded-for",
            b"x-forwarded-proto",
            b"x-forwarded-host",
        }
    ),
    noted=frozenset({b"x-request-id"}),
)
_HAVE_BODIES: Final = frozenset({b"POST", b"PUT", b"PATCH"})
"""Methods whose requests say a length even if it is 0 (RFC 9110 8.6)."""


class Client(NamedTuple):
    """Where a request came from, for the fields that tell an upstream of it."""

    address: bytes = b""
    """Empty if it has none."""
    scheme: bytes = b"http"


@final
class Forwarder:
    """Writes the heads of requests for upstreams.

    :param pseudonym: this proxy's name in ``Via``; of its own, so that two proxies in a row are no loop.
    """

    __slots__ = ("_pseudonym", "_via")

    def __init__(self, pseudonym: bytes) -> None:
        self._pseudonym = pseudonym
        self._via = {True: b"via: 1.1 " + pseudonym, False: b"via: 1.0 " + pseudonym}

    def check_loop(self, head: RequestHead) -> None:
        """Refuse a request that has been here before.

        :raises ProxyError: ``LOOP_DETECTED``.
        """
        for lower, _, value in head.fields:
            if lower == b"via" and self._pseudonym in value:
                raise ProxyError(
                    Code.LOOP_DETECTED,
                    "this request has come through this proxy before: its upstream points back at the proxy",
                )

    def head(self, head: RequestHead, *, length: int | None, client: Client, request_id: bytes) -> bytes:
        """The request's head for the upstream.

        :param length: of the body in bytes; None sends it in chunks.
        :param request_id: goes along if the client sent none.
        """
        lines, names, seen = _FORWARDED.lines(head.fields)
        if not head.host:  # HTTP/1.0 may lack it, HTTP/1.1 may not (RFC 9112 3.2)
            lines.insert(0, b"host: ")
        if not seen:
            lines.append(b"x-request-id: " + request_id)
        lines.append(self._via[head.http_11])
        if client.address:
            lines.append(b"x-forwarded-for: " + client.address)
        lines.append(b"x-forwarded-proto: " + client.scheme)
        if head.host:
            lines.append(b"x-forwarded-host: " + head.host)
        if length is None:
            lines.append(b"transfer-encoding: chunked")
        elif length or head.method in _HAVE_BODIES:
            lines.append(b"content-length: %d" % length)
        return request_head_of(head.method, head.target, lines, names)
