"""The three phases of a request, as types that hand over what they own.

Lives here: who owns the head and the body when, and what survives. Does not live here: I/O of any kind.

A phase that has moved is empty. Touching it raises :class:`UseAfterMove`, which names the phase, the attribute and
where it went; the type checkers know of each phase only what it has, so that reading a body in the response phase
is refused before the program runs. The response phase is built from a keep-list: a field that is added to a
request later is dropped after forwarding unless somebody decides to keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn, final

from .apis.fields import RequestFields
from .body import BodyLease, BufferedBody, StreamedBody
from .http1 import RequestHead
from .upstream.endpoint import Endpoint


class UseAfterMove(RuntimeError):  # noqa: N818 - the name of what happened, as in trio.Cancelled
    """A phase was used after it had handed over what it owned."""


def _moved(phase: RequestPhase | ForwardingPhase, attribute: str) -> NoReturn:
    kind = type(phase)
    if attribute == "moved_to" or attribute not in kind.__slots__:  # debuggers and copiers ask for much
        raise AttributeError(f"{kind.__name__!r} object has no attribute {attribute!r}")
    raise UseAfterMove(f"{kind.__name__}.{attribute} was used after the request had moved to {phase.moved_to}")


@final
class RequestPhase:
    """A request that nobody has seen but the proxy: head and body can be read.

    :param request_id: the proxy's own id of the request, unique within the process.
    """

    __slots__ = ("body", "fields", "head", "moved_to", "request_id")

    def __init__(
        self, request_id: str, head: RequestHead, body: BufferedBody | StreamedBody, fields: RequestFields
    ) -> None:
        self.request_id = request_id
        self.head = head
        self.body = body
        self.fields = fields

    def lend_body(self, holder: str) -> BodyLease:
        """A lease on the body, for the length of a ``with`` block.

        :param holder: who reads, for messages.
        :raises TypeError: the body is streamed through and is never held whole.
        """
        if isinstance(self.body, StreamedBody):
            raise TypeError("a streamed body cannot be lent: it is never held whole")
        return self.body.lease(holder)

    def forward_to(self, endpoint: Endpoint) -> ForwardingPhase:
        """Hand everything over to the forwarding phase; this one is empty afterwards."""
        phase = ForwardingPhase(self.request_id, self.head, self.body, self.fields, endpoint)
        del self.request_id, self.head, self.body, self.fields
        self.moved_to = "ForwardingPhase"
        return phase

    if not TYPE_CHECKING:  # a checker that saw this would take any attribute for an existing one

        def __getattr__(self, name: str) -> NoReturn:
            _moved(self, name)


@final
class ForwardingPhase:
    """A request on its way to an endpoint: the body is sent once, then it is gone."""

    __slots__ = ("body", "endpoint", "fields", "head", "moved_to", "request_id")

    def __init__(
        self,
        request_id: str,
        head: RequestHead,
        body: BufferedBody | StreamedBody,
        fields: RequestFields,
        endpoint: Endpoint,
    ) -> None:
        self.request_id = request_id
        self.head = head
        self.body = body
        self.fields = fields
        self.endpoint = endpoint

    def reassign(self, endpoint: Endpoint) -> None:
        """Choose another endpoint; only while nothing of the body has been sent."""
        _ = self.endpoint  # raises UseAfterMove where setting would not
        self.endpoint = endpoint

    def responded(self, token_count: int | None = None) -> ResponseView:
        """Let go of head and body and keep what the response phase may see; this phase is empty afterwards.

        :param token_count: how many tokens the prompt has, if something counted them.
        """
        fields = self.fields
        view = ResponseView(
            self.request_id, fields.model, fields.stream, fields.max_output_tokens, token_count, self.endpoint
        )
        self.body.release()
        del self.request_id, self.head, self.body, self.fields, self.endpoint
        self.moved_to = "ResponseView"
        return view

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            _moved(self, name)


@final
class ResponseView:
    """What is left of a request while its response comes: a few small values and no body."""

    __slots__ = ("_endpoint", "_max_output_tokens", "_model", "_request_id", "_stream", "_token_count")

    def __init__(
        self,
        request_id: str,
        model: str | None,
        stream: bool,
        max_output_tokens: int | None,
        token_count: int | None,
        endpoint: Endpoint,
    ) -> None:
        self._request_id = request_id
        self._model = model
        self._stream = stream
        self._max_output_tokens = max_output_tokens
        self._token_count = token_count
        self._endpoint = endpoint

    @property
    def request_id(self) -> str:
        """The proxy's own id of the request."""
        return self._request_id

    @property
    def model(self) -> str | None:
        """The model asked for, if the body said one."""
        return self._model

    @property
    def stream(self) -> bool:
        """Whether a stream was asked for."""
        return self._stream

    @property
    def max_output_tokens(self) -> int | None:
        """The limit of output tokens, if the body said one."""
        return self._max_output_tokens

    @property
    def token_count(self) -> int | None:
        """How many tokens the prompt has, if something counted them."""
        return self._token_count

    @property
    def endpoint(self) -> Endpoint:
        """Where the request was forwarded to."""
        return self._endpoint

    def __repr__(self) -> str:
        return f"<ResponseView {self._request_id} model={self._model!r} stream={self._stream} {self._endpoint!r}>"
