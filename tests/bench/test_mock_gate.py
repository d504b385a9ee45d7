"""The gate that holds the mock model server's answers."""

from __future__ import annotations

import trio
import trio.testing

from trioproxy.bench.mock_gate import Gate


async def _passing(gate: Gate, passed: list[int]) -> None:
    for index in range(4):
        await gate.passed(index)
        passed.append(index)


async def test_tokens_below_the_limit_pass_and_the_others_when_it_is_raised() -> None:
    gate = Gate()
    passed: list[int] = []
    async with trio.open_nursery() as nursery:
        gate.hold(0)
        nursery.start_soon(_passing, gate, passed)
        await trio.testing.wait_all_tasks_blocked()
        assert passed == []
        gate.hold(2)
        await trio.testing.wait_all_tasks_blocked()
        assert passed == [0, 1]
        gate.open()
    assert passed == [0, 1, 2, 3]


async def test_an_open_gate_lets_everything_pass() -> None:
    passed: list[int] = []
    await _passing(Gate(), passed)
    assert passed == [0, 1, 2, 3]
