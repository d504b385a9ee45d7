"""Pages of engines: which engine wrote them, and what they say."""

from __future__ import annotations

import pytest

from trioproxy.bench.referee.engine_metrics import ENGINES, EngineError, detect, read

VLLM = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a, \\"b\\""} 3.0
vllm:num_requests_running{engine="1",model_name="a, \\"b\\""} 1.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="m"} 1.2e+03
# TYPE vllm:generation_tokens_created gauge
vllm:generation_tokens_created{engine="0",model_name="m"} 1.7e+09
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="m"} 99.0
# TYPE vllm:request_success_total counter
vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} 4.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="m"} 5.0
vllm:request_success_total{engine="0",finished_reason="abort",model_name="m"} 7.0
vllm:num_requests_waiting_by_reason{reason="capacity"} 50
process_open_fds 1
"""
SGLANG_FRESH = """\
# HELP sglang:num_running_reqs The number of running requests.
# TYPE sglang:num_running_reqs gauge
"""
SGLANG = """\
sglang:num_running_reqs{model_name="m"} 2
sglang:num_queue_reqs{model_name="m"} 1
sglang:generation_tokens_total{model_name="m"} 10
sglang:realtime_tokens_total{mode="decode",model_name="m"} 30
sglang:realtime_tokens_total{mode="prefill_compute",model_name="m"} 5
"""
LLAMA = """\
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 1
llamacpp:requests_deferred 2
llamacpp:tokens_predicted_total 34
llamacpp:n_decode_total 40
"""


def test_vllm_summed_over_engines_and_without_its_namesakes() -> None:
    engine = detect(VLLM)
    sample = read(engine, VLLM, 1.0, 2.0)
    assert (engine.name, sample.running, sample.waiting, sample.busy) == ("vLLM", 4, 2, 6)
    assert (sample.tokens, sample.work, sample.finished) == (1200, (1200, 99), 9)
    assert (sample.asked, sample.at) == (1.0, 2.0)


def test_sglang_before_its_first_request_and_after() -> None:
    engine = detect(SGLANG_FRESH)
    assert (engine.name, read(engine, SGLANG_FRESH, 0, 0).busy) == ("SGLang", 0)
    sample = read(detect(SGLANG), SGLANG, 0, 0)
    assert (sample.busy, sample.tokens, sample.steps, sample.finished) == (3, 10, 35, None)


def test_llama() -> None:
    engine = detect(LLAMA)
    sample = read(engine, LLAMA, 0, 0)
    assert (engine.name, engine.live, sample.busy, sample.work) == ("llama.cpp", False, 3, (34, 40))


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ("", "no metrics of an engine that is known: vLLM"),
        ("process_open_fds 1\nhttp_requests_total 3\n", "--enable-metrics"),
        ("vllm:generation_tokens_total 3\n", "vLLM's page, but it has no vllm:num_requests_running"),
        ("<html>not found</html>", "no metrics of an engine"),
    ],
)
def test_pages_of_no_engine(page: str, said: str) -> None:
    with pytest.raises(EngineError, match=said):
        detect(page)


@pytest.mark.parametrize("line", ['vllm:num_requests_running{a="b 1', "vllm:num_requests_running many"])
def test_a_line_that_is_none(line: str) -> None:
    with pytest.raises(EngineError, match="text format"):
        read(ENGINES[0], line + "\n", 0, 0)
