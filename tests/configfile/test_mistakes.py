"""Wrong configurations: each message names the line, the key, what is wrong and the remedy."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from certificates import write_files
from trioproxy.configfile import ConfigError, Override, Overrides, load

from .loading import loaded, mistakes

UP = 'upstreams = ["http://a"]\n'
WRONG = Path(__file__).with_name("wrong.txt")
"""Files, each with the messages that it gets."""
CASES = [case.strip("\n").partition("--> ") for case in WRONG.read_text().split(20 * "=")]


@pytest.mark.parametrize(("text", "told"), [(text, told.split("\n--> ")) for text, _, told in CASES])
def test_one_mistake(text: str, told: list[str], tmp_path: Path) -> None:
    write_files(tmp_path)
    assert mistakes(tmp_path, text) == [f"trioproxy.toml{':' if line[0].isdigit() else ': '}{line}" for line in told]


def test_there_are_many_kinds_of_mistakes() -> None:
    assert len(CASES) > 50


def test_all_mistakes_at_once_in_the_order_of_their_lines(tmp_path: Path) -> None:
    text = """\
listen = ["80", ":80"]
lisen = 5
upstreams = ["http://a", "${NONE}"]
[deadlines]
idle = 5
idel = "1s"
[limits]
body_size = "1Mb"
"""
    lines = [line.split(": ")[0:2] for line in mistakes(tmp_path, text)]
    assert lines == [
        ["trioproxy.toml:1", "listen[0]"],
        ["trioproxy.toml:2", "lisen"],
        ["trioproxy.toml:3", "upstreams[1]"],
        ["trioproxy.toml:5", "deadlines.idle"],
        ["trioproxy.toml:6", "deadlines.idel"],
        ["trioproxy.toml:8", "limits.body_size"],
    ]


def test_files_that_are_none(tmp_path: Path) -> None:
    file = tmp_path / "trioproxy.toml"
    assert mistakes(tmp_path, "") != []
    file.write_bytes(b'body = "auto"\n# \xff\n')
    with pytest.raises(ConfigError, match=r"trioproxy.toml:2: this is not UTF-8; save the file in that encoding$"):
        load(file, {}, {})
    file.unlink()
    with pytest.raises(ConfigError, match=r"trioproxy.toml: cannot read it: No such file or directory$"):
        load(file, {}, {})
    file.write_bytes("\ufeffupstreams = ['http://a']".encode())
    assert load(file, {}, {}).config.upstreams == ("http://a",)


# What the command line says


def test_a_flag_wins_and_is_named_when_it_is_wrong(tmp_path: Path) -> None:
    text = UP + "[deadlines]\nidle = '5s'\nhead = '1s'\n[limits]\nbody_size = '2MiB'"
    config = loaded(tmp_path, text, {("deadlines", "idle"): Override("--deadline", 7.0)}).config
    assert (config.settings.deadlines.idle, config.settings.deadlines.head) == (7, 1)
    upstreams: Overrides = {
        ("upstreams",): Override("--upstream", ("http://b",)),
        ("pools",): Override("--upstream", {}),
    }
    assert loaded(tmp_path, "[pools.default]\nendpoints = ['http://a']", upstreams).config.topology.endpoints == (
        "http://b",
    )
    assert mistakes(tmp_path, text, {("tls", "cert"): Override("--tls-cert", tmp_path / "no")}) == [
        "--tls-cert: cannot read 'no': No such file or directory"
    ]
    assert mistakes(tmp_path, text, {("limits", "bodies_size"): Override("--limit", 5)}) == [
        "--limit: limit 'bodies_size' must not be below 'body_size', "
        "or a body that is allowed would never find room, got 5"
    ]


# Values that must not be printed


SECRET = "s3cr3t-value"
KEYS = (
    "body",
    "codec",
    "resolve_interval",
    "upstreams",
    "listen",
    "deadlines.vanished",
    "limits.body_size",
    "tls.cert",
)


SOURCES = ("${VAR}", "x${VAR}", "${NO:-}${VAR}")


@pytest.mark.parametrize(
    ("key", "source"),
    [*itertools.product(KEYS, SOURCES), *((key, "file:secret") for key in KEYS if key != "tls.cert")],
)
def test_what_comes_from_elsewhere_is_in_no_message(key: str, source: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(SECRET + "\n")
    table, _, name = key.rpartition(".")
    value = f"['{source}']" if name in ("upstreams", "listen") else f"'{source}'"
    text = (UP if name != "upstreams" else "") + (f"[{table}]\n" if table else "") + f"{name} = {value}"
    told = "\n".join(mistakes(tmp_path, text, environ={"VAR": SECRET}))
    assert f"{key}" in told
    assert "is not shown" in told
    assert source in told
    assert SECRET not in told


def test_nor_in_what_goes_together(tmp_path: Path) -> None:
    told = mistakes(tmp_path, UP + "[deadlines]\nvanished = '${VAR}'", environ={"VAR": "3.21s"})
    assert told == ["trioproxy.toml:3: deadlines.vanished: must be from 4 to 32767 s, or inf"]
    told = mistakes(tmp_path, UP + "listen = ['${VAR}', '${VAR}']", environ={"VAR": "10.9.8.7:1"})
    assert told == ["trioproxy.toml:2: listen[1]: ${VAR} is given more than once"]


def test_values_from_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "url").write_text("http://from-file:1\r\n")
    text = """\
listen = ["${HOST:-127.0.0.1}:${PORT}"]
upstreams = ["file:url", "http://${MODEL:-a}", "file:${NAME}", "unix:/run/$${plain}"]
[deadlines]
idle = "${IDLE}"
"""
    found = loaded(tmp_path, text, environ={"PORT": "81", "IDLE": "2m", "NAME": "url", "MODEL": ""})
    assert [place.shown for place in found.config.listen] == ["127.0.0.1:81"]
    assert found.config.upstreams == ("http://from-file:1", "http://a", "http://from-file:1", "unix:/run/${plain}")
    assert found.config.settings.deadlines.idle == 120
    assert found.shown_places == ("${HOST:-127.0.0.1}:${PORT}",)
    assert found.shown_endpoints == ("file:url", "http://a", "file:${NAME}", "unix:/run/${plain}")
    assert {path.name for path in found.files} == {"trioproxy.toml", "url"}
