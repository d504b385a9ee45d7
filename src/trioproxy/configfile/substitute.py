"""Values that stand elsewhere: ``${NAME}``, ``${NAME:-default}`` and ``file:PATH``.

Lives here: finding them and putting them in place. Does not live here: hiding them again, which the decoder does with
what is said here about where a text came from.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple, final

_REFERENCE: Final = re.compile(r"\$\$\{|\$\{([^}]*)\}|\$\{")
_NAME: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(:-)?(.*)", re.DOTALL)
_FROM_FILE: Final = "file:"
_LARGEST: Final = 65536


@final
class Resolved(NamedTuple):
    """A text with everything in its place."""

    text: str
    hidden: bool
    """Whether any of it came from the environment or a file: it is not to be printed then."""
    file: Path | None = None
    """The file that it came from."""


def resolve(raw: str, environ: Mapping[str, str], base: Path) -> Resolved:
    """Put values into a text of the file.

    :param base: the folder that a relative path counts from.
    :raises ValueError: a variable is not set, a file cannot be read, or a reference is none. The message has no value.
    """
    hidden = False

    def value_of(found: re.Match[str]) -> str:
        nonlocal hidden
        if found[0] == "$${":
            return "${"
        named = None if found[1] is None else _NAME.fullmatch(found[1])
        if named is None or (named[3] and not named[2]):
            raise ValueError(f'{found[0]!r} is not "${{NAME}}" or "${{NAME:-default}}" ("$${{" is a plain "${{")')
        name, default = named[1], named[3] if named[2] else None
        value = environ.get(name, "")
        if value or (default is None and name in environ):
            hidden = True
            return value
        if default is None:
            raise ValueError(f'the environment variable {name} is not set; set it, or write "${{{name}:-default}}"')
        return default

    text = _REFERENCE.sub(value_of, raw)
    if not raw.startswith(_FROM_FILE):
        return Resolved(text, hidden)
    path = base / text.removeprefix(_FROM_FILE)
    return Resolved(_content(path, raw), hidden=True, file=path)


def _content(path: Path, raw: str) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST + 1)
        if len(data) > _LARGEST:
            raise ValueError(f"{raw!r} has more than {_LARGEST} bytes")
        return data.decode().rstrip("\r\n")
    except OSError as error:
        raise ValueError(f"cannot read {raw!r}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{raw!r} is not UTF-8") from None
    except ValueError as error:
        raise ValueError(str(error).replace("embedded null byte", f"{raw!r} is no path")) from None
