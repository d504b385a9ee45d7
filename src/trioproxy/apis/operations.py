"""What a request asks for, told by its method and path: which operation of which API.

Lives here: the table of operations, and what follows from each. Does not live here: what the bodies say (``fields``,
``usage``), or where a request goes.

The table has what model servers serve for inference: vLLM 0.32, SGLang 0.5, llama.cpp's server, and OpenAI's and
Anthropic's own APIs where somebody may stand behind the proxy who speaks them. What steers a server (``/pause``,
``/abort_requests``, ``/update_weights``, ``/flush_cache``, ``/sleep``, ``/v1/load_lora_adapter``, ``/slots``, ...) is
left out on purpose: only what is in the table is open by default, and it has whole paths, never prefixes, since
``/inference/v1/abort_requests`` stands beside ``/inference/v1/generate``.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, final


@final
class Api(enum.Enum):
    """Whose conventions a client goes by, errors above all."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"


@final
class Form(enum.Enum):
    """Under which names a JSON body has its fields."""

    __hash__ = object.__hash__

    CHAT = "chat"
    """Chat and completions of OpenAI."""
    RESPONSES = "responses"
    PLAIN = "plain"
    """A ``model`` and a ``user`` and nothing to generate: embeddings, rerank, score, images."""
    BATCH = "batch"
    MESSAGES = "messages"
    """Of Anthropic."""
    GENERATE = "generate"
    """SGLang's ``/generate`` and vLLM's, with their ``sampling_params``."""
    LLAMA = "llama"
    """llama.cpp's own, with ``n_predict``."""


@final
class State(enum.Enum):
    """What an operation has to do with things that only the endpoint knows that made them."""

    CREATES = "creates"
    """The ``id`` at the top of its response names such a thing."""
    NAMES = "names"
    """Its path does (:func:`named_in`)."""
    LISTS = "lists"
    """Each endpoint would list its own."""


@final
@dataclass(frozen=True, slots=True)
class Operation:
    """One thing that clients ask for."""

    name: str
    """For logs and metrics, such as ``openai.chat``."""
    api: Api = Api.OPENAI
    form: Form | None = None
    """How the fields of the body are named; None where nobody reads them: it has none, or is not JSON (multipart)."""
    open: bool = True
    """Whether anybody may ask for it by default: inference and what belongs to it."""
    reports: bool = False
    """Whether its responses may say what they cost."""
    state: State | None = None
    stream_options: bool = False
    """Whether a stream reports its usage only if ``stream_options`` ask for it."""

    @property
    def reads(self) -> bool:
        """Whether the proxy reads the fields of the body."""
        return self.form is not None


OTHER: Final = Operation("other", open=False)
"""Whatever nobody knows."""
_PREFLIGHT: Final = Operation("preflight")
"""What a browser asks of an operation before it asks for it (CORS)."""

_CHAT: Final = Operation("openai.chat", form=Form.CHAT, reports=True, stream_options=True)
_RESPONSES: Final = Operation("openai.responses", form=Form.RESPONSES, reports=True, state=State.CREATES)
_EMBEDDINGS: Final = Operation("openai.embeddings", form=Form.PLAIN, reports=True)
_LLAMA_COMPLETION: Final = Operation("llama.completion", form=Form.LLAMA, reports=True)
_LLAMA_EMBEDDING: Final = Operation("llama.embedding", form=Form.PLAIN)
_RERANK: Final = Operation("rerank", form=Form.PLAIN, reports=True)
_SCORE: Final = Operation("score", form=Form.PLAIN, reports=True)
_CLASSIFY: Final = Operation("classify", form=Form.PLAIN, reports=True)
_TOKENIZE: Final = Operation("tokenize", form=Form.PLAIN)
_DETOKENIZE: Final = Operation("detokenize", form=Form.PLAIN)

