"""The proxy runs without httptools, on h11, and says so where it was asked for the other."""

from __future__ import annotations

import subprocess
import sys

WITHOUT = """
import importlib.util, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "httptools" else find(name, *rest)
sys.modules["httptools"] = None  # importing it raises ImportError
"""

SERVES = (
    WITHOUT
    + """
import trio, trioproxy
from functools import partial

async def model(stream):
    async with stream:
        await stream.receive_some()
        await stream.send_all(b"HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\n\\r\\nok")

async def main():
    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, model, 0, host="127.0.0.1"))
        proxy = trioproxy.Proxy([f"http://127.0.0.1:{listener.socket.getsockname()[1]}"])
        [address] = await nursery.start(proxy.serve)
        async with await trio.open_tcp_stream(*address) as stream:
            await stream.send_all(b"GET /v1/models HTTP/1.1\\r\\nHost: a\\r\\nConnection: close\\r\\n\\r\\n")
            async for data in stream:
                print(data.decode())
        nursery.cancel_scope.cancel()

assert trioproxy.Settings().codec == "h11"
trio.run(main)
"""
)

ASKED_FOR_IT = (
    WITHOUT + 'import trioproxy.cli; trioproxy.cli.main(["serve", "--upstream", "http://a", "--codec", "llhttp"])'
)


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)


def test_without_httptools_it_serves_on_h11() -> None:
    done = run(SERVES)
    assert done.stdout.startswith("HTTP/1.1 200 OK"), done.stderr
    assert done.stdout.endswith("ok\n")


def test_without_httptools_llhttp_cannot_be_chosen() -> None:
    done = run(ASKED_FOR_IT)
    assert done.returncode == 2
    assert "llhttp needs the package httptools, which is not installed; take h11" in done.stderr
