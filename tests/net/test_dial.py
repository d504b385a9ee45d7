"""Happy Eyeballs: which address wins, when the next is tried, and that nothing is left open."""

from __future__ import annotations

import socket
from typing import final

import pytest
import trio
from trio.testing import MockClock

from network import connection
from trioproxy.net import Address, dial
from trioproxy.transport import Transport


def address(name: str) -> Address:
    family = socket.AF_INET6 if ":" in name else socket.AF_INET
    return Address(family, (name, 80))


@final
class Dialled:
    """A network whose addresses answer after so many seconds, or refuse, or keep silent."""

    def __init__(self, **answers: float | OSError | None) -> None:
        self._answers = {name.replace("_", ":"): answer for name, answer in answers.items()}
        self.tried: list[tuple[float, str]] = []
        self.opened: dict[str, Transport] = {}

    async def connect(self, where: Address) -> Transport:
        name = str(where.sockaddr[0])
        self.tried.append((trio.current_time(), name))
        answer = self._answers[name]
        if isinstance(answer, OSError):
            raise answer
        await trio.sleep(float("inf") if answer is None else answer)
        self.opened[name], _ = connection(name)
        return self.opened[name]

    @property
    def open(self) -> set[str]:
        """The addresses whose connections are open."""
        return {name for name, transport in self.opened.items() if not transport.closed}


REFUSED = OSError("refused")


@pytest.mark.parametrize(
    ("names", "answers", "winner", "tried"),
    [
        (["a"], {"a": 9.0}, "a", [(0, "a")]),
        (["a", "b"], {"a": 0.2, "b": 0.0}, "a", [(0, "a")]),
        (["a", "b"], {"a": 0.3, "b": 0.0}, "b", [(0, "a"), (0.25, "b")]),
        (["a", "b"], {"a": 0.3, "b": 0.1}, "a", [(0, "a"), (0.25, "b")]),
        (["a", "b"], {"a": REFUSED, "b": 0.1}, "b", [(0, "a"), (0, "b")]),
        (["a", "b", "c"], {"a": None, "b": REFUSED, "c": 5.0}, "c", [(0, "a"), (0.25, "b"), (0.25, "c")]),
        # The families in turn, beginning with the one that the resolver put first (RFC 8305 section 4).
        (
            ["_1", "_2", "a", "b"],
            {"_1": None, "_2": None, "a": None, "b": 0.0},
            "b",
            [(0, ":1"), (0.25, "a"), (0.5, ":2"), (0.75, "b")],
        ),
    ],
)
async def test_the_first_to_answer_wins(
    names: list[str],
    answers: dict[str, float | OSError | None],
    winner: str,
    tried: list[tuple[float, str]],
    autojump_clock: MockClock,
) -> None:
    network = Dialled(**answers)
    start = trio.current_time()
    transport = await dial([address(name.replace("_", ":")) for name in names], network.connect)
    assert transport is network.opened[winner]
    assert [(round(when - start, 6), name) for when, name in network.tried] == tried
    assert network.open == {winner}


async def test_when_none_can_be_reached_it_says_why(autojump_clock: MockClock) -> None:
    network = Dialled(a=REFUSED, b=OSError("no route"))
    with pytest.raises(OSError, match="no route"):
        await dial([address("a"), address("b")], network.connect)


@pytest.mark.parametrize("after", [step / 100 for step in range(0, 160, 2)])
async def test_cancelled_at_any_moment_it_leaves_nothing_open(after: float, autojump_clock: MockClock) -> None:
    network = Dialled(a=0.5, b=0.8, c=REFUSED, d=1.0)
    with trio.move_on_after(after):
        transport = await dial([address(name) for name in "abcd"], network.connect)
        transport.close()
    assert network.open == set()


async def test_two_that_answer_at_once_leave_one_open(autojump_clock: MockClock) -> None:
    network = Dialled(a=0.5, b=0.25)
    transport = await dial([address("a"), address("b")], network.connect)
    assert network.open == {name for name, opened in network.opened.items() if opened is transport}