_POSTS: Final[dict[bytes, Operation]] = {
    b"/v1/chat/completions": _CHAT,
    b"/chat/completions": _CHAT,
    b"/v1/chat/completions/batch": Operation("vllm.chat_batch", form=Form.CHAT, reports=True),
    b"/v1/chat/completions/input_tokens": Operation("llama.chat_input_tokens", form=Form.PLAIN),
    b"/v1/completions": Operation("openai.completions", form=Form.CHAT, reports=True, stream_options=True),
    b"/v1/responses": _RESPONSES,
    b"/responses": _RESPONSES,
    b"/v1/responses/input_tokens": Operation("openai.responses_input_tokens", form=Form.PLAIN),
    b"/v1/embeddings": _EMBEDDINGS,
    b"/v1/moderations": Operation("openai.moderations", form=Form.PLAIN),
    b"/v1/audio/transcriptions": Operation("openai.transcriptions", reports=True),
    b"/v1/audio/translations": Operation("openai.translations", reports=True),
    b"/v1/audio/speech": Operation("openai.speech", form=Form.PLAIN),
    b"/v1/images/generations": Operation("openai.image_generations", form=Form.PLAIN, reports=True),
    b"/v1/images/edits": Operation("openai.image_edits", reports=True),
    b"/v1/images/variations": Operation("openai.image_variations", reports=True),
    b"/v1/files": Operation("openai.files_create", state=State.CREATES),
    b"/v1/batches": Operation("openai.batches_create", form=Form.BATCH, state=State.CREATES),
    b"/v1/messages": Operation("anthropic.messages", Api.ANTHROPIC, Form.MESSAGES, reports=True),
    b"/v1/messages/count_tokens": Operation("anthropic.count_tokens", Api.ANTHROPIC, Form.PLAIN),
    b"/v1/rerank": _RERANK,
    b"/v2/rerank": _RERANK,
    b"/rerank": _RERANK,
    b"/v1/reranking": _RERANK,
    b"/reranking": _RERANK,
    b"/v1/score": _SCORE,
    b"/score": _SCORE,
    b"/v1/classify": _CLASSIFY,
    b"/classify": _CLASSIFY,
    b"/pooling": Operation("vllm.pooling", form=Form.PLAIN, reports=True),
    b"/v2/embed": Operation("vllm.cohere_embed", form=Form.PLAIN),
    b"/cohere/v2/chat": Operation("vllm.cohere_chat", form=Form.CHAT),
    b"/generative_scoring": Operation("vllm.generative_scoring", form=Form.PLAIN, reports=True),
    b"/v1/systemone": Operation("vllm.structured_decisions", form=Form.PLAIN, reports=True),
    b"/inference/v1/generate": Operation("vllm.generate", form=Form.GENERATE, reports=True),
    b"/generate": Operation("generate", form=Form.GENERATE, reports=True),
    b"/encode": Operation("sglang.encode", form=Form.PLAIN, reports=True),
    b"/completion": _LLAMA_COMPLETION,
    b"/completions": _LLAMA_COMPLETION,
    b"/infill": Operation("llama.infill", form=Form.LLAMA, reports=True),
    b"/embedding": _LLAMA_EMBEDDING,
    b"/embeddings": _LLAMA_EMBEDDING,
    b"/tokenize": _TOKENIZE,
    b"/v1/tokenize": _TOKENIZE,
    b"/detokenize": _DETOKENIZE,
    b"/v1/detokenize": _DETOKENIZE,
}
_GETS: Final[dict[bytes, Operation]] = {
    b"/v1/models": Operation("openai.models"),
    b"/v1/files": Operation("openai.files_list", state=State.LISTS),
    b"/v1/batches": Operation("openai.batches_list", state=State.LISTS),
}
_OPERATIONS: Final[dict[tuple[bytes, bytes], Operation]] = {
    **{(b"POST", path): operation for path, operation in _POSTS.items()},
    **{(method, path): operation for method in (b"GET", b"HEAD") for path, operation in _GETS.items()},
    **{(b"OPTIONS", path): _PREFLIGHT for path in _POSTS | _GETS},
}


def _named(name: str) -> Operation:
    return Operation(name, state=State.NAMES)


