"""What a request asks for, told by its method and path: which operation of which API.

Lives here: the table of operations, and what follows from each. Does not live here: what the bodies say.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final, final


@final
class Api(enum.Enum):
    """Whose conventions a client goes by, errors above all."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"


@final
@dataclass(frozen=True, slots=True)
class Operation:
    """One thing that clients ask for."""

    name: str
    """For logs and metrics, such as ``openai.chat``."""
    api: Api = Api.OPENAI
    reads: bool = False
    """Whether the proxy reads the fields of the body."""


OTHER: Final = Operation("other")
"""Whatever nobody knows."""

_OPERATIONS: Final = {
    (b"POST", b"/v1/chat/completions"): Operation("openai.chat", reads=True),
    (b"POST", b"/v1/completions"): Operation("openai.completions", reads=True),
    (b"POST", b"/v1/embeddings"): Operation("openai.embeddings", reads=True),
    (b"POST", b"/v1/responses"): Operation("openai.responses", reads=True),
}


def operation_of(method: bytes, path: bytes) -> Operation:
    """The operation that a request asks for.

    :param path: decoded, without the query string (:func:`trioproxy.http1.route_of`).
    """
    return _OPERATIONS.get((method, path), OTHER)
