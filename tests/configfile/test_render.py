"""The complete file: it has every key, says the defaults, and any configuration written so is read as it was."""

from __future__ import annotations

import math
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trioproxy import Deadlines, Limits, Settings
from trioproxy.configfile import FileConfig, Place, render, table_kind
from trioproxy.configfile.decode import Decoder
from trioproxy.configfile.locate import Locations
from trioproxy.configfile.model import PoolConfig, TlsConfig, UpstreamTlsConfig
from trioproxy.configfile.schema import MapKind, TableKind

DOCS = Path(__file__).parents[2] / "docs"


def decoded(text: str) -> object:
    """What a text says, before it is checked what goes together."""
    decoder = Decoder(Locations(text), Path(), {})
    found = decoder.decode(table_kind(FileConfig), tomllib.loads(text))
    assert decoder.mistakes == []
    return found


def keys(kind: TableKind, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Every key of the types."""
    found: list[tuple[str, ...]] = []
    for key in kind.all_keys().values():
        if isinstance(key.kind, TableKind):
            found += keys(key.kind, (*path, key.name))
        elif isinstance(key.kind, MapKind):
            found += keys(key.kind.item, (*path, key.name, "default"))
        else:
            found.append((*path, key.name))
    return found


def test_the_defaults_are_the_defaults() -> None:
    assert decoded(render(FileConfig())) == FileConfig()


def test_every_key_of_the_types_is_in_it_and_is_explained() -> None:
    text = render(FileConfig())
    assert len(keys(table_kind(FileConfig))) > 25
    # The examples of what has no default are right, too.
    whole = re.sub(r"^#(?=[\[a-z])", "", text, flags=re.MULTILINE)
    lines = Locations(whole).lines
    for path in keys(table_kind(FileConfig)):
        above = whole.split("\n")[lines[path] - 2]
        assert above.startswith("# "), f"{path} has no docstring"
    assert {path for path in lines if path[-1] != 0} >= set(keys(table_kind(FileConfig)))
    decoded(whole)


def test_the_documentation_has_it() -> None:
    assert f"```toml\n{render(FileConfig())}```" in (DOCS / "configuration.md").read_text()


def test_what_a_file_cannot_hold_is_refused_when_the_types_are_read() -> None:
    @dataclass
    class Wrong:
        value: complex = 0j

    @dataclass
    class Needy:
        value: int

    for make in (Wrong, Needy):
        with pytest.raises(TypeError):
            table_kind(make)


# Any configuration

SECONDS = st.floats(min_value=1e-3, max_value=1e9).map(lambda number: round(number, 6)) | st.just(math.inf)
WORDS = st.text(alphabet=st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12)
PATHS = st.none() | WORDS.map(lambda word: Path("/") / word.strip("/.")).filter(
    lambda path: not str(path).startswith("//")
)
URLS = st.lists(
    st.sampled_from(["http://a", "https://[::1]:8", "unix:/run/${x}", "unix:/a\"b'c", "1.2.3.4:80", "unix:/é#="])
).map(tuple)
PLACES = st.lists(
    st.sampled_from(["systemd", ":80", "[::1]:81", "unix:/run/$${a}", "unix:x y", "localhost:0"]).map(Place.parse)
).map(tuple)


SIZES = st.integers(min_value=1, max_value=1 << 40)
DEADLINES = [name for name in table_kind(Deadlines).keys if name != "vanished"]


@st.composite
def deadlines(draw: st.DrawFn) -> Deadlines:
    found = {name: draw(SECONDS) for name in DEADLINES}
    return Deadlines(**found, vanished=draw(st.floats(min_value=4, max_value=32767)))


@st.composite
def limits(draw: st.DrawFn) -> Limits:
    body = draw(SIZES)
    return Limits(
        head_size=draw(SIZES),
        head_fields=draw(SIZES),
        target_size=draw(SIZES),
        body_size=body,
        bodies_size=body + draw(SIZES),
    )


CONFIGS = st.builds(
    FileConfig,
    listen=PLACES.filter(bool),
    upstreams=URLS,
    settings=st.builds(
        Settings,
        deadlines=deadlines(),
        limits=limits(),
        body=st.sampled_from(["auto", "buffer", "stream"]),
        client_half_close=st.sampled_from(["cancel", "allow"]),
        codec=st.sampled_from(["llhttp", "h11"]),
        resolve_interval=SECONDS,
    ),
    tls=st.builds(TlsConfig, cert=PATHS, key=PATHS),
    upstream_tls=st.builds(UpstreamTlsConfig, ca=PATHS, cert=PATHS, key=PATHS, verify=st.booleans()),
    pools=st.dictionaries(WORDS, st.builds(PoolConfig, endpoints=URLS), max_size=3),
)


@given(CONFIGS)
@settings(max_examples=200, deadline=None)
def test_any_configuration_is_read_as_it_was_written(config: FileConfig) -> None:
    assert decoded(render(config)) == config
