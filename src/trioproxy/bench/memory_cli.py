"""``trioproxy bench memory``: its arguments to a plan, the plan to a report and an exit status.

Lives here: what is typed. Does not live here: measuring (referee/memory.py), which is imported only when the command
runs.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click

from .outputs import FILE, Outputs, output_options, parse_requirements
from .proxies import Proxy, proxy_options

_POSITIVE: Final = click.FloatRange(min=0, min_open=True)
_COUNT: Final = click.IntRange(min=1)
_UNITS: Final = {None: 1, "K": 2**10, "M": 2**20, "G": 2**30}


def size(text: str) -> int:
    """Read a number of bytes: ``4096``, ``512K``, ``4MiB``.

    :raises click.BadParameter: it is none.
    """
    match = re.fullmatch(r"([0-9]{1,12})(?:([KMG])(?:iB)?|B)?", text)
    if match is None:
        raise click.BadParameter(f"{text!r} is no number of bytes, such as 4096, 512K or 4MiB")
    return int(match[1]) * _UNITS[match[2]]


@click.command()
@proxy_options
@click.option("--pid", type=_COUNT, help="Of the proxy that runs already: the root of its processes.")
@click.option(
    "--size",
    "sizes",
    metavar="BYTES",
    type=size,
    multiple=True,
    help="Of bodies, several times. Default: 4K, 512K, 4M.",
)
@click.option("--streams", type=_COUNT, help="Held at a time. Default: 50.")
@click.option("--rounds", type=click.IntRange(min=0), help="Of the search for leaks, 0 for none. Default: 8.")
@click.option("--requests", "each", type=_COUNT, help="Of each round. Default: 250.")
@click.option(
    "--unread", "flood", metavar="BYTES", type=size, help="Bytes sent to a client that does not read. Default: 64M."
)
@click.option("--hold", type=_POSITIVE, metavar="SECONDS", help="For which it does not. Default: 3.")
@click.option("--settle", type=_POSITIVE, metavar="SECONDS", help="Before memory is read. Default: 1.")
@click.option("--after", type=_POSITIVE, metavar="SECONDS", help="The same, when streams have ended. Default: 3.")
@click.option("--quick", is_flag=True, help="Half a minute: fewer streams, fewer and shorter rounds, shorter waits.")
@output_options
@click.option("--records", type=FILE, help="Write one JSON line for each request, while the run goes on.")
@click.option("--keep-payloads", is_flag=True, help="Keep request bodies in the records.")
def memory(
    pid: int | None,
    sizes: tuple[int, ...],
    quick: bool,
    requirements: tuple[str, ...],
    records: Path | None,
    keep_payloads: bool,
    **others: Any,
) -> None:
    """Tell what a proxy's processes hold of streams in flight, and what they keep for good. Linux only.

    A proxy that runs already (--proxy) needs its --pid and is measured as it is; --proxy-cmd starts a fresh process for
    each body size.
    """
    from ..process import raise_file_limit
    from .referee.memory import QUICK, MemoryPlan, MemoryRun
    from .referee.memory_document import document
    from .referee.memory_metrics import MEMORY
    from .referee.memory_samples import unsupported
    from .running import Progress, conclude

    outputs = Outputs.of(others)
    proxy = Proxy.of(others)
    required = parse_requirements(requirements, MEMORY)
    why = unsupported()
    if why is not None:
        raise click.ClickException(f"bench memory cannot work here: {why}")
    if (proxy.address is None) != (pid is None):
        raise click.UsageError("--proxy needs the proxy's --pid, whose memory is read, and --proxy-cmd has its own")
    if 0 in sizes:
        raise click.BadParameter("a body has at least 1 byte", param_hint="--size")
    plan = MemoryPlan(
        proxy=proxy.address,
        pid=pid,
        command=proxy.command,
        upstream_listen=proxy.upstream_listen,
        headers=proxy.headers,
        model=proxy.model,
        records=records,
        keep_payloads=keep_payloads,
    )
    plan = replace(plan, **QUICK) if quick else plan
    plan = replace(plan, **{name: value for name, value in others.items() if value is not None})
    plan = replace(plan, sizes=sizes) if sizes else plan
    raise_file_limit()
    progress = Progress()
    conclude(MemoryRun(plan, progress), document, required, outputs, progress)
