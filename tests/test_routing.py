"""Which requests are let in, and which way they take."""

from __future__ import annotations

import re
from urllib.parse import unquote

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from links import CHOSEN
from opened import opened
from script import OK, OK_HEARD, Conversation, Peer, conversation, message, post
from trioproxy import Deadlines, PoolSpec, ProxyError, RouteSpec, Settings, Topology
from trioproxy.apis.operations import open_paths
from trioproxy.config import Health
from trioproxy.errors import Code
from trioproxy.http1 import HeadLimits, RequestHead, default_parser, head_parser, read_request_head
from trioproxy.net import connect
from trioproxy.routing import Router
from trioproxy.topology import TopologyError
from trioproxy.upstream.group import Groups

LIMITS = HeadLimits(size=65536, fields=100, target=8192)
POOLS = {name: PoolSpec(endpoints=(f"http://{name}",)) for name in ("default", "small", "large")}


def head(target: str, method: str = "POST") -> RequestHead:
    raw = f"{method} {target} HTTP/1.1\r\nHost: a\r\n\r\n".encode("latin-1")
    return read_request_head(raw, head_parser(default_parser()), LIMITS)


def router(topology: Topology) -> Router:
    topology.check()
    groups = Groups(connect)
    groups.replace(
        {name: pool.endpoints for name, pool in topology.pools.items()}, keep_alive=4, tls=None, health=Health()
    )
    return Router(topology, groups.by_name, Settings(), {})


def refused(target: str, method: str = "POST", topology: Topology | None = None) -> Code | None:
    """The code of the refusal; None if it is let in."""
    try:
        router(topology or Topology.of(["http://a"])).match(head(target, method))
    except ProxyError as error:
        return error.code
    return None


# ---- open paths


@pytest.mark.parametrize("path", open_paths())
def test_inference_is_open(path: str) -> None:
    assert None in {refused(path, method) for method in ("GET", "POST")}
    assert refused(path, "OPTIONS") is None


@pytest.mark.parametrize(
    "path",
    [
        *("/pause", "/resume", "/abort_requests", "/update_weights", "/update_weights_from_disk", "/flush_cache"),
        *("/sleep", "/wake_up", "/start_profile", "/v1/load_lora_adapter", "/collective_rpc", "/metrics", "/slots"),
        *("/server_info", "/health", "/inference/v1/abort_requests", "/", "/v1", "/v1/", "/docs", "/openapi.json"),
    ],
)
def test_what_steers_an_engine_is_closed_however_it_is_spelled(path: str) -> None:
    spelled = [
        path,
        path.upper() if path.upper() != path else path,
        f"/{path}",
        f"{path}/",
        f"{path};v=1",
        f"{path}?x=/v1/models",
        path.replace("a", "%61", 1),
        "".join(f"%{ord(c):02x}" if c != "/" else c for c in path),
        f"/v1/models/..{path}",
        f"/v1/models/%2e%2e{path}",
        f"/v1/models/..;{path}",
        f"/v1/models/..;x=1{path}",
        f"/v1/models/%252e%252e{path}",
        f"/v1/models/..%2f{path[1:]}",
        f"/v1/models/..%5c{path[1:]}",
        f"/v1/chat/completions/..{path}",
        f"/.{path}",
        f"/v1/models\\..\\{path[1:]}",
        f"/v1/models/%00/..{path}",
        f"http://a{path}",
    ]
    for target in spelled:
        for method in ("GET", "POST", "DELETE", "PUT"):
            assert refused(target, method) in (Code.PATH_NOT_ALLOWED, Code.BAD_REQUEST), (method, target)


def upstreams_view(target: str) -> set[str]:
    """What servers of all kinds may make of a target: decoded once or twice, with parameters or without, and with dot
    segments, backslashes and double slashes taken out."""
    found: set[str] = set()
    path = target.partition("?")[0]
    for decoded in (path, unquote(path), unquote(unquote(path))):
        for bare in (decoded, re.sub(r";[^/]*", "", decoded)):
            for slashed in (bare, bare.replace("\\", "/")):
                kept: list[str] = []
                for segment in slashed.split("/"):
                    if segment == "..":
                        del kept[-1:]
                    elif segment not in ("", "."):
                        kept.append(segment)
                found.add("/" + "/".join(kept))
    return found


