"""Which proxy a command of ``trioproxy bench`` is about: one that runs already, or a command that is started.

Lives here: the options that say so, and reading them. Does not live here: starting it (referee/target.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import click

if TYPE_CHECKING:
    from .referee.client import Address

_Command = TypeVar("_Command", bound=Callable[..., Any])


class Proxy(NamedTuple):
    """Exactly one of the first two is there."""

    address: Address | None
    command: Sequence[str] | None
    upstream_listen: tuple[str, int]
    headers: tuple[tuple[str, str], ...]
    model: str

    @classmethod
    def of(cls, values: dict[str, Any], *, plays_model_server: bool = True) -> Proxy:
        """From a command's keyword arguments, taking from these what is its own.

        :param plays_model_server: whether a proxy that runs already must be said to forward to here.
        :raises click.UsageError: they contradict each other, or one is not what it should be.
        """
        names = ("proxy", "proxy_cmd", "upstream_listen", "headers", "model")
        return _parse(*(values.pop(name) for name in names), plays_model_server=plays_model_server)


_OPTIONS: Final = (
    click.option("--proxy", metavar="URL", help="A proxy that runs already, forwarding to --upstream-listen."),
    click.option("--upstream-listen", metavar="HOST:PORT", help="Where to play the model server, for --proxy."),
    click.option("--proxy-cmd", metavar="COMMAND", help="Starts a proxy; {listen} and {upstream} become HOST:PORT."),
    click.option("--model", default="mock-model", show_default=True, metavar="NAME", help="That requests ask for."),
    click.option("--header", "headers", metavar="'NAME: VALUE'", multiple=True, help="A further one of each request."),
)


def proxy_options(command: _Command) -> _Command:
    """Give a command the options that say which proxy it is about. See ``Proxy.of``."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def _parse(
    proxy: str | None,
    proxy_cmd: str | None,
    upstream_listen: str | None,
    headers: Sequence[str],
    model: str,
    *,
    plays_model_server: bool,
) -> Proxy:
    from .referee.target import parse_command, parse_url

    extra = tuple(map(header, headers))
    if (proxy is None) == (proxy_cmd is None):
        raise click.UsageError("one of --proxy and --proxy-cmd is needed")
    if plays_model_server and proxy is not None and upstream_listen is None:
        raise click.UsageError("--proxy needs --upstream-listen HOST:PORT, where the proxy forwards to")
    try:
        address = None if proxy is None else parse_url(proxy, extra)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--proxy") from None
    try:
        command = None if proxy_cmd is None else parse_command(proxy_cmd)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--proxy-cmd") from None
    listen = ("127.0.0.1", 0) if upstream_listen is None else _address(upstream_listen)
    return Proxy(address, command, listen, extra, model)


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise click.BadParameter(f"{text!r} is not HOST:PORT, such as 127.0.0.1:8000", param_hint="--upstream-listen")
    return host.strip("[]") or "0.0.0.0", int(port)


def header(text: str) -> tuple[str, str]:
    """A header field.

    :raises click.BadParameter: it is none.
    """
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise click.BadParameter(f"{text!r} is not 'Name: value'", param_hint="--header")
    return name.strip(), value.strip()
