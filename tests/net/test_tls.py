"""TLS over any transport: handshakes that succeed and that fail, ends, closes, and nothing hidden inside."""

from __future__ import annotations

import gc
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import final

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from certificates import NAME, authority, server_context, trust, trusting_context, write_files
from network import End, connection
from transports import Target, receive_exactly
from trioproxy.net import ServerTls, TlsError, client_context, start_tls
from trioproxy.transport import Transport, send_all

LARGE = bytes(range(256)) * 1024


async def pair(
    near: End, far: End, *, client: ssl.SSLContext | None = None, server: ssl.SSLContext | None = None
) -> tuple[Transport, Transport]:
    """Both ends of a connection, with TLS on it: the client's, the server's."""
    ends: dict[str, Transport] = {}

    async def accept() -> None:
        ends["server"] = await start_tls(far, server or server_context(), server_side=True)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(accept)
        ends["client"] = await start_tls(near, client or trusting_context(), server_hostname=NAME)
    return ends["client"], ends["server"]


async def test_bytes_go_both_ways_and_ends_are_proper(autojump_clock: MockClock) -> None:
    near, far = await pair(*connection("tls"))
    for sender, receiver in ((near, far), (far, near)):
        await send_all(sender, [b"one ", bytearray(b"two "), memoryview(b"three")], stall=1)
        assert await receive_exactly(receiver, 13) == b"one two three"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(send_all, sender, [LARGE], stall=1))
            assert await receive_exactly(receiver, len(LARGE)) == LARGE
    target = Target(5)
    await send_all(far, [b"0123456789"], stall=1)
    assert await near.receive_into(target) == 5
    assert await near.receive_into(target) == 5
    assert target.data == b"0123456789"
    await far.aclose()
    assert await near.receive() == b""
    await near.aclose()
    assert near.closed
    assert far.closed


async def test_one_can_send_while_another_waits_to_receive(autojump_clock: MockClock) -> None:
    near, far = await pair(*connection("tls"))
    async with trio.open_nursery() as nursery:

        async def receive() -> None:
            assert await near.receive() == b"answer"

        nursery.start_soon(receive)
        await wait_all_tasks_blocked()
        await send_all(near, [b"question"], stall=1)
        assert await far.receive() == b"question"
        await send_all(far, [b"answer"], stall=1)
    near.close()
    far.close()


async def test_a_peer_that_vanishes_does_so_below(autojump_clock: MockClock) -> None:
    below, far_below = connection("tls")
    near, far = await pair(below, far_below)
    near.watch_peer(30)
    assert below.watched == [30]
    below.vanish()
    for _ in range(2):
        with pytest.raises(trio.BrokenResourceError):
            await near.receive()
    assert near.vanished
    assert not far.vanished
    near.close()
    far.close()


async def test_both_say_http_1_1() -> None:
    """By ALPN (RFC 7301): a server that also speaks HTTP/2 must not choose that."""
    server = server_context()
    server.set_alpn_protocols(["h2", "http/1.1"])
    near, far = await pair(*connection("tls"), client=trust(client_context()), server=server)
    assert "http/1.1" in {transport._stream.selected_alpn_protocol() for transport in (near, far)}  # type: ignore[attr-defined]
    near.close()
    far.close()


@pytest.mark.parametrize(
    ("server", "client", "name", "reason"),
    [
        ("good", "system", NAME, "the certificate is not valid: its issuer is not trusted"),
        ("expired", "trusting", NAME, "the certificate is not valid: certificate has expired"),
        (
            "other_name",
            "trusting",
            NAME,
            "the certificate is not valid: Hostname mismatch",
        ),
        ("good", "trusting", "10.0.0.9", "the certificate is not valid: IP address mismatch"),
    ],
)
async def test_a_certificate_that_is_not_to_be_trusted(
    server: str, client: str, name: str, reason: str, autojump_clock: MockClock
) -> None:
    near, far = connection("tls")
    served = server_context(getattr(authority(), server))
    async with trio.open_nursery() as nursery:

        async def accept() -> None:
            with pytest.raises((TlsError, trio.BrokenResourceError)):
                await (await start_tls(far, served, server_side=True)).receive()

        nursery.start_soon(accept)
        with pytest.raises(TlsError) as caught:
            await start_tls(near, client_context() if client == "system" else trusting_context(), server_hostname=name)
    assert str(caught.value).startswith(f"the TLS handshake failed: {reason}")
    assert near.closed


async def test_an_insecure_client_trusts_whoever_answers(autojump_clock: MockClock) -> None:
    served = server_context(authority().expired)
    near, far = await pair(*connection("tls"), client=client_context(verify=False), server=served)
    near.close()
    far.close()


