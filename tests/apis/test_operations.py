"""Which paths are known, which are open, and what follows from each."""

from __future__ import annotations

from pathlib import Path

import pytest

from trioproxy.apis.operations import OTHER, Api, Form, State, documented, named_in, operation_of

DOCS = Path(__file__).parents[2] / "docs" / "apis.md"

STEERING = (
    "/pause /resume /abort_requests /inference/v1/abort_requests /update_weights /start_weight_update "
    "/sleep /wake_up /reset_prefix_cache /collective_rpc /server_info /scale_elastic_ep "
    "/fault_tolerance/apply /start_profile /stop_profile /v1/load_lora_adapter /v1/unload_lora_adapter "
    "/tokenizer_info /flush_cache /abort_request /pause_generation /update_weights_from_disk "
    "/configure_logging /open_session /set_internal_state /get_server_info /slots /slots/0 /props "
    "/lora-adapters /models/load /v1/chat/completions/control /metrics /health /docs /openapi.json "
    "/invocations /"
)


@pytest.mark.parametrize("method", [b"GET", b"POST", b"PUT", b"DELETE", b"OPTIONS", b"HEAD"])
@pytest.mark.parametrize("path", STEERING.split())
def test_what_steers_a_server_is_not_open(method: bytes, path: str) -> None:
    assert operation_of(method, path.encode()) is OTHER
    assert not OTHER.open


@pytest.mark.parametrize(
    ("method", "path", "name", "form"),
    [
        (b"POST", b"/v1/chat/completions", "openai.chat", Form.CHAT),
        (b"POST", b"/v1/completions", "openai.completions", Form.CHAT),
        (b"POST", b"/v1/responses", "openai.responses", Form.RESPONSES),
        (b"POST", b"/v1/embeddings", "openai.embeddings", Form.PLAIN),
        (b"POST", b"/v1/audio/transcriptions", "openai.transcriptions", None),
        (b"POST", b"/v1/images/edits", "openai.image_edits", None),
        (b"POST", b"/v1/messages", "anthropic.messages", Form.MESSAGES),
        (b"POST", b"/v1/messages/count_tokens", "anthropic.count_tokens", Form.PLAIN),
        (b"POST", b"/v2/rerank", "rerank", Form.PLAIN),
        (b"POST", b"/inference/v1/generate", "vllm.generate", Form.GENERATE),
        (b"POST", b"/generate", "generate", Form.GENERATE),
        (b"POST", b"/completion", "llama.completion", Form.LLAMA),
        (b"POST", b"/infill", "llama.infill", Form.LLAMA),
        (b"GET", b"/v1/models", "openai.models", None),
        (b"GET", b"/v1/models/meta-llama/Llama-3", "openai.model", None),
        (b"OPTIONS", b"/v1/chat/completions", "preflight", None),
        (b"OPTIONS", b"/v1/responses/resp_1/cancel", "preflight", None),
    ],
)
def test_inference_is_open(method: bytes, path: bytes, name: str, form: Form | None) -> None:
    operation = operation_of(method, path)
    assert operation.open
    assert (operation.name, operation.form, operation.reads) == (name, form, form is not None)
    assert (operation.api is Api.ANTHROPIC) == name.startswith("anthropic.")


@pytest.mark.parametrize(
    "path",
    [
        b"/v1/chat/completions/",
        b"/V1/chat/completions",
        b"/v1/chat/completions;x=1",
        b"/v1/chat/completions/render",
        b"/v1/models/",
        b"/v1/responses/",
        b"/v1/responses/a/b/cancel",
        b"/v1/responses/a/steer",
        b"v1/chat/completions",
        b"*",
        b"",
    ],
)
def test_another_spelling_is_another_path(path: bytes) -> None:
    assert operation_of(b"POST", path) is OTHER
    assert operation_of(b"GET", path) is OTHER
    assert operation_of(b"OPTIONS", path) is OTHER


@pytest.mark.parametrize("path", [b"/v1/chat/completions", b"/generate", b"/v1/files/f/content", b"/v1/models/m"])
def test_another_method_is_not_open(path: bytes) -> None:
    assert operation_of(b"PUT", path) is OTHER
    assert operation_of(b"PATCH", path) is OTHER
    assert operation_of(b"post", path) is OTHER


@pytest.mark.parametrize(
    ("method", "path", "state", "named"),
    [
        (b"POST", b"/v1/responses", State.CREATES, None),
        (b"POST", b"/v1/files", State.CREATES, None),
        (b"POST", b"/v1/batches", State.CREATES, None),
        (b"GET", b"/v1/files", State.LISTS, None),
        (b"GET", b"/v1/batches", State.LISTS, None),
        (b"GET", b"/v1/responses/resp_1", State.NAMES, "resp_1"),
        (b"DELETE", b"/v1/responses/resp_1", State.NAMES, "resp_1"),
        (b"POST", b"/v1/responses/resp_1/cancel", State.NAMES, "resp_1"),
        (b"GET", b"/v1/responses/resp_1/input_items", State.NAMES, "resp_1"),
        (b"GET", b"/v1/files/file-1/content", State.NAMES, "file-1"),
        (b"POST", b"/v1/batches/batch_1/cancel", State.NAMES, "batch_1"),
        (b"POST", b"/v1/chat/completions", None, None),
    ],
)
def test_state(method: bytes, path: bytes, state: State | None, named: str | None) -> None:
    operation = operation_of(method, path)
    assert operation.open
    assert operation.state is state
    assert named_in(path) == named


def test_an_id_that_is_not_ascii_is_none() -> None:
    assert named_in("/v1/responses/é".encode()) is None


def test_the_documentation_has_them() -> None:
    page = DOCS.read_text()
    assert f"<!-- operations -->\n\n{documented()}\n## " in page
    rows = [line.split("`")[1].split() for line in documented().splitlines()[2:]]
    assert len(rows) > 50
    for method, path in rows:
        assert operation_of(method.encode(), path.replace("{", "").replace("}", "").encode()).open


@pytest.mark.parametrize("form", Form)
def test_the_documentation_has_each_form(form: Form) -> None:
    assert f"\n| {form.value} | `model` |" in DOCS.read_text()
