"""``trioproxy bench``: arguments to a plan, a plan to a report, the report to files and an exit status.

Lives here: what is typed and where results go. Does not live here: measuring (referee/), and it imports that only when
a command runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click
from click.core import ParameterSource

from .engine_options import EngineOptions, engine_options, engine_plan
from .memory_cli import memory
from .outputs import FILE, Outputs, output_options, parse_requirements
from .proxies import Proxy, header, proxy_options

_POSITIVE: Final = click.FloatRange(min=0, min_open=True)
_STAGES: Final = ("uploading", "before-head", "early-head", "stall", "mid-stream", "after-last", "whole")
_WAYS: Final = ("fin", "rst", "half-close", "deadline")
_UPSTREAMS: Final = ("stops", "ignores")


@click.group()
def bench() -> None:
    """Judge an HTTP proxy in front of a model server: what it wastes when clients leave, what it holds while they wait.

    The proxy is one that runs already (--proxy URL) and forwards to the address where this tool then plays the model
    server (--upstream-listen HOST:PORT), or a command that is started and stopped (--proxy-cmd). Or it is a gateway in
    front of a real engine, whose metrics are watched (cancel --engine-metrics URL).
    """


@bench.command()
@proxy_options
@click.option("--stage", "stages", type=click.Choice(_STAGES), multiple=True, help="Where to leave. Default: all.")
@click.option("--way", "ways", type=click.Choice(_WAYS), multiple=True, help="How to leave. Default: all.")
@click.option(
    "--upstream", "upstreams", type=click.Choice(_UPSTREAMS), multiple=True, help="At a disconnect. Default: stops."
)
@click.option(
    *("--fraction", "fractions"),
    type=click.FloatRange(0, 1, max_open=True),
    multiple=True,
    default=(0.5,),
    show_default=True,
    help="Of the body, sent before leaving while uploading.",
)
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True, help="Requests of each case.")
@click.option(
    *("--streams", "streams"),
    type=click.IntRange(min=0),
    default=200,
    show_default=True,
    help="Of each mass disconnect; 0 for none.",
)
@click.option(
    "--survivors", type=click.IntRange(min=1), default=20, show_default=True, help="Streams that stay beside them."
)
@click.option(
    *("--slots", "slots"),
    type=click.IntRange(min=0),
    default=200,
    show_default=True,
    help="Requests sent at once before and after, to find lost slots; 0 for none.",
)
@click.option("--drain/--no-drain", default=True, show_default=True, help="See what --proxy-cmd does at SIGTERM.")
@click.option(
    *("--body", "size"), type=click.IntRange(min=1), default=4096, show_default=True, help="Bytes of a request's body."
)
@click.option(
    *("--upload", "upload_size"),
    type=click.IntRange(min=1),
    default=1 << 20,
    show_default=True,
    help="Bytes of the body at the stage uploading.",
)
@click.option("--prefill", type=_POSITIVE, default=0.5, show_default=True, help="Seconds before the first token.")
@click.option("--stall", type=_POSITIVE, default=0.5, show_default=True, help="Seconds without a token.")
@click.option("--interval", type=_POSITIVE, default=0.02, show_default=True, help="Seconds between tokens.")
@click.option("--watch", type=_POSITIVE, default=2.0, show_default=True, help="Seconds until an abort is missed.")
@click.option(
    *("--late", "late_after"), type=_POSITIVE, default=0.25, show_default=True, help="Seconds until an abort is late."
)
@engine_options
@output_options
@click.option("--records", type=FILE, help="Write one JSON line for each request, while the run goes on.")
@click.option("--keep-payloads", is_flag=True, help="Keep request bodies in the records.")
def cancel(
    stages: tuple[str, ...],
    ways: tuple[str, ...],
    upstreams: tuple[str, ...],
    fractions: tuple[float, ...],
    rounds: int,
    streams: int,
    survivors: int,
    slots: int,
    drain: bool,
    size: int,
    upload_size: int,
    prefill: float,
    stall: float,
    interval: float,
    watch: float,
    late_after: float,
    requirements: tuple[str, ...],
    records: Path | None,
    keep_payloads: bool,
    **others: Any,
) -> None:
    """Let clients leave at every stage and in every way, and tell what the model server saw of it."""
    from ..process import raise_file_limit
    from .referee import engine_document
    from .referee.cancel import CancelPlan, CancelRun
    from .referee.cancel_document import document
    from .referee.cases import STAGES, WAYS, Pace, Stage, Upstream, Way, cases
    from .referee.crowd import crowd_cases
    from .referee.engine import EngineRun
    from .referee.engine_report import ENGINE
    from .referee.metrics import CANCEL
    from .running import Progress, conclude

    outputs = Outputs.of(others)
    engine = EngineOptions.of(others)
    required = parse_requirements(requirements, CANCEL if engine.engine_metrics is None else ENGINE)
    proxy = Proxy.of(others, plays_model_server=engine.engine_metrics is None)
    if engine.engine_metrics is not None:
        given = click.get_current_context().get_parameter_source("model") is not ParameterSource.DEFAULT
        chosen = engine_plan(
            engine,
            proxy=proxy.address,
            command=proxy.command,
            stages=stages,
            ways=ways,
            fractions=fractions,
            headers=proxy.headers,
            engine_headers=tuple(map(header, engine.engine_headers)),
            model=proxy.model if given else None,
            count=rounds,
            size=size,
            upload_size=upload_size,
            watch=watch,
            records=records,
            keep_payloads=keep_payloads,
        )
        progress = Progress()
        conclude(EngineRun(chosen, progress), engine_document.document, required, outputs, progress)
    chosen_stages = [Stage(one) for one in stages] or list(STAGES)
    chosen_ways = [Way(one) for one in ways] or list(WAYS)
    plan = CancelPlan(
        cases=cases(
            chosen_stages,
            chosen_ways,
            [Upstream(one) for one in upstreams] or [Upstream.STOPS],
            fractions,
        ),
        proxy=proxy.address,
        command=proxy.command,
        upstream_listen=proxy.upstream_listen,
        headers=proxy.headers,
        model=proxy.model,
        rounds=rounds,
        crowd_cases=crowd_cases(chosen_stages, chosen_ways) if streams else (),
        streams=streams,
        survivors=survivors,
        slots=slots,
        drain=drain,
        size=size,
        upload_size=upload_size,
        pace=Pace(prefill=prefill, stall=stall, interval=interval, watch=watch),
        late_after=late_after,
        records=records,
        keep_payloads=keep_payloads,
    )
    raise_file_limit()
    progress = Progress()
    conclude(CancelRun(plan, progress), document, required, outputs, progress)


bench.add_command(memory)
