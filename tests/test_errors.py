"""The table of errors, and the JSON in which a client reads one."""

from __future__ import annotations

import json

import pytest

from trioproxy import Code, Fault, Outcome, ProxyError
from trioproxy.apis.operations import Api
from trioproxy.apis.refusal import refusal
from trioproxy.errors import RULES
from trioproxy.record import outcome_of


def test_every_code_has_a_rule_and_a_name_of_its_own() -> None:
    assert RULES.keys() == set(Code)
    assert len({code.value for code in Code}) == len(Code)


@pytest.mark.parametrize("code", Code)
def test_a_rule_makes_sense(code: Code) -> None:
    rule = RULES[code]
    error = ProxyError(code, "what was wrong")
    assert (error.status, error.fault, error.retryable) == rule
    assert str(error) == error.message == "what was wrong"
    match rule.fault:
        case Fault.CLIENT:
            assert 400 <= rule.status < 500 or rule.status in (501, 505, 508)
            assert not rule.retryable
        case Fault.UPSTREAM:
            assert rule.status in (502, 503, 504)
        case Fault.PROXY:
            assert rule.status in (500, 503)
    if rule.retryable:
        assert rule.status in (503, 504)


@pytest.mark.parametrize("code", Code)
def test_an_error_has_the_outcome_of_its_fault(code: Code) -> None:
    outcome = outcome_of(ProxyError(code, "x"))
    assert outcome not in (Outcome.COMPLETED, Outcome.CLIENT_CLOSED, Outcome.DRAINED)
    if code.value.endswith("_timeout") or code is Code.UPSTREAM_VANISHED:
        waited_for_client = code is Code.REQUEST_TIMEOUT
        assert outcome is (Outcome.CLIENT_STALLED if waited_for_client else Outcome.UPSTREAM_TIMEOUT)
    elif RULES[code].fault is Fault.UPSTREAM:
        assert outcome is Outcome.UPSTREAM_ERROR
    else:
        assert outcome is (Outcome.INTERNAL_ERROR if code is Code.INTERNAL else Outcome.REFUSED)


@pytest.mark.parametrize("code", Code)
@pytest.mark.parametrize("message", ["plain", 'quotes " and \\', "\r\nX: y", "\x00\x1b[31m", "☃"])
def test_what_a_client_reads(code: Code, message: str) -> None:
    fields, body = refusal(ProxyError(code, message, param="model", retry_after=3), "an-id", Api.OPENAI)
    assert body.isascii() or "☃" in message
    assert not any(byte < 0x20 for byte in body)
    error = json.loads(body)["error"]
    assert error.keys() == {"message", "type", "code", "param", "request_id"}
    assert error["message"] == message
    assert (error["code"], error["param"], error["request_id"]) == (code.value, "model", "an-id")
    assert error["type"].endswith("_error")
    assert (b"retry-after", b"3") in fields
    assert (b"x-request-id", b"an-id") in fields
    assert (b"content-type", b"application/json") in fields


def test_what_is_not_known_is_not_said() -> None:
    fields, body = refusal(ProxyError(Code.BAD_REQUEST, "x"), "an-id", Api.OPENAI)
    assert not [name for name, _ in fields if name == b"retry-after"]
    assert json.loads(body)["error"]["param"] is None


@pytest.mark.parametrize("code", Code)
def test_what_a_client_of_anthropic_reads(code: Code) -> None:
    fields, body = refusal(ProxyError(code, "plain"), "an-id", Api.ANTHROPIC)
    said = json.loads(body)
    assert said.keys() == {"type", "error", "request_id"}
    assert (said["type"], said["request_id"], said["error"]["message"]) == ("error", "an-id", "plain")
    assert said["error"]["type"] in {
        *("invalid_request_error", "authentication_error", "permission_error", "not_found_error", "request_too_large"),
        *("rate_limit_error", "api_error", "overloaded_error", "timeout_error"),
    }
    assert (b"request-id", b"an-id") in fields


@pytest.mark.parametrize("code", Code)
def test_a_client_is_told_whether_to_come_again(code: Code) -> None:
    """What the SDKs would repeat, they repeat only if that can help: see ``refusal``."""
    rule = RULES[code]
    fields = dict(refusal(ProxyError(code, "x"), "an-id", Api.OPENAI)[0])
    if rule.retryable:
        assert b"x-should-retry" not in fields
        assert (b"retry-after" in fields) is (rule.status in (429, 503))
    else:
        assert b"retry-after" not in fields
        assert (fields.get(b"x-should-retry") == b"false") is (rule.status in (408, 409, 429) or rule.status >= 500)
