"""What a request looks like on an upstream's connection.

Lives here: which fields are forwarded, dropped, and set by the proxy. Does not live here: sending it.
"""

from __future__ import annotations

from typing import Final, final

from ..errors import Code, ProxyError
from ..http1 import Field, RequestHead, end_to_end, request_head

_SET_BY_US: Final = frozenset(
    {
        # The framing is ours, a 100 has been decided here already, and what a client claims about the way that its
        # request took is not to be believed (RFC 7239 8.1).
        b"content-length",
        b"transfer-encoding",
        b"expect",
        b"forwarded",
        b"x-forwarded-for",
        b"x-forwarded-proto",
        b"x-forwarded-host",
    }
)


@final
class Forwarder:
    """Writes the heads of requests for upstreams.

    :param pseudonym: this proxy's name in ``Via``; of its own, so that two proxies in a row are no loop.
    """

    __slots__ = ("_pseudonym", "_via")

    def __init__(self, pseudonym: bytes) -> None:
        self._pseudonym = pseudonym
        self._via = {True: b"1.1 " + pseudonym, False: b"1.0 " + pseudonym}

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

    def head(self, head: RequestHead, *, length: int | None, peer: bytes, request_id: bytes) -> bytes:
        """The request's head for the upstream.

        :param length: of the body in bytes; None sends it in chunks.
        :param peer: the client's address.
        :param request_id: goes along if the client sent none.
        """
        fields = self._fields(end_to_end(head.fields), request_id)
        fields.append((b"via", self._via[head.http_11]))
        if peer:
            fields.append((b"x-forwarded-for", peer))
        fields.append((b"x-forwarded-proto", b"http"))
        if head.host:
            fields.append((b"x-forwarded-host", head.host))
        if length is None:
            fields.append((b"transfer-encoding", b"chunked"))
        elif length or head.method in (b"POST", b"PUT", b"PATCH"):
            fields.append((b"content-length", b"%d" % length))
        return request_head(head.method, head.target, fields)

    def _fields(self, incoming: list[Field], request_id: bytes) -> list[tuple[bytes, bytes]]:
        fields: list[tuple[bytes, bytes]] = []
        has_id = has_host = False
        for lower, name, value in incoming:
            if lower in _SET_BY_US:
                continue
            if lower == b"x-request-id":
                has_id = True
            elif lower == b"host":
                has_host = True
            fields.append((name, value))
        if not has_host:  # HTTP/1.0 may lack it, HTTP/1.1 may not (RFC 9112 3.2)
            fields.insert(0, (b"host", b""))
        if not has_id:
            fields.append((b"x-request-id", request_id))
        return fields
