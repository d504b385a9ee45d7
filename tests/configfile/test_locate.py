"""Lines of keys and elements, held against what ``tomllib`` makes of the same text."""

from __future__ import annotations

import tomllib
from typing import cast

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from trioproxy.configfile.locate import Locations
from trioproxy.configfile.mistakes import Path


def paths(value: object, path: Path = ()) -> set[Path]:
    """The paths of everything in a value."""
    found = {path} if path else set[Path]()
    if isinstance(value, dict):
        for key, item in cast("dict[str, object]", value).items():
            found |= paths(item, (*path, key))
    if isinstance(value, list):
        for number, item in enumerate(cast("list[object]", value)):
            found |= paths(item, (*path, number))
    return found


TEXT = '''\
# a comment = 1
top = 1
"quoted key".'and another'.bare = true   # behind it

[a.b]
"x.y" = [
  1, # one
  [2, "]"],

  { p = "}", q.r = [3,
    4] }
]
text = """
[not.a.table]
key = \\""" ""quotes\\
"""
literal = \'\'\'
[[nor.this]] '' \'\'\'
[a]
empty = {}
when = 1979-05-27 07:32:00Z

[[list]]
name = "first"
[list.inside.deep]
v = -1.5e3
[[list]]
name = 'second'
  [[list.rows]]
  n = 1
  [[list.rows]]
  n = [ ]
[last]
key = inf'''


def test_lines_of_everything() -> None:
    lines = Locations(TEXT).lines
    assert lines.keys() == paths(tomllib.loads(TEXT))
    assert lines["top",] == 2
    assert lines["quoted key", "and another", "bare"] == 3
    assert lines["a", "b", "x.y"] == 6
    assert [lines["a", "b", "x.y", number] for number in (0, 1, 2)] == [7, 8, 10]
    assert lines["a", "b", "x.y", 1, 1] == 8
    assert lines["a", "b", "x.y", 2, "q", "r", 1] == 11
    assert (lines["a", "b", "text"], lines["a", "b", "literal"], lines["a", "empty"]) == (13, 17, 20)
    assert (lines["list", 0], lines["list", 0, "inside", "deep", "v"]) == (23, 26)
    assert (lines["list", 1, "rows", 0, "n"], lines["list", 1, "rows", 1, "n"]) == (30, 32)
    assert lines["last", "key"] == 34


def test_the_nearest_line() -> None:
    locations = Locations("a = 1\n[b]\nc = [1]")
    assert [locations.line(path) for path in [("b", "missing"), ("b", "c", 7), ("missing",), ()]] == [2, 3, 0, 0]


KEYS = st.sampled_from(["{}", '"{}"', "'{}'", '"{} .="', "{}.sub", 'a . "{}"', "'#'.{}"])
VALUES = st.sampled_from(
    [
        "1",
        "true # ]",
        "[]",
        "{}",
        '"#]}\\""',
        "'\\'",
        '"""\n\n"" " """',
        "'''\n[x]\n'''",
        "[\n1,\n[2, 3], # [\n]",
        "{ p = [1, 2], q.r = '}' }",
        "[{ p = 1 }, { q = [ { r = '''\n''' } ] }]",
        "07:32:00",
        "1979-05-27 07:32:00",
        '""""quoted"""""',
    ]
)
HEADERS = st.sampled_from(
    ["[t{}]", "[[t{}]]", "[[rows]]", "[rows.t{}]", "[[rows.inner]]", '[ "t t" . t{} ]', "[a.b.t{}]"]
)
STATEMENTS = st.one_of(st.tuples(KEYS, VALUES).map(" = ".join), HEADERS, st.just("# [x] = 1"), st.just(""))


@given(st.lists(STATEMENTS, max_size=12), st.sampled_from(["\n", "\r\n", "\n\n"]))
@settings(max_examples=400, deadline=None)
def test_it_finds_what_tomllib_finds(statements: list[str], newline: str) -> None:
    """Each key has a number of its own, so that the text shows the line of it."""
    text = newline.join(statement.replace("{}", f"k{number}k", 1) for number, statement in enumerate(statements))
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        assume(False)
        return
    locations = Locations(text)
    assert locations.lines.keys() == paths(data)
    assert not locations.twice
    for path, line in locations.lines.items():
        name = path[-1]
        if isinstance(name, str) and name.strip(" .=kt").isdigit():
            assert name in text.split("\n")[line - 1], path


@pytest.mark.parametrize(
    ("text", "path", "line", "first"),
    [
        ("a = 1\nb = 2\na = 3", ("a",), 3, 1),
        ("[t]\na = 1\n[t]\nb = 1", ("t",), 3, 1),
        ("[t]\na = 1\n'a' = [\n2]", ("t", "a"), 3, 2),
        ("t = { a = 1, b = 2,\na = 3 }", ("t", "a"), 2, 1),
    ],
)
def test_what_is_given_twice(text: str, path: Path, line: int, first: int) -> None:
    assert Locations(text).twice == [(path, line, first)]


@given(st.text(alphabet="[]{}=\"'\\#.,\n \tab1", max_size=40))
@settings(max_examples=1000, deadline=None)
def test_any_text_ends(text: str) -> None:
    Locations(text)
