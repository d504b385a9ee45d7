"""Where the reports of ``trioproxy bench`` go: the terminal, and files of four forms.

Lives here: the options that all commands share, and writing. Does not live here: what a report says or looks like
(referee/), which is imported only when a command runs.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import click

if TYPE_CHECKING:
    from .referee.document import Document
    from .referee.metrics import Definition
    from .referee.report import Report
    from .referee.require import Requirement


class _NewFile(click.Path):
    """A file that can be written at the end of a run, as far as that can be told before it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        if not path.parent.is_dir():
            self.fail(f"there is no directory {path.parent}", param, ctx)
        return path


FILE: Final = _NewFile(dir_okay=False, path_type=Path)
_Command = TypeVar("_Command", bound=Callable[..., Any])


class Outputs(NamedTuple):
    """Where a report goes besides the terminal; ``-`` is standard output, which then has nothing else.

    :param label: what the proxy is called in the reports.
    """

    json: Path | None
    junit: Path | None
    markdown: Path | None
    html: Path | None
    label: str

    @classmethod
    def of(cls, values: dict[str, Any]) -> Outputs:
        """From a command's keyword arguments, taking from these what is its own."""
        return cls(*(values.pop(name) for name in ("json", "junit", "markdown", "html", "label")))


_OPTIONS: Final = (
    click.option("--label", default="", metavar="TEXT", help="What the proxy is called in reports: name and version."),
    click.option("--require", "requirements", metavar="'NAME==NUMBER'", multiple=True, help="Exit with 1 if it fails."),
    click.option("--json", type=FILE, help="Write the report as JSON; - is standard output, here and below."),
    click.option("--junit", type=FILE, help="Write it as JUnit XML."),
    click.option("--markdown", type=FILE, help="Write it as Markdown, ready to paste into a bug report."),
    click.option("--html", type=FILE, help="Write it as one HTML page with plots."),
)


def output_options(command: _Command) -> _Command:
    """Give a command ``--label``, ``--require`` and the files. See ``Outputs.of``."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def parse_requirements(texts: Iterable[str], definitions: Iterable[Definition]) -> list[Requirement]:
    """What ``--require`` asks for.

    :raises click.BadParameter: one is no condition on one of these figures.
    """
    from .referee.require import Requirement

    names = [definition.name for definition in definitions]
    try:
        return [Requirement.parse(text, names) for text in texts]
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--require") from None


def options() -> dict[str, object]:
    """What was typed, so that a report can be had again."""
    return {"command": shlex.join(["trioproxy", *sys.argv[1:]])}


def emit(report: Report, document: Document, outputs: Outputs) -> None:
    """Write all files, then print what a terminal shows, unless standard output was taken for a file.

    :raises click.ClickException: a file cannot be written; the others are, and the terminal has its table.
    """
    import msgspec

    from .referee import html, junit, markdown, text

    forms: tuple[tuple[Path | None, Callable[[], bytes]], ...] = (
        (outputs.json, lambda: msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n"),
        (outputs.junit, lambda: junit.render(document)),
        (outputs.markdown, lambda: markdown.render(document).encode("utf-8", "replace")),
        (outputs.html, lambda: html.render(document)),
    )
    taken = any(str(path) == "-" for path, _ in forms)
    # Where standard output is a file's, errors still have to be seen.
    click.echo(text.render(document), err=taken)
    failed: list[str] = []
    for path, render in forms:
        if path is None:
            continue
        try:
            _put(path, render())
        except OSError as error:
            failed.append(f"cannot write {path}: {error.strerror}")
    if failed:
        raise click.ClickException("\n".join(failed))


def _put(path: Path, document: bytes) -> None:
    if str(path) == "-":
        sys.stdout.buffer.write(document)
        sys.stdout.buffer.flush()
    else:
        path.write_bytes(document)
