"""Whom a client trusts over TLS, and what it shows, from what httpx's users say.

Lives here: httpx's ``verify``, ``cert`` and ``trust_env``. Does not live here: files and handshakes (net/tls.py).
"""

from __future__ import annotations

import os
import ssl
from pathlib import Path

import httpx

from ..net import load_chain, trusting


def tls_context(
    verify: ssl.SSLContext | str | bool, cert: str | tuple[str, str] | tuple[str, str, str] | None, *, trust_env: bool
) -> ssl.SSLContext:
    """A client's context; its ALPN says http/1.1.

    :param verify: as httpx has it; a file or a directory of authorities, too. A context is changed, as httpx does.
    :param cert: a file, or (certificate, key) or (certificate, key, password).
    :param trust_env: whether ``SSL_CERT_FILE`` and ``SSL_CERT_DIR`` count.
    :raises OSError: a file cannot be read, or is not what it should be: which one, who named it, and what to do.
    """
    context = _trust(verify, trust_env=trust_env)
    if cert is not None:
        chain, *rest = (cert,) if isinstance(cert, str) else cert
        key, passphrase = (*rest, None, None)[:2]
        try:
            load_chain(context, Path(chain), None if key is None else Path(key), passphrase)
        except OSError as error:
            raise OSError(
                f"cert: {error}; give a PEM file, (certificate, key) or (certificate, key, password)"
            ) from None
    context.set_alpn_protocols(["http/1.1"])
    return context


def _trust(verify: ssl.SSLContext | str | bool, *, trust_env: bool) -> ssl.SSLContext:
    named_by, authorities = "verify", verify
    if verify is True and trust_env and "SSL_CERT_FILE" in os.environ:
        named_by, authorities = "SSL_CERT_FILE", os.environ["SSL_CERT_FILE"] or True
    if not isinstance(authorities, str):
        return httpx.create_ssl_context(verify=verify, trust_env=trust_env)
    try:
        return trusting(Path(authorities))
    except OSError as error:
        raise OSError(f"{named_by}: {error}; give a PEM file of authorities, or a directory of them") from None
