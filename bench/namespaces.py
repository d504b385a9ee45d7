"""Hosts of their own on this machine, whose packets can be dropped: network namespaces around a router.

Lives here: making and removing them, cutting one off so that nobody is told, and sockets and commands inside. Does not
live here: what is measured or tested with them. Needs Linux, root and iproute2.
"""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import sys
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final, final

_CLONE_NEWNET: Final = 0x40000000


class NoNamespacesError(Exception):
    """This machine or this user cannot have network namespaces; says why."""


@final
class Host:
    """One namespace, with one interface to the router."""

    def __init__(self, namespace: str, number: int) -> None:
        self.namespace: Final = namespace
        """Its name for ``ip netns``."""
        self.address: Final = f"10.213.{number}.2"
        self.gateway: Final = f"10.213.{number}.1"
        self.interface: Final = f"to{number}"
        """The router's, towards it."""

    def command(self, *arguments: str) -> list[str]:
        """A command that runs on this host."""
        return ["ip", "netns", "exec", self.namespace, *arguments]

    def open_socket(self) -> socket.socket:
        """A TCP socket of this host; the caller itself stays where it is."""
        with ThreadPoolExecutor(1) as thread:  # which alone moves, and ends here
            return thread.submit(self._enter_and_open).result()

    def _enter_and_open(self) -> socket.socket:
        with open(f"/run/netns/{self.namespace}", "rb") as file:
            if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), f"cannot enter {self.namespace}")
        return socket.socket(socket.AF_INET, socket.SOCK_STREAM)


@final
class Network:
    """Hosts around a router that drops what is told to."""

    def __init__(self, router: str, hosts: Sequence[Host]) -> None:
        self._router = router
        self.hosts: Final = hosts

    def cut(self, host: Host) -> None:
        """Drop every packet from and to this host. No error is sent, and no link goes down."""
        _ip("-n", self._router, "route", "add", "blackhole", f"{host.address}/32")
        _ip("-n", self._router, "rule", "add", "from", host.address, "blackhole")

    def mend(self, host: Host) -> None:
        """Let its packets through again."""
        _ip("-n", self._router, "route", "del", "blackhole", f"{host.address}/32")
        _ip("-n", self._router, "rule", "del", "from", host.address, "blackhole")


@contextmanager
def network(*names: str) -> Generator[Network]:
    """A network of hosts with these names, gone afterwards together with the sockets in it.

    :raises NoNamespacesError: there is none to be had here.
    """
    if sys.platform != "linux":
        raise NoNamespacesError("network namespaces are Linux's")
    if os.geteuid() != 0:
        raise NoNamespacesError("only root can make network namespaces")
    prefix = f"trioproxy-{os.getpid()}-{os.urandom(2).hex()}"
    router = f"{prefix}-router"
    hosts = [Host(f"{prefix}-{name}", number) for number, name in enumerate(names)]
    try:
        _make(router, hosts)
        yield Network(router, hosts)
    finally:
        for namespace in (router, *(host.namespace for host in hosts)):
            if os.path.exists(f"/run/netns/{namespace}"):
                subprocess.run(["ip", "netns", "del", namespace], check=False, capture_output=True)


def _make(router: str, hosts: Sequence[Host]) -> None:
    try:
        _ip("netns", "add", router)
        for host in hosts:
            _ip("netns", "add", host.namespace)
            _ip("-n", router, "link", "add", host.interface, "type", "veth", "peer", "eth0", "netns", host.namespace)
            _ip("-n", router, "address", "add", f"{host.gateway}/24", "dev", host.interface)
            _ip("-n", router, "link", "set", host.interface, "up")
            _ip("-n", host.namespace, "address", "add", f"{host.address}/24", "dev", "eth0")
            _ip("-n", host.namespace, "link", "set", "eth0", "up")
            _ip("-n", host.namespace, "link", "set", "lo", "up")
            _ip("-n", host.namespace, "route", "add", "default", "via", host.gateway)
        _run("ip", "netns", "exec", router, "sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward")
    except OSError as error:
        raise NoNamespacesError(str(error)) from None


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*command: str) -> None:
    """Run it; raises OSError with what it said if it fails or is not there."""
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=10)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip() or f'exit status {done.returncode}'}")