async def test_a_client_shows_its_certificate(tmp_path: Path, autojump_clock: MockClock) -> None:
    ca, chain, key = write_files(tmp_path, authority().client)
    server = server_context()
    server.verify_mode = ssl.CERT_REQUIRED
    trust(server)
    near, far = await pair(*connection("tls"), client=client_context(ca=ca, cert=chain, key=key), server=server)
    await send_all(near, [b"x"], stall=1)
    assert await far.receive() == b"x"
    near.close()
    far.close()
    # Without one: in TLS 1.3 the client hears of it after the handshake (RFC 8446 section 4.4.2.4).
    near_end, far_end = connection("tls")
    async with trio.open_nursery() as nursery:

        async def accept() -> None:
            with pytest.raises(TlsError, match="peer did not return a certificate"):
                await start_tls(far_end, server, server_side=True)

        nursery.start_soon(accept)
        with pytest.raises((TlsError, trio.BrokenResourceError)):
            await (await start_tls(near_end, client_context(ca=ca), server_hostname=NAME)).receive()


async def test_a_peer_that_speaks_no_tls(autojump_clock: MockClock) -> None:
    near, far = connection("plain")
    await far.send_some([b"HTTP/1.1 400 Bad Request\r\n\r\n"])
    with pytest.raises(TlsError, match="the TLS handshake failed: "):
        await start_tls(near, trusting_context(), server_hostname=NAME)
    assert near.closed


async def test_an_end_without_a_goodbye_is_no_end(autojump_clock: MockClock) -> None:
    """Else whoever can cut a connection could make a truncated response look whole (RFC 9112 section 9.8)."""
    near_end, far_end = connection("tls")
    near, far = await pair(near_end, far_end)
    await send_all(far, [b"half"], stall=1)
    far_end.close()
    assert await near.receive() == b"half"
    with pytest.raises(trio.BrokenResourceError, match="cut without a TLS goodbye"):
        await near.receive()
    near.close()


async def test_our_end_goes_out_and_what_still_comes_can_be_read(autojump_clock: MockClock) -> None:
    """As HTTP/1.1 closes (RFC 9112 section 9.6): the client reads the last response although it is still sending."""
    near_end, far_end = connection("tls")
    near, far = await pair(near_end, far_end)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_read_to_the_end, far)
        await wait_all_tasks_blocked()
        await far.send_end()
        await far.send_end()
        await send_all(near, [b"still uploading"], stall=1)
        assert await near.receive() == b""
        assert not far.closed
        assert far_end.peer.ended
        await near.aclose()
    await far.aclose()


async def test_what_comes_after_our_end_fits_into_a_small_window(autojump_clock: MockClock) -> None:
    """It is no longer decrypted, so that it may be more than the reader has room for."""
    near, far = await pair(*connection("tls"))
    target = Target(3)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(far.receive_into, target)
        await wait_all_tasks_blocked()
        await far.send_end()
        await send_all(near, [b"a long upload"], stall=1)
    assert len(target.data) == 3
    near.close()
    far.close()


async def _read_to_the_end(transport: Transport) -> None:
    try:
        while await transport.receive():
            pass
    except trio.BrokenResourceError:
        pass


@pytest.mark.parametrize("how", ["aclose", "send_end"])
async def test_a_close_has_a_bound(how: str, autojump_clock: MockClock) -> None:
    """The peer takes nothing, so that no goodbye can be sent."""
    near, far = await pair(*connection("tls", capacity=4096))
    with trio.move_on_after(1) as filling:
        await send_all(near, [bytes(100_000)], stall=10)
    assert filling.cancelled_caught
    started = trio.current_time()
    if how == "aclose":
        await near.aclose()
        assert near.closed
    else:
        await near.send_end()
    assert trio.current_time() - started <= 1
    near.close()
    far.close()


async def test_a_reset_or_a_close_wakes_whoever_waits(autojump_clock: MockClock) -> None:
    for way in ("close", "reset"):
        near, far = await pair(*connection("tls"))
        async with trio.open_nursery() as nursery:

            async def receive(near: Transport = near) -> None:
                with pytest.raises(trio.ClosedResourceError):
                    await near.receive()

            nursery.start_soon(receive)
            await wait_all_tasks_blocked()
            getattr(near, way)()
        with pytest.raises(trio.ClosedResourceError):
            await near.send_some([b"x"])
        far.close()


async def test_nothing_that_came_is_hidden(autojump_clock: MockClock) -> None:
    """A second answer that came in one piece with the first is seen by readable_nowait, read or not."""
    near_end, far_end = connection("tls")
    near, far = await pair(near_end, far_end)
    await send_all(far, [b"first"], stall=1)
    await send_all(far, [b"second"], stall=1)
    assert near.readable_nowait()
    assert await near.receive() == b"first"
    assert near_end.unread == 0
    assert near.readable_nowait()
    assert await near.receive() == b"second"
    assert not near.readable_nowait()
    await send_all(far, [b"0123456789"], stall=1)
    assert await near.receive_into(Target(5)) == 5
    assert near.readable_nowait()
    near.close()
    far.close()


# Files


