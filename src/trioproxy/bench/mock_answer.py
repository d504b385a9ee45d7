"""The bytes of the mock model server's answers, in the forms of OpenAI's API.

Lives here: JSON objects, SSE events, and their chunk frames, encoded once per request so that a token costs one
``join``. Does not live here: heads (h11 writes them), I/O, clocks.
"""

from __future__ import annotations

import time
from typing import Final, final

import msgspec

from trioproxy.bench.mock_request import Plan, Refusal

DONE: Final = b"data: [DONE]\n\n"

_MARK: Final = "@token@"
_MARK_BYTES: Final = _MARK.encode()


def token_text(index: int, size: int, tag: bytes = b"") -> bytes:
    """The text of a token: its number, so that a lost or reordered event shows, filled up to ``size`` bytes.

    The number is shortened to its last digits where it does not fit, eight of them at most. With a tag, that comes
    first, and the text is longer than ``size`` if need be.
    """
    if tag:
        return (b"%b#%08d" % (tag, index % 10**8)).ljust(size - 1, b".") + b" "
    width = min(max(size - 1, 1), 8)
    return (b"%0*d" % (width, index % 10**width)).ljust(size - 1, b".").ljust(size)


def error_body(refusal: Refusal) -> bytes:
    """An error in OpenAI's form."""
    kind = "invalid_request_error" if refusal.status < 500 else "server_error"
    error = {"message": refusal.message, "type": kind, "param": refusal.param, "code": refusal.code}
    return msgspec.json.encode({"error": error})


def models_body(model: str) -> bytes:
    """The answer of ``/v1/models``."""
    entry = {"id": model, "object": "model", "created": int(time.time()), "owned_by": "trioproxy"}
    return msgspec.json.encode({"object": "list", "data": [entry]})


@final
class Answer:
    """One completion, whole or streamed.

    :param plan: what was asked for.
    :param number: makes the completion's id unique.
    :param chat: chat completions, else text completions.
    """

    __slots__ = ("_chat", "_common", "_kind", "_plan")

    def __init__(self, plan: Plan, number: str, *, chat: bool) -> None:
        self._plan = plan
        self._chat = chat
        self._kind = "chat.completion" if chat else "text_completion"
        prefix = "chatcmpl" if chat else "cmpl"
        self._common = {"id": f"{prefix}-mock-{number}", "created": int(time.time()), "model": plan.model}

    def whole(self) -> bytes:
        """The JSON object of a completion that is not streamed."""
        plan = self._plan
        text = b"".join(token_text(index, plan.token_bytes, plan.tag) for index in range(plan.tokens)).decode()
        content: dict[str, object] = (
            {"message": {"role": "assistant", "content": text}} if self._chat else {"text": text}
        )
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": plan.finish_reason}
        return self._object(self._kind, [choice], usage=True)

    def opening(self) -> bytes:
        """The event before the first token: a chat's role; nothing for text."""
        return self._event({"role": "assistant", "content": ""}, None) if self._chat else b""

    def token_parts(self) -> tuple[bytes, bytes]:
        """What stands before and after a token's text in its event."""
        event = self._event({"content": _MARK} if self._chat else _MARK, None)
        # The last one: a model's name may contain anything, and stands before it.
        before, _, after = event.rpartition(_MARK_BYTES)
        return before, after

    def closing(self) -> list[bytes]:
        """The events after the last token: the reason it finished, the usage if asked for, the end mark."""
        events = [self._event({} if self._chat else "", self._plan.finish_reason)]
        if self._plan.include_usage:
            events.append(_sse(self._object(self._stream_kind, [], usage=True)))
        return [*events, DONE]

    @property
    def _stream_kind(self) -> str:
        return "chat.completion.chunk" if self._chat else self._kind

    def _event(self, content: object, finish_reason: str | None) -> bytes:
        key = "delta" if self._chat else "text"
        choice = {"index": 0, key: content, "logprobs": None, "finish_reason": finish_reason}
        return _sse(self._object(self._stream_kind, [choice], usage=False))

    def _object(self, kind: str, choices: list[dict[str, object]], *, usage: bool) -> bytes:
        plan = self._plan
        full: dict[str, object] = {**self._common, "object": kind, "choices": choices}
        if usage:
            full["usage"] = {
                "prompt_tokens": plan.prompt_tokens,
                "completion_tokens": plan.tokens,
                "total_tokens": plan.prompt_tokens + plan.tokens,
            }
        return msgspec.json.encode(full)


def _sse(data: bytes) -> bytes:
    return b"data: %b\n\n" % data


@final
class TokenFrames:
    """The events of a stream's tokens, each as the bytes that go to the socket.

    :param chunked: whether the response is chunk-framed (RFC 9112 §7.1), else it ends with the connection.
    """

    __slots__ = ("_after", "_before", "_size", "_tag")

    def __init__(self, answer: Answer, plan: Plan, *, chunked: bool) -> None:
        before, after = answer.token_parts()
        self._size = plan.token_bytes
        self._tag = plan.tag
        if chunked:
            length = len(before) + len(token_text(0, self._size, self._tag)) + len(after)
            before = b"%x\r\n%b" % (length, before)
            after += b"\r\n"
        self._before = before
        self._after = after

    def __getitem__(self, index: int) -> bytes:
        return b"".join((self._before, token_text(index, self._size, self._tag), self._after))


def frame(event: bytes, *, chunked: bool) -> bytes:
    """One event as the bytes that go to the socket; nothing for no event, since an empty chunk would end the body."""
    return b"%x\r\n%b\r\n" % (len(event), event) if chunked and event else event