PIECES = [
    "/",
    "//",
    "..",
    ".",
    "%2e",
    "%2E%2e",
    "%2f",
    "%5c",
    "\\",
    ";",
    ";a=b",
    "%00",
    "%252e",
    "%25",
    "pause",
    "%70ause",
]


@given(st.lists(st.sampled_from(PIECES), max_size=9))
def test_nothing_that_is_closed_is_reached_through_what_is_open(pieces: list[str]) -> None:
    target = "/" + "".join(pieces)
    try:
        code = refused(target, "GET", Topology.of(["http://a"], allow_paths=["/my/*"]))
    except AssertionError:
        return
    if code is None:
        assert all(view.startswith(("/v1/models", "/my")) for view in upstreams_view(target)), target


def test_allow_paths_opens_what_it_names_and_no_more() -> None:
    some = Topology.of(["http://a"], allow_paths=["/version", "/my/*"])
    for path in ("/version", "/my/", "/my/own/api", "/version?x=1"):
        assert refused(path, "GET", some) is None
    for path in ("/version/", "/versions", "/my", "/My/x", "/pause"):
        assert refused(path, "GET", some) is Code.PATH_NOT_ALLOWED
    for path in ("/", "/pause", "/a%20b", "*"):
        assert refused(path, "OPTIONS", opened("http://a")) is None


def test_the_refusal_says_what_to_do() -> None:
    with pytest.raises(ProxyError, match="allow_paths") as caught:
        router(Topology.of(["http://a"])).match(head("/pa%FCse" + 300 * "x"))
    assert caught.value.status == 404
    assert "POST /pa" in caught.value.message
    assert len(caught.value.message) < 400


# ---- routes


def routed(*routes: RouteSpec) -> Router:
    return router(Topology(pools=POOLS, routes=routes))


def test_the_first_route_that_fits_takes_a_request() -> None:
    way = routed(
        RouteSpec(name="embed", paths=("/v1/embeddings",), pool="small"),
        RouteSpec(name="large", models=("llama-70b", "qwen-*-72b*"), pool="large"),
        RouteSpec(name="audio", paths=("/v1/audio/*",), pool="small"),
        RouteSpec(name="rest"),
    )
    for path, model, name in (
        ("/v1/embeddings", "llama-70b", "embed"),
        ("/v1/chat/completions", "llama-70b", "large"),
        ("/v1/chat/completions", "qwen-2-72b", "large"),
        ("/v1/chat/completions", "qwen-2-72b-it", "large"),
        ("/v1/chat/completions", "qwen-2-7b", "rest"),
        ("/v1/chat/completions", "LLAMA-70B", "rest"),
        ("/v1/chat/completions", "llama-70b\n", "rest"),
        ("/v1/chat/completions", None, "rest"),
        ("/v1/audio/speech", "x", "audio"),
    ):
        route = way.match(head(path)).choose(model)
        assert (route.name, route.group.members[0].pool.endpoint.host) == (
            name,
            {"embed": "small", "large": "large", "audio": "small", "rest": "default"}[name],
        )


def test_a_model_that_no_route_takes() -> None:
    way = routed(RouteSpec(name="large", models=("llama*",)))
    match = way.match(head("/v1/chat/completions"))
    for model, said in (("gpt", "the model 'gpt' does not exist"), (None, "must name a model")):
        with pytest.raises(ProxyError, match=said) as caught:
            match.choose(model)
        assert caught.value.code is Code.MODEL_NOT_FOUND
        assert caught.value.status == 404
    with pytest.raises(ProxyError, match="no route takes it"):
        routed(RouteSpec(name="embed", paths=("/v1/embeddings",))).match(head("/v1/completions"))


