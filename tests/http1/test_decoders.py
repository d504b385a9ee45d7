"""Bodies: what is payload, where they end, what is refused; on every split."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trioproxy.errors import Code, Fault, ProxyError
from trioproxy.http1 import (
    CHUNK_END,
    CHUNKED,
    LAST_CHUNK,
    NO_BODY,
    UNTIL_CLOSE,
    BodyDecoder,
    Field,
    Framing,
    HeadLimits,
    LengthDecoder,
    chunk_prefix,
    decoder,
    last_chunk,
)
from trioproxy.http1.chunked import FREE_WIRE, MAX_LINE

from .driver import every_split, pieces


def run(body: BodyDecoder, data: bytes, cuts: list[int] | None = None) -> tuple[bytes, int]:
    """All payload in `data`, and how much of it the decoder took."""
    payload, taken = b"", 0
    for piece in pieces(data, cuts or ()):
        found, consumed = body.decode(piece)
        assert all(found), "no piece is empty"
        payload += b"".join(found)
        taken += consumed
        assert consumed == len(piece) or body.done
    return payload, taken


def refusal_of(data: bytes, cuts: list[int] | None = None, fault: Fault = Fault.CLIENT) -> ProxyError:
    with pytest.raises(ProxyError) as refused:
        run(decoder(CHUNKED, fault), data, cuts)
    return refused.value


@pytest.mark.parametrize(
    ("framing", "data", "payload", "taken", "done"),
    [
        (NO_BODY, b"rest", b"", 0, True),
        (Framing.of_length(0), b"rest", b"", 0, True),
        (Framing.of_length(4), b"body", b"body", 4, True),
        (Framing.of_length(4), b"bodyrest", b"body", 4, True),
        (Framing.of_length(4), b"bod", b"bod", 3, False),
        (UNTIL_CLOSE, b"anything\r\n\r\n", b"anything\r\n\r\n", 12, False),
        (CHUNKED, b"0\r\n\r\nrest", b"", 5, True),
        (CHUNKED, b"000\r\n\r\n", b"", 7, True),
        (CHUNKED, b"3\r\nabc\r\n0\r\n\r\n", b"abc", 13, True),
        (CHUNKED, b"a\r\n0123456789\r\nA\r\n0123456789\r\n0\r\n\r\n", b"0123456789" * 2, 35, True),
        (CHUNKED, b"0000000000000003\r\nabc\r\n", b"abc", 23, False),
        (CHUNKED, b"3\r\na\r\n\r\n0\r\n\r\n", b"a\r\n", 13, True),
        (CHUNKED, b'3;a;b=c;d="e\\"\\\\;f\t\xff"\r\nabc\r\n0;last\r\n\r\n', b"abc", 38, True),
        (CHUNKED, b"3\r\nabc\r\n0\r\nX: y\r\n\r\nrest", b"abc", 19, True),
        (CHUNKED, b"fffff\r\nab", b"ab", 9, False),
    ],
)
def test_payload_and_end_on_every_split(framing: Framing, data: bytes, payload: bytes, taken: int, done: bool) -> None:
    for cuts in ([], *every_split(data)):
        body = decoder(framing)
        assert run(body, data, cuts) == (payload, taken), cuts
        assert body.done is done
        assert body.decode(b"") == ([], 0)
        if done:
            assert body.decode(b"more") == ([], 0)


@pytest.mark.parametrize("framing", [NO_BODY, Framing.of_length(0)])
def test_an_empty_body_is_done_from_the_start(framing: Framing) -> None:
    body = decoder(framing)
    assert body.done
    assert body.trailers == []
    body.end_of_file()


def test_whole_pieces_are_passed_through_without_a_copy() -> None:
    data = b"x" * 1000
    chunked = decoder(CHUNKED)
    chunked.decode(b"1000\r\n")
    for body in (decoder(Framing.of_length(5000)), decoder(UNTIL_CLOSE), chunked):
        (piece,), consumed = body.decode(data)
        assert piece is data
        assert consumed == 1000


def test_one_event_is_one_piece() -> None:
    event = b"data: {}\n\n"
    body = decoder(CHUNKED)
    assert body.decode(chunk_prefix(len(event)) + event + CHUNK_END) == ([event], 15)


@pytest.mark.parametrize(
    ("framing", "data"),
    [
        (Framing.of_length(4), b"bod"),
        (CHUNKED, b""),
        (CHUNKED, b"3\r\nab"),
        (CHUNKED, b"3\r\nabc\r\n"),
        (CHUNKED, b"0\r\n"),
        (CHUNKED, b"0\r\nX: y\r\n"),
    ],
)
def test_an_early_end_of_file_cuts_a_body(framing: Framing, data: bytes) -> None:
    for fault, code in ((Fault.CLIENT, Code.BAD_REQUEST), (Fault.UPSTREAM, Code.UPSTREAM_CLOSED)):
        body = decoder(framing, fault)
        run(body, data)
        with pytest.raises(ProxyError) as refused:
            body.end_of_file()
        assert refused.value.code is code
        assert not body.done


@pytest.mark.parametrize(
    ("framing", "data"), [(NO_BODY, b""), (Framing.of_length(4), b"body"), (CHUNKED, LAST_CHUNK), (UNTIL_CLOSE, b"x")]
)
def test_an_end_of_file_after_a_body_is_fine(framing: Framing, data: bytes) -> None:
    body = decoder(framing, Fault.UPSTREAM)
    run(body, data)
    body.end_of_file()
    assert body.done
    assert body.decode(b"more") == ([], 0)


def test_bytes_received_in_place_are_counted() -> None:
    body = decoder(Framing.of_length(10))
    assert isinstance(body, LengthDecoder)
    body.took(7)
    assert body.remaining == 3
    for wrong in (4, -1):
        with pytest.raises(ValueError, match="3 left"):
            body.took(wrong)
    assert body.decode(b"abcd") == ([b"abc"], 3)
    assert body.done


REFUSED = [
    b"\r\n",
    b"g\r\n",
    b"0x3\r\nabc\r\n",
    b"+3\r\nabc\r\n",
    b"-1\r\n",
    b" 3\r\nabc\r\n",
    b"3 \r\nabc\r\n",
    b"3\t\r\nabc\r\n",
    b"1_0\r\n",
    b"3\nabc\r\n",
    b"3\rabc\r\n",
    b"3\r\r\nabc\r\n",
    b"3\r\nabc0\r\n\r\n",
    b"3\r\nabc\n0\r\n\r\n",
    b"3\r\nabc\r0\r\n\r\n",
    b"3\r\nabc\r\r\n0\r\n\r\n",
    b"3\r\nabcd\r\n",
    b"3\r\nab\r\n0\r\n\r\n",
    b"00000000000000003\r\nabc\r\n",  # 17 digits
    b"3;\r\nabc\r\n",
    b"3;;a\r\nabc\r\n",
    b"3; a\r\nabc\r\n",
    b"3 ;a\r\nabc\r\n",
    b"3;a =b\r\nabc\r\n",
    b"3;a=\r\nabc\r\n",
    b'3;a="b\r\nabc\r\n',
    b'3;a="b"c\r\nabc\r\n',
    b'3;a="b\\"\r\nabc\r\n',
    b"3;a\x00\r\nabc\r\n",
    b"3;a=\x7f\r\nabc\r\n",
    b"3;a\nabc\r\n",
    b"3 abc\r\nabc\r\n",
    b"\xef\xbc\x93\r\nabc\r\n",
    b"0\r\n\n",
    b"0\r\n\rX",
    b"0\r\nX: y\n\r\n",
    b"0\r\nX: y\rZ: a\r\n\r\n",
    b"0\r\nX\r\n\r\n",
    b"0\r\nX : y\r\n\r\n",
    b"0\r\n: y\r\n\r\n",
    b"0\r\n X: y\r\n\r\n",
    b"0\r\nX: a\r\n y\r\n\r\n",
    b"0\r\nX: \x00\r\n\r\n",
    b"0\r\nTransfer_Encoding: chunked\r\n\r\n",
    b"3\r\nabc\r\n0\r\nGET / HTTP/1.1\r\n\r\n",
]


@pytest.mark.parametrize("data", REFUSED)
def test_refused_chunks_and_trailers_on_every_split(data: bytes) -> None:
    assert refusal_of(data, fault=Fault.UPSTREAM).code is Code.BAD_RESPONSE
    for cuts in ([], *every_split(data)):
        error = refusal_of(data, cuts)
        assert error.code is Code.BAD_REQUEST, cuts
        assert len(error.message) < 300


@pytest.mark.parametrize("data", [b"x", b"3 ", b"3\n", b"3;a\x00", b"3\rx", b"3\r\nabcx", b"0\r\n\n", b"f" * 17])
def test_what_cannot_become_right_is_refused_at_once(data: bytes) -> None:
    for cuts in ([], *every_split(data)):
        refusal_of(data, cuts)


def test_trailers_are_checked_and_those_that_may_not_be_are_dropped() -> None:
    dropped = (
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\nHost: h\r\nAuthorization: a\r\nCookie: a\r\n"
        b"Set-Cookie: a\r\nContent-Type: a\r\nContent-Anything: a\r\nTrailer: a\r\nTE: a\r\nConnection: a\r\n"
        b"X-Forwarded-For: a\r\nForwarded: a\r\nX-Api-Key: a\r\nCache-Control: a\r\nLocation: a\r\n"
    )
    data = b"3\r\nabc\r\n0\r\nX-Sum: \t 1 \r\n" + dropped + b"x-sum: 2\r\nEmpty:\r\n\r\nrest"
    kept: list[Field] = [(b"x-sum", b"X-Sum", b"1"), (b"x-sum", b"x-sum", b"2"), (b"empty", b"Empty", b"")]
    for cuts in ([], *every_split(data)):
        body = decoder(CHUNKED)
        assert run(body, data, cuts) == (b"abc", len(data) - 4)
        assert body.trailers == kept


def test_trailer_limits_are_exact() -> None:
    fits = b"X: " + b"a" * 20 + b"\r\n\r\n"
    for limits, trailers in (
        (HeadLimits(size=len(fits)), fits),
        (HeadLimits(fields=2), b"A: b\r\nA: b\r\n\r\n"),
    ):
        for cuts in every_split(b"0\r\n" + trailers):
            body = decoder(CHUNKED, limits=limits)
            run(body, b"0\r\n" + trailers, cuts)
            assert body.done
        over = b"0\r\nA" + trailers if limits.size < 1000 else b"0\r\nA: b\r\n" + trailers
        for cuts in ([], *every_split(over)):
            with pytest.raises(ProxyError) as refused:
                run(decoder(CHUNKED, limits=limits), over, cuts)
            assert refused.value.code is Code.HEAD_TOO_LARGE, cuts


def test_chunk_lines_are_bounded_to_the_byte() -> None:
    fits = b"1;" + b"a" * (MAX_LINE - 4) + b"\r\n"
    assert len(fits) == MAX_LINE
    over = fits[:5] + b"a" + fits[5:]
    for cuts in ([], [1], [MAX_LINE - 1], [MAX_LINE], list(range(1, MAX_LINE))):
        assert run(decoder(CHUNKED), fits + b"x\r\n", cuts)[0] == b"x"
        assert "4096 bytes" in refusal_of(over, cuts).message
    assert "4096 bytes" in refusal_of(over[:MAX_LINE]).message


def test_extensions_may_not_cost_more_than_16_bytes_for_each_of_the_body() -> None:
    small = b"1\r\nx\r\n"  # 6 for 1: what a careless but honest sender makes
    assert run(decoder(CHUNKED), small * 50_000)[0] == b"x" * 50_000
    costly = b"1;" + b"a" * 10 + b"\r\nx\r\n"  # 17 for 1
    allowed = FREE_WIRE // len(costly)
    assert run(decoder(CHUNKED), costly * allowed)[0] == b"x" * allowed
    over = costly * (allowed + 1)
    for cuts in ([], [1000], list(range(7, len(over), 1000))):
        assert "too small" in refusal_of(over, cuts).message
    just_right = b"1;" + b"a" * 9 + b"\r\nx\r\n"  # 16 for 1
    assert run(decoder(CHUNKED), just_right * 20_000)[0] == b"x" * 20_000


chunks = st.lists(st.binary(min_size=1, max_size=40), max_size=6)
names = st.text("abcXYZ-0", min_size=1, max_size=6).map(lambda text: b"x-" + text.encode())
values = st.text(st.characters(codec="latin-1", exclude_categories=["Cc"]), max_size=8).map(
    lambda text: text.encode("latin-1").strip(b" \t")
)


@given(chunks, st.lists(st.tuples(names, values), max_size=4), st.binary(max_size=10), st.data())
def test_what_is_chunked_is_decoded_under_any_split(
    payload: list[bytes], trailers: list[tuple[bytes, bytes]], rest: bytes, data: st.DataObject
) -> None:
    wire = b"".join(chunk_prefix(len(chunk)) + chunk + CHUNK_END for chunk in payload) + last_chunk(trailers)
    sizes = data.draw(st.lists(st.integers(1, 30), max_size=40))
    cuts = [cut for cut in accumulate(sizes) if cut < len(wire + rest)]
    body = decoder(CHUNKED)
    assert run(body, wire + rest, cuts) == (b"".join(payload), len(wire))
    assert body.done
    assert [(name, value) for _, name, value in body.trailers] == [
        trailer for trailer in trailers if not trailer[0].lower().startswith((b"x-forwarded-", b"x-api-key"))
    ]


@given(st.binary(max_size=60), st.lists(st.integers(1, 10), max_size=30))
def test_any_bytes_decode_or_are_refused_alike_under_any_split(noise: bytes, sizes: list[int]) -> None:
    def outcome(data: bytes, cuts: list[int]) -> tuple[bytes, int] | Code:
        try:
            return run(decoder(CHUNKED), data, cuts)
        except ProxyError as error:
            return error.code

    for data in (noise, b"3\r\nabc\r\n" + noise, b"0\r\n" + noise):
        cuts = [cut for cut in accumulate(sizes) if cut < len(data)]
        assert outcome(data, cuts) == outcome(data, [])
