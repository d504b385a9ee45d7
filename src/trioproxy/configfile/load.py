"""From a file, and what the command line says beside it, to a configuration that can be served.

Lives here: reading, the order of the checks, and the checks of what goes together. Does not live here: single values
and keys (decode), and applying a configuration.
"""

from __future__ import annotations

import os
import pathlib
import re
import ssl
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, cast, final

from ..config import SettingError
from ..http1 import head_parser
from ..net import ServerTls, client_context
from ..topology import DEFAULT_POOL
from ..upstream.endpoint import Endpoint
from .decode import Decoder
from .locate import Locations
from .mistakes import ConfigError, Mistake, Path
from .model import FileConfig, UpstreamTlsConfig
from .overrides import Overrides, overridden
from .schema import table_kind
from .watch import Digests, digests

_PLACE_IN_TEXT: Final = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")
_REMEDIES: Final = {
    "Invalid value": 'text stands in quotes: "…"',
    "Expected '=' after a key in a key/value pair": "a setting is written KEY = VALUE",
    "Expected newline or end of document after a statement": "one setting a line",
    "Unterminated string": "a text ends with the quotes that it began with",
    "Illegal character '\\n'": "a text ends, on the same line, with the quotes that it began with",
    "Found invalid character '\\n'": "a text ends, on the same line, with the quotes that it began with",
    "Unclosed array": "a list ends with ]",
    "Invalid statement": "a line is KEY = VALUE, [table] or # comment",
    "Unescaped '\\' in a string": "write '…' around a text with backslashes",
}


@final
class Tls(NamedTuple):
    """What the TLS files of a configuration say."""

    server: ServerTls | None
    upstream: ssl.SSLContext | None
    """None where no endpoint needs one."""
    upstream_said: object
    """Equal to another's if both come from the same keys and the same contents of files."""


@final
@dataclass(frozen=True, slots=True)
class Loaded:
    """A configuration that has been read and checked."""

    config: FileConfig
    tls: Tls
    files: Digests
    """All files that it depends on, itself included, as they were when it was read."""
    hidden: Mapping[Path, str]
    """What stands in the file for values that must not be printed, since they came from the environment or a file."""

    @property
    def shown_endpoints(self) -> tuple[str, ...]:
        """The endpoints, as they may be printed."""
        return tuple(self.hidden.get(path, url) for path, url in self.config.endpoints)

    @property
    def shown_places(self) -> tuple[str, ...]:
        """Where to listen, as it may be printed."""
        places = enumerate(self.config.listen)
        return tuple(self.hidden.get(("listen", number), place.shown) for number, place in places)


def tls_files(tls: UpstreamTlsConfig) -> dict[str, pathlib.Path | None]:
    """The files for TLS to endpoints, by their keys."""
    return {"ca": tls.ca, "key": tls.key, "cert": tls.cert}


def named_files(config: FileConfig) -> set[pathlib.Path]:
    """The certificates and keys that it names."""
    named = {config.tls.cert, config.tls.key, *tls_files(config.upstream_tls).values()}
    return {path for path in named if path is not None}


def load(file: pathlib.Path | None, overrides: Overrides, environ: Mapping[str, str] = os.environ) -> Loaded:
    """Read a configuration and everything that it names.

    :param file: None for the defaults.
    :param overrides: what wins over the file.
    :raises ConfigError: something is wrong, with all of it.
    """
    return _Loading(file, overrides).load(environ)


