"""Bodies on one ledger, in any order of steps."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from trioproxy import Code, ProxyError
from trioproxy.body import BodyLease, BodyStage, BufferedBody
from trioproxy.ledger import BodyLedger


class Bodies(RuleBasedStateMachine):
    """Bodies on one ledger, in any order of steps: the account is always right."""

    @initialize()
    def start(self) -> None:
        self.ledger = BodyLedger(3000)
        self.bodies: list[tuple[BufferedBody, bytearray]] = []
        self.leases: list[tuple[BodyLease, bytes]] = []

    @rule(expected=st.none() | st.integers(1, 1500))
    def arrives(self, expected: int | None) -> None:
        if len(self.bodies) < 4:
            self.bodies.append((BufferedBody(self.ledger, limit=1000, expected=expected), bytearray()))

    @precondition(lambda self: self.bodies)
    @rule(data=st.data(), size=st.integers(0, 600))
    def receives(self, data: st.DataObject, size: int) -> None:
        body, model = data.draw(st.sampled_from(self.bodies))
        if body.stage is BodyStage.COMPLETE or self._lent(body):
            return
        piece = bytes([size % 251]) * size
        dropped = body.stage in (BodyStage.RELEASED, BodyStage.FAILED)
        refused = None if dropped else self._refusal(body, model, size)
        if refused is None:
            body.push(piece)
            if not dropped:
                model += piece
        else:
            with pytest.raises(ProxyError) as caught:
                body.push(piece)
            assert caught.value.code is refused
            body.fail(caught.value)

    def _refusal(self, body: BufferedBody, model: bytearray, size: int) -> Code | None:
        if len(model) + size > 1000:
            return Code.BODY_TOO_LARGE
        room = self.ledger.limit - self.ledger.held + body.held
        return Code.OVERLOADED if len(model) + size > room else None

    @precondition(lambda self: self.bodies)
    @rule(data=st.data())
    def completes(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.bodies))[0].complete()

    @precondition(lambda self: self.bodies)
    @rule(data=st.data())
    def is_lent(self, data: st.DataObject) -> None:
        body, model = data.draw(st.sampled_from(self.bodies))
        if body.stage is BodyStage.COMPLETE:
            self.leases.append((body.lease("test").__enter__(), bytes(model)))

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def comes_back(self, data: st.DataObject) -> None:
        pair = data.draw(st.sampled_from(self.leases))
        self.leases.remove(pair)
        assert bytes(pair[0].view) == pair[1]
        pair[0].__exit__(None, None, None)

    @precondition(lambda self: self.bodies)
    @rule(data=st.data())
    def is_released(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.bodies))[0].release()

    def _lent(self, body: BufferedBody) -> bool:
        return any(lease._body is body for lease, _ in self.leases)  # pyright: ignore[reportPrivateUsage]

    @invariant()
    def the_account_is_right(self) -> None:
        assert 0 <= self.ledger.held <= self.ledger.limit
        assert self.ledger.held == sum(body.held for body, _ in self.bodies)
        assert self.ledger.violations == 0
        for body, _ in self.bodies:
            if body.stage in (BodyStage.RELEASED, BodyStage.FAILED) and not self._lent(body):
                assert body.held == 0

    def teardown(self) -> None:
        for lease, _ in getattr(self, "leases", []):
            lease.__exit__(None, None, None)
        for body, _ in getattr(self, "bodies", []):
            body.release()
        assert self.ledger.held == 0


TestBodies = Bodies.TestCase
TestBodies.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
