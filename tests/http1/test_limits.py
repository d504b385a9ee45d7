"""Limits of heads: exact to the byte and the field, and told at once, however the bytes are cut."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trioproxy.errors import Code, Fault, ProxyError
from trioproxy.http1 import HeadLimits, HeadReader, RequestHead, read_request_head, read_response_head

from .driver import PARSER, Event, Refused, drive_requests, every_split, request, with_fields, with_target


def exact(limits: HeadLimits, fits: bytes, over: bytes, status: int) -> None:
    """`fits` is accepted and `over` refused, however they are cut."""

    def seen(raw: bytes, cuts: list[int]) -> Event:
        return drive_requests(raw, cuts, limits)[0]

    for cuts in ([], *every_split(fits)):
        assert isinstance(seen(fits, cuts), RequestHead), cuts
    for cuts in ([], *every_split(over)):
        refused = seen(over, cuts)
        assert isinstance(refused, Refused)
        assert ProxyError(Code(refused.code), "").status == status, cuts


def test_the_size_limit_is_exact_to_the_byte() -> None:
    fits = with_fields(b"X: " + b"a" * 50)
    exact(HeadLimits(size=len(fits)), fits, with_fields(b"X: " + b"a" * 51), 431)
    exact(HeadLimits(size=len(fits)), b"\r\n" * 8 + fits, b"\r\n" * 8 + with_fields(b"X: " + b"a" * 51), 431)


def test_the_field_limit_is_exact_to_the_field() -> None:
    lines = [b"X: a"] * 5
    exact(HeadLimits(fields=6), with_fields(*lines), with_fields(*lines, b"Y: b"), 431)


def test_the_target_limit_is_exact_to_the_byte() -> None:
    exact(HeadLimits(target=10), with_target(b"/" + b"a" * 9), with_target(b"/" + b"a" * 10), 414)


def test_a_limit_is_told_on_the_byte_that_breaks_it() -> None:
    for limits, raw, status in (
        (HeadLimits(size=40), b"GET / HTTP/1.1\r\nX: ".ljust(40, b"a"), 431),
        (HeadLimits(target=10), b"GET /".ljust(15, b"a"), 414),
    ):
        reader = HeadReader(limits, fault=Fault.CLIENT)
        assert reader.feed(raw[:-1]) is None
        with pytest.raises(ProxyError) as refused:
            reader.feed(raw[-1:])
        assert refused.value.status == status


@pytest.mark.parametrize("wrong", [b"\n", b"\x00", b"\rx", b"\x1b"])
@pytest.mark.parametrize("place", range(20, 45, 3))
def test_of_several_faults_the_first_decides_on_every_split(place: int, wrong: bytes) -> None:
    limits = HeadLimits(size=36, target=22)
    line = b"GET /" + b"a" * 24 + b" HTTP/1.1\r\n"
    for raw in (line + b"\r\n", b"GET / HTTP/1.1\r\nX: " + b"a" * 40):
        broken = raw[:place] + wrong + raw[place:]
        whole = drive_requests(broken, limits=limits)
        for cuts in every_split(broken):
            assert drive_requests(broken, cuts, limits) == whole, (broken, cuts)


starts = st.sampled_from([b"GET ", b"CONNECT ", b"GE T ", b"G\xc3 ", b"\r\n", b" ", b""])
targets = st.sampled_from([b"/", b"/" + b"a" * 20, b"/" + b"a" * 30, b"/#" + b"a" * 30, b"/ " + b"a" * 30, b""])
versions = st.sampled_from([b" HTTP/1.1", b" HTTP/2.0", b" HTTP/1.1 ", b""])
ends = st.sampled_from([b"\r\n", b"\r\n", b"\n", b"\r", b"\r\r\n", b"\x00\r\n"])
lines = st.sampled_from([b"Host: h", b"X: y", b"X : y", b" X: y", b"X: \x1b", b"nothing", b"X: " + b"y" * 40, b""])


@settings(max_examples=150, deadline=None)
@given(starts, targets, versions, st.lists(st.tuples(lines, ends), max_size=4), ends, ends)
def test_a_whole_head_is_judged_as_in_pieces(
    start: bytes, target: bytes, version: bytes, fields: list[tuple[bytes, bytes]], first: bytes, last: bytes
) -> None:
    raw = start + target + version + first + b"".join(line + end for line, end in fields) + last + b"rest\r\n\r\n"
    for limits in (HeadLimits(), HeadLimits(size=80, target=25, fields=2)):
        whole = drive_requests(raw, limits=limits)
        for cuts in every_split(raw):
            assert drive_requests(raw, cuts, limits) == whole, (raw, cuts)


def test_default_limits_hold() -> None:
    head = with_fields(*[b"X: a"] * 99)
    assert len(request(head).fields) == 100
    big = with_fields(b"X: " + b"a" * (65536 - len(with_fields(b"X: "))))
    assert len(big) == 65536
    assert len(request(big).fields) == 2
    assert len(request(with_target(b"/" + b"a" * 8191)).target) == 8192
    for raw, code in (
        (with_fields(*[b"X: a"] * 100), "head_too_large"),
        (with_fields(b"X: " + b"a" * (65537 - len(with_fields(b"X: ")))), "head_too_large"),
        (with_target(b"/" + b"a" * 8192), "target_too_long"),
    ):
        assert drive_requests(raw) == [Refused(code, "")]


def test_limits_hold_without_the_reader() -> None:
    with pytest.raises(ProxyError) as refused:
        read_request_head(with_target(b"/aaa"), PARSER, HeadLimits(target=3))
    assert refused.value.code is Code.TARGET_TOO_LONG
    with pytest.raises(ProxyError) as refused:
        read_response_head(
            b"HTTP/1.1 200 OK\r\nA: b\r\nA: b\r\n\r\n", PARSER, HeadLimits(fields=1), request_method=b"GET"
        )
    assert refused.value.code is Code.BAD_RESPONSE
