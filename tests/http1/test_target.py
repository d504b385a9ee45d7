"""Paths as they are routed by: one for all spellings, and none that could be two."""

from __future__ import annotations

import pytest

from trioproxy import Code, ProxyError
from trioproxy.http1 import route_of


@pytest.mark.parametrize(
    ("target", "route"),
    [
        (b"/", b"/"),
        (b"/v1/chat/completions", b"/v1/chat/completions"),
        (b"/v1/chat/completions?a=%zz&b=/../", b"/v1/chat/completions"),
        (b"/v1/chat/%63ompletions", b"/v1/chat/completions"),
        (b"//v1///chat/completions", b"/v1/chat/completions"),
        (b"/v1/models/", b"/v1/models/"),
        (b"/.well-known/a.b/..c/d..", b"/.well-known/a.b/..c/d.."),
        (b"/a%20b", b"/a b"),
        (b"*", b"*"),
    ],
)
def test_one_route_for_each_spelling(target: bytes, route: bytes) -> None:
    assert route_of(target) == route


@pytest.mark.parametrize(
    "target",
    [b"/a/../b", b"/a/.", b"/..", b"/./a", b"/a/%2e%2e/b", b"/a/.%2E", b"/v1/chat%2fcompletions", b"/a%5cb", b"/a\\b"],
)
def test_what_could_be_two_paths_is_refused(target: bytes) -> None:
    with pytest.raises(ProxyError) as caught:
        route_of(target)
    assert caught.value.code is Code.BAD_REQUEST
