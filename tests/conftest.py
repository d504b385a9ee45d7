"""Which tests are run on which links and with which codec, and the processes that they start.

Every test that has a conversation, or that says ``usefixtures("link")``, is run on all links with both codecs. One
whose point is a link's own nature says so: ``@pytest.mark.links("memory", reason="…")``.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from itertools import product
from pathlib import Path
from typing import Final, get_args

import pytest

from links import CHOSEN, LINKS, LinkName
from processes import Running
from trioproxy.http1 import ParserName

CODECS: Final[tuple[ParserName, ...]] = get_args(ParserName)


_HERE: Final = Path(__file__).parent
_COMPUTING: Final = frozenset(
    {
        *("apis/test_json_scan.py", "apis/test_sse.py", "http1", "net/test_tls.py", "upstream", "test_typing.py"),
        *("scenarios/test_cancel_sweep.py", "scenarios/test_framing.py", "scenarios/test_tls_ends.py"),
        *("test_body.py", "test_body_steps.py", "test_body_streamed.py", "test_connection.py", "test_deadlines.py"),
        *("test_exchange.py", "test_exchange_attempts.py", "test_reconfigure.py", "test_relay.py", "test_upload.py"),
        *("test_server.py", "test_server_drain.py", "test_server_tls.py", "test_downstream.py"),
    }
)
"""Files and folders whose tests have no clock but Trio's, or none that matters."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """One group for all that must not run beside its like."""
    if config.pluginmanager.hasplugin("xdist"):
        for item in items:
            path = item.path.relative_to(_HERE)
            if _COMPUTING.isdisjoint((str(path), str(path.parent))):
                item.add_marker(pytest.mark.xdist_group("real time"))


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line("markers", "links(*names, reason): run on these links only, with both codecs")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each test that is about what goes through a proxy, on each link and with each codec."""
    asks = any("link" in marker.args for marker in metafunc.definition.iter_markers("usefixtures"))
    if not asks and "conversation" not in metafunc.function.__code__.co_names:
        return
    names: tuple[str, ...] = tuple(LINKS)
    if (marker := metafunc.definition.get_closest_marker("links")) is not None:
        assert marker.kwargs.get("reason"), f"{metafunc.function.__name__}: a reason for its links"
        names = marker.args
        assert set(names) <= set(LINKS)
    chosen = list(product(names, CODECS))
    metafunc.parametrize("link", chosen, indirect=True, ids=["-".join(each) for each in chosen])


@pytest.fixture(autouse=True)
def link(request: pytest.FixtureRequest) -> Generator[None]:
    """The link and the codec of the test, for whoever makes a proxy in it."""
    chosen: tuple[LinkName, ParserName] | None = getattr(request, "param", None)
    if chosen is None:
        yield
        return
    CHOSEN.made, CHOSEN.link, CHOSEN.codec = True, LINKS[chosen[0]], chosen[1]
    yield
    CHOSEN.made = False


@pytest.fixture
def start() -> Iterator[Callable[..., Running]]:
    """Starts commands; what still runs in the end is killed."""
    started: list[Running] = []

    def run(*arguments: str) -> Running:
        started.append(Running(*arguments))
        return started[-1]

    yield run
    for running in started:
        running.kill()
