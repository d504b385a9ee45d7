"""Changes to a body, as bytes that take the place of others.

Lives here: what to change so that a stream reports its usage. Does not live here: finding the places (``json_scan``),
or changing the bytes (the body's own).

A body is never written anew: large numbers, repeated keys, order and spacing of all else stay as they came.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

_SPOKEN_OF: Final = frozenset({"include_usage", "continuous_usage_stats"})
_MEMBERS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Edit(NamedTuple):
    """Some bytes of a body that others take the place of."""

    begin: int
    """Bytes from the start of the body."""
    end: int
    text: bytes


def inclusion_of_usage(begin: int, options: bytes | None) -> Edit | None:
    """What makes a stream of OpenAI's chat or completions end with its usage; None if the client spoke of it.

    ``continuous_usage_stats`` is to speak of it: vLLM follows it only where ``include_usage`` is too, and a client that
    left that out would have its events changed.

    :param begin: where the value of ``stream_options`` begins in the body; without it, where the body's object does.
    :param options: that value; None if there is none, empty if it is too long to be known.
    """
    if options is None:
        return Edit(begin + 1, begin + 1, b'"stream_options":{"include_usage":true},')
    if options == b"null":
        return Edit(begin, begin + 4, b'{"include_usage":true}')
    try:
        members = _MEMBERS.decode(options)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return None
    if not _SPOKEN_OF.isdisjoint(members):
        return None
    return Edit(begin + 1, begin + 1, b'"include_usage":true,' if members else b'"include_usage":true')
