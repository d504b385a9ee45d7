"""Reading configurations from text, for tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from trioproxy.configfile import ConfigError, Loaded, Overrides, load


def write(folder: Path, text: str) -> Path:
    """A file with this text."""
    file = folder / "trioproxy.toml"
    file.write_text(text)
    return file


def loaded(
    folder: Path, text: str, overrides: Overrides | None = None, environ: Mapping[str, str] | None = None
) -> Loaded:
    """What the text says."""
    return load(write(folder, text), overrides or {}, environ or {})


def mistakes(
    folder: Path, text: str, overrides: Overrides | None = None, environ: Mapping[str, str] | None = None
) -> list[str]:
    """What is told of the text, a line each; without the folder."""
    try:
        loaded(folder, text, overrides, environ)
    except ConfigError as error:
        return str(error).replace(f"{folder}/", "").split("\n")
    return []
