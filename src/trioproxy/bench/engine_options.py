"""``trioproxy bench cancel --engine-metrics``: its options, and from them to a plan.

Lives here: what is typed for a gateway in front of a real engine. Does not live here: the options that it shares with
the other kinds of run (cli.py, outputs.py); measuring (referee/engine.py), imported only when it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar
from urllib.parse import urlsplit

import click

if TYPE_CHECKING:
    from .referee.client import Address
    from .referee.engine import EnginePlan

_Command = TypeVar("_Command", bound=Callable[..., Any])


class EngineOptions(NamedTuple):
    """What was typed for a run with a real engine; without ``engine_metrics`` it is none."""

    engine_metrics: str | None
    engine: str | None
    engine_headers: tuple[str, ...]
    shared: bool
    poll: float
    tokens: int | None
    ignore_eos: bool

    @classmethod
    def of(cls, values: dict[str, Any]) -> EngineOptions:
        """From a command's keyword arguments, taking from these what is its own."""
        return cls(*(values.pop(name) for name in cls._fields))


_OPTIONS: Final = (
    click.option(
        "--engine-metrics",
        metavar="URL",
        help="The Prometheus page of a real engine (vLLM, SGLang, llama.cpp) behind --proxy, to be watched instead of"
        " playing the model server.",
    ),
    click.option("--engine", metavar="URL", help="Its API, for a leg without --proxy. Default: where its page is."),
    click.option(
        "--engine-header",
        "engine_headers",
        metavar="'NAME: VALUE'",
        multiple=True,
        help="A further one of requests to it.",
    ),
    click.option("--shared", is_flag=True, help="Go on though others use the engine: figures are then estimates."),
    click.option(
        "--poll",
        type=click.FloatRange(0.01, 1),
        default=0.03,
        show_default=True,
        metavar="SECONDS",
        help="From one look at the page to the next.",
    ),
    click.option(
        "--tokens",
        type=click.IntRange(min=1),
        help="That each request asks the engine for. Default: what lasts longer than --watch.",
    ),
    click.option(
        "--ignore-eos/--no-ignore-eos",
        default=True,
        help="Whether requests to an engine say ignore_eos; some gateways refuse what OpenAI's API does not have.",
    ),
)


def engine_options(command: _Command) -> _Command:
    """Give a command the options of a run with a real engine. See ``EngineOptions.of``."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def engine_plan(
    options: EngineOptions,
    *,
    proxy: Address | None,
    command: Sequence[str] | None,
    stages: Sequence[str],
    ways: Sequence[str],
    fractions: Sequence[float],
    headers: tuple[tuple[str, str], ...],
    engine_headers: tuple[tuple[str, str], ...],
    model: str | None,
    count: int,
    size: int,
    upload_size: int,
    watch: float,
    records: Path | None,
    keep_payloads: bool,
) -> EnginePlan:
    """The plan of a run.

    :raises click.BadParameter: a stage that an engine cannot be brought to, or no URL that can be used.
    """
    from .referee.cases import WAYS, Stage, Way, cases
    from .referee.engine import EnginePlan
    from .referee.engine_play import ENGINE_STAGES

    assert options.engine_metrics is not None
    chosen = [Stage(one) for one in stages] or list(ENGINE_STAGES)
    for stage in chosen:
        if stage not in ENGINE_STAGES:
            raise click.BadParameter(f"a real engine cannot be brought to {stage.value!r}", param_hint="--stage")
    page = urlsplit(options.engine_metrics)
    if page.scheme not in ("http", "https") or not page.hostname:
        raise click.BadParameter(
            f"{options.engine_metrics!r} is not a URL such as http://127.0.0.1:8000/metrics",
            param_hint="--engine-metrics",
        )
    return EnginePlan(
        cases=cases(chosen, [Way(one) for one in ways] or WAYS, fractions=fractions),
        metrics_url=options.engine_metrics,
        direct=_direct(options, engine_headers),
        proxy=proxy,
        command=command,
        headers=headers,
        engine_headers=engine_headers,
        model=model,
        count=count,
        size=size,
        upload_size=upload_size,
        watch=watch,
        poll=options.poll,
        tokens=options.tokens,
        ignore_eos=options.ignore_eos,
        shared=options.shared,
        records=records,
        keep_payloads=keep_payloads,
    )


def _direct(options: EngineOptions, headers: tuple[tuple[str, str], ...]) -> Address | None:
    """The engine's own API: as it was typed, else where its page is, if that is plain HTTP."""
    from .referee.target import parse_url

    page = urlsplit(options.engine_metrics or "")
    url = options.engine or (f"http://{page.netloc.rpartition('@')[2]}" if page.scheme == "http" else None)
    if url is None:
        return None
    try:
        return parse_url(url, headers)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--engine") from None