@final
class _Loading:
    def __init__(self, file: pathlib.Path | None, overrides: Overrides) -> None:
        self._file = file
        self._overrides = overrides
        self._locations = Locations("")
        self._mistakes: list[Mistake] = []
        self._hidden: dict[Path, str] = {}

    def load(self, environ: Mapping[str, str]) -> Loaded:
        config = FileConfig()
        files: set[pathlib.Path] = set()
        if self._file is not None:
            data = self._parse(self._read(self._file))
            decoder = Decoder(self._locations, self._file.parent, environ)
            found = decoder.decode(table_kind(FileConfig), data)
            self._mistakes += decoder.mistakes
            self._raise_mistakes()
            config = cast("FileConfig", found)
            self._hidden = decoder.hidden
            files = decoder.files | {self._file}
        try:
            config = overridden(config, self._overrides)
        except SettingError as error:
            raise self._error([Mistake(0, (), str(error), f"--{error.kind}")]) from None
        for path in [path for path in self._hidden if self._flag(path)]:
            del self._hidden[path]
        self._check(config)
        tls = self._tls(config)
        self._raise_mistakes()
        return Loaded(config, tls, digests(files | named_files(config)), self._hidden)

    def _error(self, mistakes: list[Mistake]) -> ConfigError:
        return ConfigError("" if self._file is None else str(self._file), mistakes)

    def _raise_mistakes(self) -> None:
        if self._mistakes:
            raise self._error(self._mistakes)

    def _flag(self, path: Path) -> str:
        """The flag that a value came with; empty for one of the file."""
        for length in range(1, len(path) + 1):
            if path[:length] in self._overrides:
                return self._overrides[path[:length]].flag
        return ""

    def _mistake(self, path: Path, what: str) -> None:
        self._mistakes.append(Mistake(self._locations.line(path), path, what, self._flag(path)))

    # The text.

    def _read(self, file: pathlib.Path) -> str:
        try:
            data = file.read_bytes()
        except OSError as error:
            raise self._error([Mistake(0, (), f"cannot read it: {error.strerror}")]) from None
        try:
            return data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            raise self._error([Mistake(line, (), "this is not UTF-8; save the file in that encoding")]) from None

    def _parse(self, text: str) -> Mapping[str, object]:
        try:
            data: Mapping[str, object] = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            self._locations = Locations(text)
            raise self._error(self._syntax(text, str(error))) from None
        self._locations = Locations(text)
        return data

    def _syntax(self, text: str, message: str) -> list[Mistake]:
        twice = self._locations.twice
        if twice:
            return [
                Mistake(again.line, again.path, f"given twice, first in line {again.first}; keep one of them")
                for again in twice
            ]
        found = _PLACE_IN_TEXT.search(message)
        last = self._locations.last
        line = (
            int(found[1]) if found and found[1] else self._locations.line(last)
        )  # what ends with the file began there
        said = _PLACE_IN_TEXT.sub("", message)
        remedy = _REMEDIES.get(said)
        path = last if self._locations.lines.get(last, 0) == line else ()
        return [Mistake(line, path, f"not TOML: {said[:1].lower()}{said[1:]}" + (f"; {remedy}" if remedy else ""))]

    # What goes together.

    def _check(self, config: FileConfig) -> None:
        if not config.listen:
            self._mistake(("listen",), 'must have at least one address, such as "127.0.0.1:8080"')
        for number, place in enumerate(config.listen):
            if place in config.listen[:number] and (place.port or not place.host):
                path: Path = ("listen", number)
                self._mistake(path, f"{self._hidden.get(path, place.shown)} is given more than once")
        self._check_routes(config)
        try:
            head_parser(config.settings.codec)
        except ImportError:
            self._mistake(("codec",), "llhttp needs the package httptools, which is not installed; take h11")

    def _check_routes(self, config: FileConfig) -> None:
        most = config.settings.limits.bodies_size
        for name, route in config.routes.items():
            if route.limits.body_size is not None and route.limits.body_size > most:
                what = "must not be above 'bodies_size' in [limits], or a body that is allowed would never find room"
                self._mistake(("routes", name, "limits", "body_size"), what)
        if not self._mistakes:
            self._check_topology(config)

    def _check_topology(self, config: FileConfig) -> None:
        if config.pools and config.upstreams:
            what = "is short for a pool's endpoints, and there are pools"
            self._mistake(("upstreams",), f"{what}; move it to [pools.{DEFAULT_POOL}] as endpoints")
        elif not config.pools and not config.upstreams:
            self._mistake(("upstreams",), 'no endpoint is given; write upstreams = ["http://127.0.0.1:8000"]')
        else:
            for mistake in config.topology.mistakes():
                self._mistake(mistake.path, mistake.what)

    # TLS.

    def _tls(self, config: FileConfig) -> Tls:
        server = upstream = None
        ours, theirs = config.tls, config.upstream_tls
        if ours.cert is not None:
            try:
                server = ServerTls(ours.cert, ours.key)
            except OSError as error:
                self._unusable(error, "tls", {"key": ours.key, "cert": ours.cert})
        elif ours.key is not None:
            self._mistake(("tls", "key"), "needs its certificate: set cert too")
        files = tls_files(theirs)
        if any(files.values()) or any(Endpoint(url).tls for _, url in config.endpoints):
            try:
                upstream = client_context(ca=theirs.ca, cert=theirs.cert, key=theirs.key, verify=theirs.verify)
            except OSError as error:
                self._unusable(error, "upstream_tls", files)
            except ValueError:
                self._mistake(("upstream_tls", "key"), "needs its certificate: set cert too")
        contents = digests({path for path in files.values() if path is not None})
        return Tls(server, upstream, (upstream is None, theirs, contents))

    def _unusable(self, error: OSError, table: str, files: Mapping[str, pathlib.Path | None]) -> None:
        """Note that a TLS file cannot be used, at the key of the one that the error speaks of."""
        told = str(error.strerror or error)
        name = next((name for name, path in files.items() if path is not None and repr(str(path)) in told), "cert")
        for key in files:
            if (table, key) in self._hidden:
                raw = self._hidden[table, key]
                told = f"the file cannot be used as what it is given for; its path comes from {raw!r} and is not shown"
        self._mistake((table, name), told)
