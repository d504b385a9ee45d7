"""``trioproxy`` as a process, for tests of its commands.

Lives here: starting one, its output, its end. Does not live here: assertions about it.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Final, final

import pytest

import trioproxy

COMMAND: Final = [sys.executable, "-m", "trioproxy"]
ENVIRONMENT: Final = os.environ | {
    "PYTHONPATH": str(Path(trioproxy.__file__).parents[1]),
    "PYTHONUNBUFFERED": "1",
    "NO_COLOR": "1",
}
posix = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")


@final
class Running:
    """A command that goes on until it is told to stop."""

    def __init__(self, *arguments: str) -> None:
        self._process: Final = subprocess.Popen(
            [*COMMAND, *arguments], env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.first = self.line()
        found = re.search(r"https?://([^:]+|\[[^]]+\]):(\d+)", self.first)
        assert found, (self.first, self._process.stderr and self._process.stderr.read())
        self.host = found[1].strip("[]")
        self.port = int(found[2])

    def line(self) -> str:
        """The next line that it prints."""
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def ends(self) -> tuple[int, str, str]:
        """Its exit status, and what it has printed."""
        out, err = self._process.communicate(timeout=10)
        return self._process.returncode, out, err

    def connect(self) -> socket.socket:
        return socket.create_connection((self.host, self.port), timeout=10)

    def wait_asked(self) -> None:
        """Wait until this mock has been asked for a completion."""
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            with self.connect() as sock:
                sock.sendall(b"GET /mock/requests HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
                if b"/v1/completions" in receive_all(sock):
                    return
            time.sleep(0.01)
        raise TimeoutError

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()


def receive_all(sock: socket.socket) -> bytes:
    with sock:
        return b"".join(iter(lambda: sock.recv(65536), b""))


STREAM: Final = (
    b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 74\r\n\r\n"
    b'{"stream": true, "metadata": {"prefill": 0.3, "tokens": 3, "interval": 0}}'
)