@pytest.mark.parametrize(
    ("topology", "said"),
    [
        (Topology(pools={}), "at least one upstream"),
        (Topology(pools={"a": PoolSpec(endpoints=())}), "at least one upstream"),
        (Topology(pools=POOLS), "there are several"),
        (Topology(pools=POOLS, routes=(RouteSpec(name="a", pool="smal"),)), "did you mean 'small'"),
        (Topology(pools=POOLS, routes=(RouteSpec(name="a"), RouteSpec(name="b", models=("x",)))), "before it takes"),
        (Topology(pools=POOLS, routes=(RouteSpec(name="a", paths=("/pause",)),)), "add it to allow_paths"),
        (Topology(pools=POOLS, routes=(RouteSpec(name="a", paths=("/my/*",)),)), "add it to allow_paths"),
        (Topology.of(["http://a"], allow_paths=["x"]), "must be a path"),
    ],
)
def test_what_does_not_fit_together(topology: Topology, said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        topology.check()
    assert isinstance(caught.value, TopologyError) or said == "must be a path"


def reconfigure(talk: Conversation, topology: Topology) -> None:
    """Give it these pools and routes."""
    talk.proxy.reconfigure(topology, settings=Settings(codec=CHOSEN.codec), upstream_tls=talk.link.upstream_tls)


async def reached(talk: Conversation, host: str) -> Peer:
    """The model server there, to which the proxy has connected."""
    await wait_all_tasks_blocked()
    return talk.answering(host)


def completion(model: str) -> str:
    """A request for a model."""
    return post(f'{{"model":"{model}"}}', "/v1/completions")


async def test_routes_have_pools_and_deadlines_of_their_own(autojump_clock: MockClock) -> None:
    async with conversation(upstreams=2) as talk:
        patient = Settings(deadlines=Deadlines(first_byte=900), codec=CHOSEN.codec)
        pools = {
            "default": PoolSpec(endpoints=(talk.link.url("10.0.0.1"),)),
            "slow": PoolSpec(endpoints=(talk.link.url("10.0.0.2"),)),
        }
        slow = RouteSpec(name="slow", pool="slow", models=("slow",), settings=patient)
        reconfigure(talk, Topology(pools=pools, routes=(slow, RouteSpec(name="rest"))))
        client = await talk.client()
        await client.says(completion("slow"))
        await (await reached(talk, "10.0.0.2")).takes()
        await trio.sleep(899)
        await client.hears_nothing()
        await talk.answering("10.0.0.2").says(OK)
        await client.hears(OK_HEARD)
        await client.says(completion("other"))
        upstream = await reached(talk, "10.0.0.1")
        await upstream.takes()
        await trio.sleep(599)
        await client.hears_nothing()
        await trio.sleep(2)
        await upstream.hears_end()
        await client.hears_refusal(504, "first_byte_timeout", closes=False)


async def test_requests_outlive_the_pool_that_they_came_for(autojump_clock: MockClock) -> None:
    async with conversation(upstreams=2) as talk:
        client = await talk.client()
        await client.says(message("POST /v1/completions HTTP/1.1", "Host: a", "Content-Length: 2", body="{"))
        await wait_all_tasks_blocked()
        reconfigure(talk, Topology(pools={"new": PoolSpec(endpoints=(talk.link.url("10.0.0.2"),))}))
        await client.says("}")
        await (await reached(talk, "10.0.0.1")).takes()
        await talk.answering("10.0.0.1").says(OK)
        await client.hears(OK_HEARD)
        await talk.answering("10.0.0.1").hears_end()
        await client.says(completion("x"))
        await (await reached(talk, "10.0.0.2")).takes()
        await talk.answering("10.0.0.2").says(OK)
        await client.hears(OK_HEARD)


async def test_a_closed_path_is_refused_before_its_body(autojump_clock: MockClock) -> None:
    async with conversation() as talk:
        reconfigure(talk, Topology.of([talk.link.url("10.0.0.1")]))
        client = await talk.client()
        await client.says(message("POST /pause HTTP/1.1", "Host: a", "Content-Length: 1000000"))
        assert "allow_paths" in await client.hears_refusal(404, "path_not_allowed")
