"""A real file, a real service, and no test that hangs."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import os
import shutil
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from chromium import CHROMIUM
from crash.counting import counted_once
from in_memory import FOLDER
from pages import OUTSIDE, TRUSTED
from postgres import FAST, Server

from ondol.testing import Downstream

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A job in the background of a shell ignores Ctrl-C, and so would every process that a test starts and interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No test speaks TLS, and each client of HTTP would read all certificates of this machine: 20 to 40 ms each time.
if (named := os.environ.get("SSL_CERT_FILE")) != TRUSTED:
    os.environ |= {"SSL_CERT_FILE": TRUSTED, OUTSIDE: named or ""}

if FOLDER is not None:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(FOLDER))

_IN_A_BROWSER = "http/console/test_browser.py"
_BY_SYSTEMD = "http/test_systemd.py"
_SYSTEMD = shutil.which("systemd-analyze")
collect_ignore = ([] if CHROMIUM else [_IN_A_BROWSER]) + ([] if _SYSTEMD else [_BY_SYSTEMD])

TOO_LONG = 60.0  # seconds; a test that waits for what never comes says so instead of standing still


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        once = contextlib.ExitStack()
        once.enter_context(counted_once())
        config.add_cleanup(once.close)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not CHROMIUM:
        terminalreporter.section("NOT RUN: the console in a browser", sep="!", red=True, bold=True)
        terminalreporter.line(f"There is no Chromium, so nothing of {_IN_A_BROWSER} was run: apt-get install chromium")
        terminalreporter.line("The five minutes of the README were not gone through to their end, either")
    if not _SYSTEMD:
        terminalreporter.section("NOT RUN: the unit by systemd", sep="!", red=True, bold=True)
        terminalreporter.line(
            f"There is no systemd-analyze, so nothing of {_BY_SYSTEMD} was run: apt-get install systemd"
        )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("long") is None)  # else one is at the end what others wait for
    for item in items:
        function = getattr(item, "obj", None)
        if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(function):
            item.obj = _bounded(function, TOO_LONG if item.get_closest_marker("long") is None else 4 * TOO_LONG)


def _bounded(test: Callable[..., Awaitable[None]], seconds: float) -> Callable[..., Awaitable[None]]:
    @functools.wraps(test)
    async def bounded(*args: Any, **kwargs: Any) -> None:
        async with asyncio.timeout(seconds):
            await test(*args, **kwargs)

    return bounded


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--store", choices=("sqlite", "postgresql"), help="run everything that has a store on this one")
    parser.addoption("--screenshots", metavar="DIR", help="keep pictures of the console in this folder")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each test that has a store runs on SQLite; those that look for what differs run on PostgreSQL too, and those
    that name their stores themselves on these."""
    own = any("store_kind" in marker.args[0] for marker in metafunc.definition.iter_markers("parametrize"))
    if "store_kind" in metafunc.fixturenames and not own:
        both = metafunc.definition.get_closest_marker("both_stores") is not None
        chosen = metafunc.config.getoption("--store")
        if any(metafunc.definition.get_closest_marker(marker) for marker in ("one_driver", "file")):
            chosen = "sqlite"
        kinds = [chosen] if chosen else ["sqlite", "postgresql"] if both else ["sqlite"]
        metafunc.parametrize("store_kind", kinds, ids=kinds if both or chosen else [pytest.HIDDEN_PARAM])


@pytest.fixture
def db(tmp_path: Path, store_kind: str, request: pytest.FixtureRequest) -> str:
    """The URL of a store that does not exist yet, or of one with nothing in it."""
    if store_kind == "postgresql":
        new_database: Callable[[], str] = request.getfixturevalue("new_database")
        return new_database() + "?lease=2"
    return f"sqlite:///{tmp_path / 'ondol.db'}"


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """One server for all tests of a session that need no other; started by the first of them."""
    server = Server(**FAST).init().start()
    server.make_template()
    yield server
    server.remove()


@pytest.fixture
def new_database(postgres: Server) -> Iterator[Callable[[], str]]:
    """Gives URLs of new databases, which go with the test: each takes 8 MB, and there are hundreds."""
    given: list[str] = []

    def new(*template: str) -> str:
        given.append(postgres.new_database(*template))
        return given[-1]

    yield new
    for url in given:
        postgres.drop(url)


@pytest.fixture(scope="session")
def services() -> Iterator[Callable[[], Downstream]]:
    """Gives services of which the next one starts while a test runs."""

    def start() -> Downstream:
        return asyncio.run(Downstream.start())

    with ThreadPoolExecutor(1) as elsewhere:
        waiting = [elsewhere.submit(start)]

        def take() -> Downstream:
            waiting.append(elsewhere.submit(start))
            return waiting.pop(0).result()

        yield take
        asyncio.run(waiting.pop().result().stop())


@pytest.fixture
async def downstream(services: Callable[[], Downstream]) -> AsyncIterator[Downstream]:
    """The outside world, in its own process."""
    service = services()
    yield service
    await service.stop()