_RETRIEVE: Final = replace(_named("openai.responses_retrieve"), reports=True)
_OF_NAMED: Final[dict[tuple[bytes, bytes, bytes], Operation]] = {
    (b"GET", b"responses", b""): _RETRIEVE,
    (b"HEAD", b"responses", b""): _RETRIEVE,
    (b"DELETE", b"responses", b""): _named("openai.responses_delete"),
    (b"POST", b"responses", b"/cancel"): _named("openai.responses_cancel"),
    (b"GET", b"responses", b"/input_items"): _named("openai.responses_input_items"),
    (b"GET", b"files", b""): _named("openai.files_retrieve"),
    (b"DELETE", b"files", b""): _named("openai.files_delete"),
    (b"GET", b"files", b"/content"): _named("openai.files_content"),
    (b"GET", b"batches", b""): _named("openai.batches_retrieve"),
    (b"POST", b"batches", b"/cancel"): _named("openai.batches_cancel"),
}
"""By method, kind and what follows the id."""
_MODEL: Final = Operation("openai.model")
_MODEL_METHODS: Final = frozenset({b"GET", b"HEAD"})
_MODELS: Final = b"/v1/models/"
_named_path: Final = re.compile(rb"/v1/(responses|files|batches)/([^/]+)(/[a-z_]+)?").fullmatch


def operation_of(method: bytes, path: bytes) -> Operation:
    """The operation that a request asks for; ``OTHER``, which is not open, if it is in no table.

    :param path: decoded, without the query string (:func:`trioproxy.http1.route_of`). It is compared as it is: another
        case, a trailing slash or a parameter (``;``) is another path, as it is to the model servers.
    """
    operation = _OPERATIONS.get((method, path))
    if operation is not None:
        return operation
    if not path.startswith(b"/v1/"):
        return OTHER
    if path.startswith(_MODELS) and len(path) > len(_MODELS):  # the names of models have slashes
        return _MODEL if method in _MODEL_METHODS else _PREFLIGHT if method == b"OPTIONS" else OTHER
    match = _named_path(path)
    if match is None:
        return OTHER
    kind, _, rest = match.groups(b"")
    if method == b"OPTIONS" and any(known[1:] == (kind, rest) for known in _OF_NAMED):
        return _PREFLIGHT
    return _OF_NAMED.get((method, kind, rest), OTHER)


def documented() -> str:
    """All of them as a table in Markdown: method and path, name, fields, usage, state."""
    rows = [
        "| request | name | fields | usage | state |",
        "|---|---|---|---|---|",
        *(_row(f"POST {path.decode()}", operation) for path, operation in _POSTS.items()),
        *(_row(f"GET {path.decode()}", operation) for path, operation in _GETS.items()),
        _row("GET /v1/models/{model}", _MODEL),
        *(
            _row(f"{method.decode()} /v1/{kind.decode()}/{{id}}{rest.decode()}", operation)
            for (method, kind, rest), operation in _OF_NAMED.items()
            if method != b"HEAD"
        ),
    ]
    return "\n".join(rows) + "\n"


def _row(request: str, operation: Operation) -> str:
    form = "" if operation.form is None else operation.form.value
    state = "" if operation.state is None else operation.state.value
    usage = "yes" if operation.reports else ""
    return f"| `{request}` | `{operation.name}` | {form} | {usage} | {state} |".replace("  ", " ")


def api_of(path: bytes) -> Api:
    """By whose conventions a client goes that asks for this path, open or not."""
    return Api.ANTHROPIC if path.startswith(b"/v1/messages") else Api.OPENAI


def named_in(path: bytes) -> str | None:
    """The id that a path names, for an operation whose state is ``NAMES``; None if it cannot be one.

    :param path: as for :func:`operation_of`.
    """
    match = _named_path(path)
    if match is None or not match[2].isascii():
        return None
    return match[2].decode("ascii")


def open_paths() -> Iterable[str]:
    """The whole paths that are open by default, those that name something aside."""
    return sorted({path.decode() for _, path in _OPERATIONS})


def is_open(path: str) -> bool:
    """Whether a path is open by default, for any method."""
    return any(operation_of(method, path.encode()).open for method in (b"GET", b"POST", b"DELETE"))
