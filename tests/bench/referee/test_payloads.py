"""Bodies are encoded once, shared, and let go of when they have been sent."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys

import pytest

from trioproxy.bench.referee.payloads import Payloads

MIB = 1 << 20

SCRIPT = """
import sys

import trio

from trioproxy.bench.mock import MockServer
from trioproxy.bench.referee.cases import Pace
from trioproxy.bench.referee.client import Address
from trioproxy.bench.referee.index import Index
from trioproxy.bench.referee.payloads import Payloads
from trioproxy.bench.referee.play import CONTROL, Play, Request, play_once
from trioproxy.bench.referee.usage import OwnWatch

COUNT = int(sys.argv[1])


async def main():
    index, own, records = Index(), OwnWatch(), []
    with Payloads(1 << 20, keep=sys.argv[2] == "keep") as payloads:
        play = Play("x", payloads, index, Pace(), 1.0)
        async with trio.open_nursery() as nursery:
            host, port = await nursery.start(MockServer(on_name=index.note).serve)
            address = Address(host=host, port=port)
            # All bodies exist before the first is sent, half of them as children of another.
            requests = []
            for number in range(COUNT):
                parent = requests[-1].id if number % 2 else None
                more = {"tokens": 1}
                requests.append(
                    Request(play, CONTROL, "direct", "single", address, 1 << 20, parent_id=parent, more=more)
                )
            limit = trio.CapacityLimiter(10)

            async def one(request):
                async with limit:
                    records.append(await play_once(request, lambda: None))

            async with trio.open_nursery() as all_of_them:
                for request in requests:
                    all_of_them.start_soon(one, request)
            nursery.cancel_scope.cancel()
    assert all(record.complete and record.payload_bytes == 1 << 20 for record in records)
    print(len(records), own.usage().peak_rss_bytes)


trio.run(main)
"""


def peak(count: int, keep: str) -> int:
    """The most memory that a process took for so many requests of 1 MiB, in bytes."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(count), keep], capture_output=True, text=True, timeout=300, check=True
    )
    records, most = done.stdout.split()
    assert int(records) == count
    return int(most)


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of a process's memory is read from /proc")
def test_five_thousand_records_of_one_mebibyte_cost_less_than_150() -> None:
    assert peak(5000, "drop") < 150 * MIB


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of a process's memory is read from /proc")
def test_payloads_that_are_kept_cost_what_they_are() -> None:
    assert peak(100, "keep") > peak(100, "drop") + 90 * MIB


def test_a_payload_is_valid_has_its_size_and_its_hash_and_shares_its_text() -> None:
    with Payloads(MIB) as payloads:
        first = payloads.payload("a-1", MIB, knobs={"tokens": 3})
        child = payloads.payload("a-2", MIB, knobs={"tokens": 3}, parent_id="a-1")
        body = b"".join(first.parts)
        assert len(body) == first.length == MIB
        assert json.loads(body)["model"] == "mock-model"
        assert first.sha256 == hashlib.sha256(body).hexdigest() != child.sha256
        shared = [(one, other) for one, other in zip(first.parts, child.parts, strict=True) if len(one) > MIB // 2]
        assert [isinstance(one, memoryview) and one.obj is other.obj for one, other in shared] == [True]  # type: ignore[union-attr]
        assert b"".join(first.upto(1000)) == body[:1000]
        first.sent()
        assert first.parts == ()
        assert first.length == MIB
        child.sent()
