"""Encoded bodies: the same fields as plain ones, and bounds that no body gets around."""

from __future__ import annotations

import gzip
import json
import random
import sys
import time
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trioproxy.apis.coding import RATIO_FLOOR, STEP, EncodedFieldReader
from trioproxy.apis.fields import BodyState, FieldReader, RequestFields
from trioproxy.apis.operations import Form
from trioproxy.errors import Code, ProxyError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

BODY = b'{"messages":[{"role":"user","content":"%b"}],"model":"m","stream":true,"max_tokens":7,"user":"u"}'
READ = RequestFields("m", True, 7, "u", BodyState.READ)
CODINGS: dict[bytes, Callable[[bytes], bytes]] = {
    b"gzip": gzip.compress,
    b"X-GZIP ": gzip.compress,
    b"deflate": zlib.compress,
    b"zstd": zstd.compress,
}


def read(
    body: bytes, coding: bytes = b"gzip", *, size_limit: int = 64 << 20, ratio_limit: int = 100
) -> tuple[RequestFields, int]:
    """What an encoded body says, and in how many steps."""
    reader = EncodedFieldReader(FieldReader(Form.CHAT), coding, size_limit=size_limit, ratio_limit=ratio_limit)
    steps = 0
    storage = bytearray(body)
    with memoryview(storage).toreadonly() as view:
        reader.feed(view)
        while reader.step(view):
            steps += 1
    storage.clear()  # BufferError if a view were left
    return reader.finish(), steps


def noise(size: int) -> bytes:
    return random.Random(1).randbytes(size).hex().encode()[:size]


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("prompt", [b"", b"x" * 100, b"x" * 500_000, noise(9000), noise(3_000_000)])
def test_every_coding(coding: bytes, prompt: bytes) -> None:
    body = BODY % prompt
    said, steps = read(CODINGS[coding](body), coding)
    assert said == READ
    assert steps >= len(body) // STEP


@pytest.mark.parametrize("coding", CODINGS)
def test_several_members_are_one_body(coding: bytes) -> None:
    compress = CODINGS[coding]
    body = BODY % noise(100_000)
    for cut in (0, 1, 20, 50_000, len(body)):
        whole = compress(body[:cut]) + compress(body[cut:]) + compress(b"")
        assert read(whole, coding)[0] == READ
    many = b"".join(compress(bytes([byte])) for byte in BODY % b"")
    assert read(many, coding)[0] == READ
    tail = compress(b" ") * 2000
    assert read(compress(BODY % b"") + tail, coding)[0].state is BodyState.UNREADABLE


@pytest.mark.parametrize("coding", CODINGS)
def test_broken_ones_are_unreadable(coding: bytes) -> None:
    whole = CODINGS[coding](BODY % noise(300))
    for end in range(len(whole)):
        assert read(whole[:end], coding)[0].state is BodyState.UNREADABLE
    for tail in (b"\0", b"x", whole[:-1]):
        assert read(whole + tail, coding)[0].state is BodyState.UNREADABLE
    assert read(BODY % b"", coding)[0].state is BodyState.UNREADABLE
    assert read(CODINGS[coding](b"x" + BODY), coding)[0].state is BodyState.UNREADABLE


@pytest.mark.parametrize("coding", [b"br", b"gzip, gzip", b"gzip,identity", b"x", b"compress", b"zstandard"])
def test_unknown_codings_are_unreadable(coding: bytes) -> None:
    said, steps = read(gzip.compress(BODY % b""), coding)
    assert (said.state, steps) == (BodyState.UNREADABLE, 0)


def refused(body: bytes, coding: bytes = b"gzip", **limits: int) -> bool:
    try:
        read(body, coding, **limits)
    except ProxyError as error:
        return (error.code, error.status) == (Code.BODY_TOO_LARGE, 413)
    return False


@pytest.mark.parametrize("coding", CODINGS)
def test_size_is_limited(coding: bytes) -> None:
    body = BODY % noise(10_000)
    encoded = CODINGS[coding](body)
    assert not refused(encoded, coding, size_limit=len(body))
    assert refused(encoded, coding, size_limit=len(body) - 1)


@pytest.mark.parametrize("coding", CODINGS)
def test_ratio_is_limited(coding: bytes) -> None:
    short = CODINGS[coding](BODY % (b"x" * (RATIO_FLOOR - len(BODY))))
    assert not refused(short, coding, ratio_limit=1)
    body = BODY % (b"x" * 1_000_000 + noise(200_000))
    encoded = CODINGS[coding](body)
    ratio = len(body) // len(encoded)
    assert not refused(encoded, coding, ratio_limit=ratio + 1)
    assert refused(encoded, coding, ratio_limit=ratio)


@pytest.mark.parametrize("coding", CODINGS)
def test_a_bomb_is_cheap(coding: bytes) -> None:
    bomb = CODINGS[coding](b"\0" * (200 << 20))
    begin = time.process_time()
    assert refused(bomb, coding)
    assert time.process_time() - begin < 2


def test_what_is_refused_twice_stays_refused() -> None:
    duplicate = gzip.compress(b'{"model":"a","model":"b"}')
    with pytest.raises(ProxyError) as caught:
        read(duplicate)
    assert caught.value.code is Code.DUPLICATE_FIELD


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200), st.sampled_from(sorted(CODINGS)), st.data())
def test_no_bytes_raise_anything_else(junk: bytes, coding: bytes, data: st.DataObject) -> None:
    whole = CODINGS[coding](json.dumps({"model": junk.hex()}).encode())
    at = data.draw(st.integers(0, len(whole)))
    assert read(whole[:at] + junk + whole[at:], coding)[0].state in (BodyState.READ, BodyState.UNREADABLE)
