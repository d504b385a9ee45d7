"""httpx on PoolTransport behaves as httpx on its own transport: what goes wrong, TLS included."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import trio

from certificates import authority, server_context, trusting_context, write_files
from trioproxy import PoolTransport

from .talking import Conversation, MakeClient, echo, serving


async def test_nobody_listens(client_of: MakeClient) -> None:
    async with client_of() as client:
        with pytest.raises(httpx.ConnectError):
            await client.get("http://127.0.0.1:1/")
        with pytest.raises(httpx.ConnectError):
            await client.get("http://does-not-exist.invalid/")


@pytest.mark.parametrize("url", ["ftp://h/", "/path", "h"])
async def test_other_protocols(url: str, client_of: MakeClient) -> None:
    async with client_of() as client:
        with pytest.raises(httpx.UnsupportedProtocol):
            await client.get(url)


@pytest.mark.parametrize(
    "data",
    [b"", b"HTTP/1.1 200", b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nbad\r\n\r\n"],
)
async def test_a_response_that_is_none(data: bytes, client_of: MakeClient) -> None:
    async def say(talk: Conversation) -> None:
        await talk.head()
        await talk.stream.send_all(data)

    async with serving(say) as server, client_of() as client:
        with pytest.raises(httpx.RemoteProtocolError):
            await client.get(server.url)


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
    ],
)
async def test_a_response_that_is_cut(data: bytes, client_of: MakeClient) -> None:
    async def say(talk: Conversation) -> None:
        await talk.head()
        await talk.stream.send_all(data)

    async with serving(say) as server, client_of() as client:
        async with client.stream("GET", server.url) as response:
            with pytest.raises(httpx.RemoteProtocolError):
                await response.aread()
        assert (await _answers_after(client)) == "ok"


async def _answers_after(client: httpx.AsyncClient) -> str:
    async def answer(talk: Conversation) -> None:
        await talk.head()
        await talk.answers()

    async with serving(answer) as server:
        return (await client.get(server.url)).text


@pytest.mark.parametrize(
    ("fields", "content"),
    [
        ({"x": "a\r\nb: c"}, b""),
        ({"x\r\ny": "z"}, b""),
    ],
)
async def test_a_request_that_cannot_be_sent(fields: dict[str, str], content: bytes, client_of: MakeClient) -> None:
    async with serving(echo) as server, client_of() as client:
        with pytest.raises(httpx.LocalProtocolError):
            await client.post(server.url, headers=fields, content=content)


@pytest.mark.parametrize("length", ["2", "4", "x", "-1", "4, 4"])
async def test_a_body_that_is_not_as_long_as_its_head_says(length: str) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"abc"

    async with serving(echo) as server, httpx.AsyncClient(transport=PoolTransport()) as client:
        for content in (b"abc", pieces()):
            with pytest.raises(httpx.LocalProtocolError):
                await client.post(server.url, headers={"content-length": length}, content=content)


@pytest.mark.parametrize("length", [None, "0"])
async def test_a_body_that_its_head_says_nothing_of(length: str | None) -> None:
    """It would be lost, or taken for the next request. (httpx's own transport raises h11's error.)"""

    class Pieces(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield b""
            yield b"GET /secret HTTP/1.1\r\n\r\n"

    async with serving(echo) as server, httpx.AsyncClient(transport=PoolTransport()) as client:
        for stream in (httpx.ByteStream(b"abc"), Pieces()):
            headers = {"host": "test"} | ({} if length is None else {"content-length": length})
            request = httpx.Request("POST", server.url, headers=headers, stream=stream)
            with pytest.raises(httpx.LocalProtocolError):
                await client.send(request)
        assert (await client.get(server.url)).status_code == 200


async def test_what_cannot_be_sent_takes_no_connection() -> None:
    transport = PoolTransport()
    async with serving(echo) as server, httpx.AsyncClient(transport=transport) as client:
        await client.get(server.url)
        for headers in ({"x": "a\r\nb: c"}, {"content-length": "7"}, {"transfer-encoding": "gzip"}):
            with pytest.raises(httpx.LocalProtocolError):
                await client.post(server.url, headers=headers, content=b"abc")
        with pytest.raises(httpx.LocalProtocolError):
            await client.request("GÉT", server.url)
        assert transport.counts.idle == 1
        await client.get(server.url)
        assert server.connections == 1


async def test_the_error_of_a_body_is_the_callers(client_of: MakeClient) -> None:
    class OwnError(Exception):
        pass

    async def failing() -> AsyncIterator[bytes]:
        yield b"a"
        await trio.lowlevel.checkpoint()
        raise OwnError

    async with serving(echo) as server, client_of() as client:
        with pytest.raises(OwnError):
            await client.post(server.url, content=failing())
        assert (await _answers_after(client)) == "ok"


async def test_tls(client_of: MakeClient) -> None:
    async with serving(echo, server_context()) as server, client_of(verify=trusting_context()) as client:
        for _ in range(2):
            assert (await client.get(server.url)).status_code == 200
        assert server.connections == 1


@pytest.mark.parametrize("cert", ["good", "expired", "other_name"])
async def test_a_certificate_that_is_not_to_be_trusted(cert: str, client_of: MakeClient) -> None:
    verify = True if cert == "good" else trusting_context()
    async with serving(echo, server_context(getattr(authority(), cert))) as server, client_of(verify=verify) as client:
        with pytest.raises(httpx.ConnectError) as caught:
            await client.get(server.url)
        assert str(caught.value) == "" or "certificate is not valid" in str(caught.value)  # httpcore says nothing


async def test_a_name_to_be_checked_in_place_of_the_hosts() -> None:
    transport = PoolTransport(verify=trusting_context())
    async with (
        serving(echo, server_context(authority().other_name)) as server,
        httpx.AsyncClient(transport=transport) as client,
    ):
        extensions = {"sni_hostname": "other.test"}
        assert (await client.get(server.url, extensions=extensions)).status_code == 200
        with pytest.raises(httpx.ConnectError):  # and the connection is not lent to a request that wants another name
            await client.get(server.url)


async def test_verify_can_be_turned_off(client_of: MakeClient) -> None:
    async with serving(echo, server_context(authority().expired)) as server, client_of(verify=False) as client:
        assert (await client.get(server.url)).status_code == 200


async def test_a_clients_certificate(tmp_path: Path, client_of: MakeClient) -> None:
    context = server_context()
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=authority().ca.cert_pem.bytes().decode())
    _, chain, key = write_files(tmp_path, authority().client)
    verify = trusting_context()
    verify.load_cert_chain(chain, key)
    async with serving(echo, context) as server, client_of(verify=verify) as client:
        assert (await client.get(server.url)).status_code == 200


async def test_a_response_that_is_cut_below_tls() -> None:
    """It has no length, so that only the missing goodbye tells that it was cut."""

    async def cut(talk: Conversation) -> None:
        await talk.head()
        await talk.says("HTTP/1.1 200 OK", body=b"half")

    transport = PoolTransport(verify=trusting_context())
    async with serving(cut, server_context()) as server, httpx.AsyncClient(transport=transport) as client:
        with pytest.raises(httpx.ReadError, match="cut without a TLS goodbye"):
            await client.get(server.url)


@pytest.mark.parametrize("directory", [False, True])
async def test_authorities_in_a_file_or_a_directory(directory: bool, tmp_path: Path) -> None:
    certificate = authority().ca.cert_pem.bytes()
    file = tmp_path / "ca.pem"
    file.write_bytes(certificate)
    if directory:  # whose files have the names that OpenSSL looks for
        command = ["openssl", "x509", "-noout", "-subject_hash", "-in", str(file)]
        name = (await trio.run_process(command, capture_stdout=True)).stdout.decode().strip()
        file.rename(tmp_path / f"{name}.0")
    transport = PoolTransport(verify=str(tmp_path if directory else file))
    async with serving(echo, server_context()) as server, httpx.AsyncClient(transport=transport) as client:
        assert (await client.get(server.url)).status_code == 200


@pytest.mark.parametrize("passphrase", [None, "secret"])
async def test_a_certificate_in_files(passphrase: str | None, tmp_path: Path) -> None:
    """Without httpx's warning that ``cert`` is going away: warnings are errors here."""
    context = server_context()
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=authority().ca.cert_pem.bytes().decode())
    ca, chain, key = write_files(tmp_path, authority().client)
    cert: tuple[str, str] | tuple[str, str, str] = (str(chain), str(key))
    if passphrase is not None:
        locked = str(tmp_path / "locked.pem")
        command = ["openssl", "rsa", "-aes256", "-passout", f"pass:{passphrase}", "-in", str(key), "-out", locked]
        if b"EC PRIVATE" in key.read_bytes():
            command[1] = "ec"
        await trio.run_process(command, capture_stderr=True)
        cert = (str(chain), locked, passphrase)
    transport = PoolTransport(verify=str(ca), cert=cert)
    async with serving(echo, context) as server, httpx.AsyncClient(transport=transport) as client:
        assert (await client.get(server.url)).status_code == 200


def test_files_that_are_not_what_they_should_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nope, empty = str(tmp_path / "nope.pem"), tmp_path / "empty.pem"
    empty.write_bytes(b"")
    with pytest.raises(
        OSError, match=r"^verify: cannot read '.*nope\.pem': No such file or directory; give a PEM file"
    ):
        PoolTransport(verify=nope)
    with pytest.raises(OSError, match=r"^verify: '.*empty\.pem' has no PEM certificates in it; give"):
        PoolTransport(verify=str(empty))
    with pytest.raises(OSError, match=r"^cert: cannot read '.*nope\.pem': No such file or directory; give a PEM file"):
        PoolTransport(cert=nope)
    monkeypatch.setenv("SSL_CERT_FILE", nope)
    with pytest.raises(OSError, match=r"^SSL_CERT_FILE: cannot read '.*nope\.pem'"):
        PoolTransport()
    PoolTransport(trust_env=False)