def test_a_certificate_is_read_again_or_stays_as_it_was(tmp_path: Path) -> None:
    _, chain, key = write_files(tmp_path)
    tls = ServerTls(chain, key)
    first = tls.context
    tls.reload()
    second = tls.context
    assert second is not first
    chain.write_text("nonsense")
    with pytest.raises(OSError, match=r"there is no PEM certificate in .*chain"):
        tls.reload()
    assert tls.context is second


def test_what_a_certificate_cannot_be_read_from(tmp_path: Path) -> None:
    ca, chain, key = write_files(tmp_path)
    with pytest.raises(OSError, match="cannot read '/nowhere'"):
        ServerTls("/nowhere", key)
    with pytest.raises(OSError, match="cannot read '/nowhere'"):
        ServerTls(chain, "/nowhere")
    with pytest.raises(OSError, match="cannot read"):
        ServerTls(tmp_path)
    other = tmp_path / "other.pem"
    authority().client.private_key_pem.write_to_path(str(other))
    with pytest.raises(OSError, match="does not belong to the certificate"):
        ServerTls(chain, other)
    with pytest.raises(OSError, match=r"there is no PEM key in .*; is it in another file"):
        ServerTls(chain)
    with pytest.raises(OSError, match=r"there is no PEM key in .*chain.pem'$"):
        ServerTls(chain, chain)
    with pytest.raises(OSError, match=r"there is no PEM certificate in .*key"):
        ServerTls(key, chain)
    damaged = tmp_path / "damaged.pem"
    damaged.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    with pytest.raises(OSError, match=r"the certificate or the key in .*damaged.pem.* is damaged"):
        ServerTls(damaged, key)
    with pytest.raises(OSError, match="has no PEM certificates in it"):
        client_context(ca=key)
    with pytest.raises(OSError, match="cannot read"):
        client_context(ca="/nowhere")
    with pytest.raises(ValueError, match="a key needs its certificate"):
        client_context(ca=ca, key=key)


def test_a_key_with_a_passphrase_is_refused_not_asked_for(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    _, chain, key = write_files(tmp_path)
    loaded = serialization.load_pem_private_key(key.read_bytes(), password=None)
    key.write_bytes(
        loaded.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    with pytest.raises(OSError, match="has a passphrase"):
        ServerTls(chain, key)


@final
class Turns(trio.abc.Instrument):
    """Counts the turns of the event loop."""

    count = 0

    def before_io_wait(self, timeout: float) -> None:
        del timeout
        self.count += 1


async def test_many_handshakes_at_once_do_not_hold_up_others() -> None:
    """A hello costs up to a millisecond: all of them in one turn of the loop would stall every stream."""
    turns = Turns()
    trio.lowlevel.add_instrument(turns)
    signed: Counter[int] = Counter()

    def note(*_: object) -> None:
        signed[turns.count] += 1

    context = server_context()
    context.sni_callback = note
    hellos = 40

    async def shake(near: End, far: End) -> None:
        (await pair(near, far, server=context))[0].close()
        far.close()

    async with trio.open_nursery() as nursery:
        for _ in range(hellos):
            nursery.start_soon(shake, *connection("tls"))
    trio.lowlevel.remove_instrument(turns)
    assert signed.total() == hellos
    assert max(signed.values()) <= 8  # twice what may run, for those that come in a turn of their own


@pytest.mark.parametrize(("server_side", "name"), [(True, None), (False, ".localhost")])
async def test_tls_that_cannot_even_begin(server_side: bool, name: str | None) -> None:
    """A client's context for a server's side, and a name that can be on no certificate."""
    near, far = connection("tls")
    with pytest.raises(TlsError, match="TLS cannot be spoken"):
        await start_tls(near, trusting_context(), server_hostname=name, server_side=server_side)
    assert near.closed
    far.close()


async def _shake_and_leave() -> None:
    near, far = await pair(*connection("tls"))
    near.close()
    far.close()


async def _keep_silent() -> None:
    near, far = connection("tls")
    with trio.move_on_after(1):
        await start_tls(near, server_context(), server_side=True)
    far.close()


async def _send_garbage() -> None:
    near, far = connection("tls")
    await far.send_some([b"GET / HTTP/1.1\r\n\r\n"])
    with pytest.raises(TlsError):
        await start_tls(near, server_context(), server_side=True)
    far.close()


@pytest.mark.parametrize("play", [_shake_and_leave, _keep_silent, _send_garbage])
async def test_nothing_is_left_to_the_collector(play: Callable[[], Awaitable[None]], autojump_clock: MockClock) -> None:
    """What OpenSSL holds for a connection goes with it: the collector does not know how much it is."""

    def kept() -> int:
        return sum(isinstance(item, ssl.SSLObject) for item in gc.get_objects())

    gc.collect()
    before = kept()
    gc.disable()
    try:
        for _ in range(3):
            await play()
        await wait_all_tasks_blocked()
        assert kept() == before
    finally:
        gc.enable()
