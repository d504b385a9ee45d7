"""Who owns a request when: what a phase that has moved says, what survives, and what it costs."""

from __future__ import annotations

import inspect
import timeit
from dataclasses import dataclass

import pytest

from trioproxy import ForwardingPhase, RequestPhase, ResponseView, UseAfterMove
from trioproxy.apis.fields import BodyState, RequestFields
from trioproxy.body import BufferedBody, StreamedBody
from trioproxy.http1 import NO_BODY, RequestHead
from trioproxy.ledger import BodyLedger
from trioproxy.upstream.endpoint import Endpoint

HEAD = RequestHead(b"POST", b"/v1/completions", True, [], NO_BODY, True, False, b"a", False)
FIELDS = RequestFields("a-model", True, 10, "somebody", BodyState.READ)
ENDPOINT = Endpoint("http://127.0.0.1:1")
KEPT = {"request_id", "model", "stream", "max_output_tokens", "token_count", "endpoint"}
"""What the response phase may see. A field that is added to a request is not here unless somebody decides so."""


def held() -> BufferedBody:
    body = BufferedBody(BodyLedger(1000), limit=1000, expected=None)
    body.push(b"prompt")
    body.complete()
    return body


def moved_to_forwarding() -> RequestPhase:
    phase = RequestPhase("id", HEAD, held(), FIELDS)
    phase.forward_to(ENDPOINT)
    return phase


def moved_to_response() -> ForwardingPhase:
    phase = RequestPhase("id", HEAD, held(), FIELDS).forward_to(ENDPOINT)
    phase.responded()
    return phase


def owned(phase: type) -> list[str]:
    """Everything that a phase owns, by reflection: a slot that is added later is covered."""
    slots: tuple[str, ...] = vars(phase)["__slots__"]
    return [name for name in slots if name != "moved_to"]


# Moving


def test_everything_moves_on() -> None:
    body = held()
    request = RequestPhase("id", HEAD, body, FIELDS)
    forwarding = request.forward_to(ENDPOINT)
    assert (forwarding.request_id, forwarding.head, forwarding.fields) == ("id", HEAD, FIELDS)
    assert forwarding.body is body
    assert forwarding.endpoint is ENDPOINT
    assert body.held
    view = forwarding.responded(token_count=7)
    assert not body.held
    assert (view.request_id, view.model, view.stream, view.max_output_tokens) == ("id", "a-model", True, 10)
    assert (view.token_count, view.endpoint) == (7, ENDPOINT)


def test_another_endpoint_can_be_chosen_before_the_response() -> None:
    forwarding = RequestPhase("id", HEAD, held(), FIELDS).forward_to(ENDPOINT)
    other = Endpoint("http://127.0.0.1:2")
    forwarding.reassign(other)
    assert forwarding.responded().endpoint is other


@pytest.mark.parametrize("attribute", owned(RequestPhase))
def test_a_request_that_was_forwarded_says_where_it_went(attribute: str) -> None:
    expected = f"^RequestPhase.{attribute} was used after the request had moved to ForwardingPhase$"
    with pytest.raises(UseAfterMove, match=expected):
        getattr(moved_to_forwarding(), attribute)


@pytest.mark.parametrize("attribute", owned(ForwardingPhase))
def test_a_request_that_was_answered_says_where_it_went(attribute: str) -> None:
    expected = f"^ForwardingPhase.{attribute} was used after the request had moved to ResponseView$"
    with pytest.raises(UseAfterMove, match=expected):
        getattr(moved_to_response(), attribute)


def test_the_methods_of_a_phase_that_has_moved() -> None:
    with pytest.raises(UseAfterMove, match=r"RequestPhase\.request_id .* moved to ForwardingPhase"):
        moved_to_forwarding().forward_to(ENDPOINT)
    with pytest.raises(UseAfterMove, match=r"RequestPhase\.body .* moved to ForwardingPhase"):
        moved_to_forwarding().lend_body("somebody")
    with pytest.raises(UseAfterMove, match=r"ForwardingPhase\..* moved to ResponseView"):
        moved_to_response().responded()
    with pytest.raises(UseAfterMove, match=r"ForwardingPhase\..* moved to ResponseView"):
        moved_to_response().reassign(ENDPOINT)


