"""`python -m bench.peers NAME --listen HOST:PORT --upstream URL`: install a peer if needed, and become it.

Lives here: the command line. The process is replaced by the peer's (exec), so that nothing stands between it and
whoever started it: signals, exit status, output, CPU and memory are the peer's own.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import trio

from bench.peers.install import cache
from bench.peers.peer import Address, Peer, PeerError
from bench.peers.registry import PEERS
from bench.report import told
from trioproxy.process import raise_file_limit


class Options(argparse.Namespace):
    """What was asked for on the command line."""

    name: str | None
    listen: Address | None
    upstream: Address | None
    install: bool
    list: bool


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what was asked for; returns the exit status unless the process becomes a peer."""
    parser = _parser()
    options = parser.parse_args(arguments, namespace=Options())
    if options.list:
        print(_listed())
        return 0
    if options.name is None:
        parser.error("a NAME or --list is required")
    peer = PEERS[options.name]
    try:
        if (status := trio.run(_install, peer)) or options.install:
            return status
        if options.listen is None or options.upstream is None:
            parser.error("--listen and --upstream are required")
        _become(peer, options.listen, options.upstream)
    except (PeerError, OSError) as error:
        return _failed(error)


def _failed(error: Exception) -> int:
    print(f"bench.peers: {told(error)}", file=sys.stderr)
    return 1


def _listed() -> str:
    width = max(map(len, PEERS))
    return "\n".join(f"{name.ljust(width)}  {_state(peer)}" for name, peer in PEERS.items())


def _state(peer: Peer) -> str:
    headers = [f"clients must send {name}: {value}" for name, value in peer.headers.items()]
    return "; ".join([peer.installation.missing() or "installed", *headers])


async def _install(peer: Peer) -> int:
    """Returns the exit status: 0, 1 if it cannot be had, or the one for the signal that ended it."""
    status = 0

    async def end_on_signal() -> None:
        nonlocal status
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async for number in signals:
                status = 128 + number
                nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(end_on_signal)
        try:
            await peer.installation.install()
        except PeerError as error:
            status = _failed(error)
        nursery.cancel_scope.cancel()
    return status


def _become(peer: Peer, listen: Address, upstream: Address) -> NoReturn:
    """Replace this process by the peer's.

    Nobody is left to remove the folder of its files, so it is named by the process, and the next peer removes it.
    """
    runs = cache() / "runs"
    for run in runs.glob("*"):
        if not Path(f"/proc/{run.name}").exists():
            shutil.rmtree(run, ignore_errors=True)
    directory = runs / str(os.getpid())
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    command = peer.command(listen, upstream, directory)
    raise_file_limit()
    # Python ignores these two, and a program that is started by exec would go on ignoring them.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    os.execve(command[0], command, {**os.environ, **peer.environment})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.peers", description="Start one peer in front of one upstream."
    )
    parser.add_argument("name", nargs="?", choices=list(PEERS), metavar="NAME", help="one of " + ", ".join(PEERS))
    parser.add_argument("--listen", type=Address.parse, metavar="HOST:PORT", help="an IPv4 address and a port")
    parser.add_argument("--upstream", type=Address.parse, metavar="URL", help="http:// with an IPv4 address and a port")
    parser.add_argument("--install", action="store_true", help="install it, and do not start it")
    parser.add_argument("--list", action="store_true", help="which peers are installed, and how the others are")
    return parser


if __name__ == "__main__":
    sys.exit(main())
