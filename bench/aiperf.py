"""AIPerf as a real client: its streamed chat profile with cancellations, through a proxy to `trioproxy mock`.

``python -m bench.aiperf`` installs AIPerf in an environment of its own if it is not there, starts the mock and the
proxy, runs the profile, and joins AIPerf's records with the mock's by X-Request-Id. The exit status is 1 if they
disagree. What AIPerf cannot know, and what its times of cancelled requests mean, is in README.md.

Lives here: the run and how it is told. Does not live here: what both sides' records mean (`aiperf_records.py`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from typing import Final

import click
import httpx
import msgspec

from bench.aiperf_records import RECORDS, Joined, read_records, read_summary
from bench.environments import NICENESS, Environment, ProgramError, environment
from bench.peers.install import Here
from bench.peers.peer import Address, Peer, PeerError
from bench.peers.registry import PEERS, peers_with
from bench.peers.running import end_on_sigterm, running
from bench.report import status, table, told, verdict, write_json
from trioproxy.bench.mock import RequestRecord

VERSION: Final = "0.13.0"
NEEDS: Final = "about 5 minutes and 1.2 GB"
PROFILE_TIMEOUT: Final = 300.0
SETTLE_TIMEOUT: Final = 5.0
"""Seconds that the mock gets to see the end of its last requests."""
DIRECT: Final = "direct"
"""In the place of a proxy: none."""
_HUB_OFFLINE: Final = ("HF_DATASETS_OFFLINE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
_SHOWN: Final = 4000


def install(target: Environment) -> None:
    target.pip(f"aiperf=={VERSION}")


def profile(target: Environment, port: int, artifacts: Path, options: list[str]) -> None:
    """Run AIPerf's profile to its end; its files are in `artifacts`.

    An exit status above 0 is no failure if there are records: it is 1 too when every request was cancelled.

    :raises ProgramError: it was ended, did not end in time, or wrote no records.
    """
    command = [
        *("nice", "-n", str(NICENESS), str(target.path / "bin" / "aiperf"), "profile"),
        *("--url", f"http://127.0.0.1:{port}", "--model", "mock-model", "--endpoint-type", "chat", "--streaming"),
        *("--tokenizer", str(target.tiny_model()), "--synthetic-input-tokens-mean", "100", "--random-seed", "1"),
        *("--artifact-dir", str(artifacts), "--ui", "none", "--no-server-metrics", "--no-gpu-telemetry"),
        *options,
    ]
    # With one of these set, it refuses a tokenizer that is a path.
    variables = {name: value for name, value in target.variables().items() if name not in _HUB_OFFLINE}
    with tempfile.TemporaryFile() as output:
        with _session(command, variables, output.fileno()) as child, contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(PROFILE_TIMEOUT)
        if child.returncode < 0 or not (artifacts / RECORDS).exists():
            output.seek(0)
            printed = output.read().decode(errors="replace")[-_SHOWN:]
            raise ProgramError(f"AIPerf ended with status {child.returncode}; it printed:\n{printed}")


@contextlib.contextmanager
def _session(command: list[str], variables: dict[str, str], output: int) -> Generator[subprocess.Popen[bytes]]:
    """A program and the services that it starts; whatever is left of them is killed on the way out."""
    child = subprocess.Popen(
        command,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        yield child
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def server_records(port: int) -> list[RequestRecord]:
    """The mock's records, once all of its requests are over or `SETTLE_TIMEOUT` has passed."""
    deadline = time.monotonic() + SETTLE_TIMEOUT
    while True:
        answer = httpx.get(f"http://127.0.0.1:{port}/mock/requests", trust_env=False)
        records = msgspec.json.decode(answer.content, type=list[RequestRecord])
        over = all(record.finished is not None or record.abandoned is not None for record in records)
        if over or time.monotonic() > deadline:
            return records
        time.sleep(0.05)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--requests", default=200, show_default=True, type=click.IntRange(1, 10_000))
@click.option("--concurrency", default=20, show_default=True, type=click.IntRange(min=1))
@click.option("--cancel", default=30.0, show_default=True, type=click.FloatRange(0, 100), help="Percent of requests.")
@click.option("--delay", default=0.3, show_default=True, type=click.FloatRange(min=0), help="Seconds to the cancel.")
@click.option("--tokens", default=50, show_default=True, type=click.IntRange(min=1), help="Of an answer, each 20 ms.")
@click.option("--prefill", default=0.0, show_default=True, type=click.FloatRange(min=0), help="Seconds to the first.")
@click.option("--proxy", default="trioproxy", show_default=True, type=click.Choice([*PEERS, DIRECT]))
@click.option("--serve", default="", metavar="OPTIONS", help="Options for `trioproxy serve`.")
@click.option("--json", "json_path", type=click.Path(path_type=Path, dir_okay=False), help="Keep the counts here.")
def main(
    requests: int,
    concurrency: int,
    cancel: float,
    delay: float,
    tokens: int,
    prefill: float,
    proxy: str,
    serve: str,
    json_path: Path | None,
) -> None:
    """Run AIPerf with cancellations through a proxy, and see whether the model server tells the same of them."""
    end_on_sigterm()
    options = ["--request-count", str(requests), "--concurrency", str(concurrency), "--output-tokens-mean", str(tokens)]
    if cancel:
        options += ["--request-cancellation-rate", str(cancel), "--request-cancellation-delay", str(delay)]

    def mock(listen: Address, _: Address, __: Path) -> list[str]:
        knobs = ["--tokens", str(tokens), "--prefill", str(prefill)]
        return ["-m", "trioproxy", "mock", "--listen", str(listen), *knobs]

    try:
        target = environment(f"aiperf-{VERSION}", install, needs=NEEDS)
        with contextlib.ExitStack() as stack:
            artifacts = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-aiperf-")))
            server = stack.enter_context(running(Peer("mock", Here(), mock), 0)).port
            port = server if proxy == DIRECT else stack.enter_context(running(peers_with(serve)[proxy], server)).port
            profile(target, port, artifacts, options)
            joined = Joined(read_records(artifacts), server_records(server))
            checks = joined.checks(requests, read_summary(artifacts), at_once=delay == 0)
    except (PeerError, ProgramError, msgspec.DecodeError, httpx.HTTPError) as error:
        raise click.ClickException(told(error)) from error
    rows = joined.rows()
    ends = [(ours.value, theirs.value, str(count)) for (ours, theirs), count in joined.pairs().most_common()]
    click.echo(f"AIPerf {VERSION}, {proxy}: {requests} requests, {concurrency} at a time, {cancel:g} % cancelled\n")
    click.echo(table(["", "AIPerf", "mock"], rows))
    click.echo(f"\n{table(['on AIPerf’s side', 'on the mock’s', 'requests'], ends)}\n")
    click.echo(verdict(checks))
    if json_path is not None:
        write_json(json_path, {"proxy": proxy, "counts": rows, "ends": ends}, checks)
    sys.exit(status(checks, required=True))


if __name__ == "__main__":
    main()