@pytest.mark.parametrize("phase", [RequestPhase("id", HEAD, held(), FIELDS), moved_to_forwarding()])
def test_what_a_phase_never_had_is_told_from_what_it_had(phase: RequestPhase) -> None:
    with pytest.raises(AttributeError, match="'RequestPhase' object has no attribute 'bdoy'"):
        getattr(phase, "bdoy")  # noqa: B009 - the checkers would refuse phase.bdoy
    assert not hasattr(phase, "__deepcopy__")


# Reading the body


def test_a_body_is_lent_by_lease() -> None:
    with RequestPhase("id", HEAD, held(), FIELDS).lend_body("a tokenizer") as lease:
        assert bytes(lease.view) == b"prompt"


def test_a_lease_outlives_the_move_and_delays_the_release() -> None:
    body = held()
    request = RequestPhase("id", HEAD, body, FIELDS)
    with request.lend_body("a straggler") as lease:
        request.forward_to(ENDPOINT).responded()
        assert bytes(lease.view) == b"prompt"
        assert body.held
    assert not body.held


def test_a_streamed_body_cannot_be_lent() -> None:
    body = StreamedBody(BodyLedger(1), limit=1, expected=None, resume=lambda: None)
    with pytest.raises(TypeError, match="never held whole"):
        RequestPhase("id", HEAD, body, FIELDS).lend_body("somebody")


# What is left


def response_view() -> ResponseView:
    return RequestPhase("id", HEAD, held(), FIELDS).forward_to(ENDPOINT).responded()


def test_the_response_phase_has_exactly_what_is_on_the_list() -> None:
    public = {name for name in dir(ResponseView) if not name.startswith("_")}
    assert public == KEPT
    assert set(vars(ResponseView)["__slots__"]) == {f"_{name}" for name in KEPT}
    assert set(inspect.signature(ResponseView).parameters) == KEPT
    assert not hasattr(response_view(), "__dict__")


@pytest.mark.parametrize("name", sorted(KEPT))
def test_the_response_phase_cannot_be_changed(name: str) -> None:
    view = response_view()
    with pytest.raises(AttributeError):
        setattr(view, name, None)
    with pytest.raises(AttributeError):
        delattr(view, name)
    with pytest.raises(AttributeError):
        setattr(view, "more", None)  # noqa: B010 - the checkers would refuse view.more


def test_the_response_phase_keeps_only_small_values() -> None:
    view = response_view()
    for name in KEPT:
        assert isinstance(getattr(view, name), str | bool | int | None | Endpoint)
    assert repr(view) == "<ResponseView id model='a-model' stream=True <Endpoint http://127.0.0.1:1>>"


# Cost


@dataclass(frozen=True, slots=True)
class _Five:
    request_id: str
    model: str
    stream: bool
    max_output_tokens: int
    token_count: int | None


def test_moving_through_the_phases_costs_little(capsys: pytest.CaptureFixture[str]) -> None:
    """Under 2 µs a request on an idle machine; asserted against making one frozen dataclass in the same run."""
    body = held()
    body.release()  # a release is idempotent, so that one body serves for all

    def move() -> None:
        RequestPhase("id", HEAD, body, FIELDS).forward_to(ENDPOINT).responded()

    def baseline() -> None:
        _Five("id", "a-model", True, 10, None)

    number = 20_000
    cost = min(timeit.repeat(move, number=number, repeat=7)) / number * 1e6
    unit = min(timeit.repeat(baseline, number=number, repeat=7)) / number * 1e6
    with capsys.disabled():
        print(
            f"\nphases: {cost:.2f} µs a request, {cost / unit:.1f} × a frozen dataclass of five fields ({unit:.2f} µs)"
        )
    assert cost < 4 * unit
