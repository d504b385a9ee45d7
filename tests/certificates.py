"""Certificates for tests: an authority of our own, servers and clients with good and bad ones.

Does not live here: any connection.
"""

from __future__ import annotations

import datetime
import functools
import ssl
from pathlib import Path
from typing import Final, NamedTuple

import trustme

NAME: Final = "model.test"
"""What the good certificate is for, besides the addresses of loopback and :data:`HOSTS`."""
HOSTS: Final = ("10.0.0.1", "10.0.0.2", "10.0.0.3")
"""The addresses of upstreams that are reached through a network in memory."""


class Authority(NamedTuple):
    """An authority, and the certificates that it has issued."""

    ca: trustme.CA
    good: trustme.LeafCert
    expired: trustme.LeafCert
    other_name: trustme.LeafCert
    client: trustme.LeafCert


@functools.cache
def authority() -> Authority:
    """The same for all tests: issuing takes a while."""
    ca = trustme.CA()
    past = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    return Authority(
        ca=ca,
        good=ca.issue_cert(NAME, "localhost", "127.0.0.1", "::1", *HOSTS),
        expired=ca.issue_cert(NAME, "127.0.0.1", not_before=past, not_after=past + datetime.timedelta(days=1)),
        other_name=ca.issue_cert("other.test"),
        client=ca.issue_cert("client@example.test"),
    )


def server_context(cert: trustme.LeafCert | None = None) -> ssl.SSLContext:
    """A server's context with this certificate, or with the good one."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    (cert or authority().good).configure_cert(context)  # pyright: ignore[reportUnknownMemberType] - half-typed
    return context


def trust(context: ssl.SSLContext) -> ssl.SSLContext:
    """The context, which trusts the authority from here on."""
    authority().ca.configure_trust(context)  # pyright: ignore[reportUnknownMemberType] - half-typed
    return context


def trusting_context() -> ssl.SSLContext:
    """A client's context that trusts the authority."""
    return trust(ssl.create_default_context())


def write_files(directory: Path, cert: trustme.LeafCert | None = None) -> tuple[Path, Path, Path]:
    """Files of the authority's certificate, of a certificate with its chain, and of its key."""
    found = cert or authority().good
    ca, chain, key = directory / "ca.pem", directory / "chain.pem", directory / "key.pem"
    authority().ca.cert_pem.write_to_path(str(ca))
    for number, blob in enumerate(found.cert_chain_pems):
        blob.write_to_path(str(chain), append=number > 0)
    found.private_key_pem.write_to_path(str(key))
    return ca, chain, key
