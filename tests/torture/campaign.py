"""How is a family of faults tried many thousand times, and a few of them whenever the tests run?

A *family* is one module beside this one, ``test_<family>.py``: its cases, its control and its tests. A case does all
that follows from its seed, in a folder of its own, and raises (an AssertionError, as a rule) where a promise does not
hold:

    async def case(seed: int, place: Place) -> None:
        chosen = random.Random(seed)
        ...

    async def control(seed: int, place: Place) -> None:
        ...  # the same with a guard taken away: who does not fail here proves nothing

    FAMILY = Family(case=case, control=control, cases=10_000, sample=60)

    @FAMILY.sampled
    async def test_what_was_promised(seed: int, place: Place) -> None:
        await case(seed, place)

    async def test_a_missing_guard_is_noticed(place: Place) -> None:
        await FAMILY.notices(place)

That is all: ``make torture FAMILY=<family>`` finds the module by its name, and ``make torture`` all of them.
``STORE=postgresql`` chooses one of the stores. Only the
seed chooses, by ``random.Random(seed)``: never the time, the process or the order of cases, so that a seed replays.
Where there is a list of cases that shall all be tried, the first seeds are its indices. ``place.folder`` is empty and
goes away after a case that passed; ``place.db`` is the URL of a new store, in that folder, or in PostgreSQL where the
family says that it has both ``stores``; ``await place.downstream()`` is a service with a ledger that other cases write
to as well (tell yours by ``place.name``). A case that hangs fails after ``limit`` seconds.
"""

from __future__ import annotations

import asyncio
import dataclasses
import faulthandler
import functools
import hashlib
import importlib
import json
import shutil
import tempfile
import time
import traceback
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
from in_memory import FOLDER
from postgres import FAST, Server

from ondol.testing import Downstream

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
STATES = ROOT / ".torture"  # what has passed; not under version control
_CASES_A_SERVICE = 300  # its ledger is read as a whole
_SAY_EVERY = 10.0  # seconds


@dataclass(frozen=True)
class Place:
    """Where a case happens: an empty folder, and the outside world. ``database`` gives URLs of empty databases."""

    folder: Path
    downstream: Callable[[], Awaitable[Downstream]]
    database: Callable[[], str] | None = None

    @functools.cached_property
    def db(self) -> str:
        """The URL of the case's store, which does not exist yet, or has nothing in it."""
        return f"sqlite:///{self.folder / 'ondol.db'}" if self.database is None else self.database()

    @property
    def name(self) -> str:
        """Tells the lines of this case in the ledger from those of others."""
        return self.folder.name

    def within(self, name: str) -> Place:
        """Another empty folder, in this one."""
        folder = self.folder / f"{self.folder.name}.{name}"
        folder.mkdir()
        return dataclasses.replace(self, folder=folder)


Kind = Literal["sqlite", "postgresql"]
Case = Callable[[int, Place], Awaitable[None]]


@dataclass(frozen=True, kw_only=True)
class Family:
    """``cases``: how many seeds, counted from 0, make the whole campaign; ``sample``: how many of them the tests run.

    ``control`` is tried with the first ``tries`` seeds: one of them has to fail by a ``violation``. ``limit`` is the
    time that a case may take, in seconds. ``stores``: each of them has all the cases; the tests run ``sample_postgres``
    of them on PostgreSQL.
    """

    case: Case
    control: Case
    cases: int
    sample: int = 0
    sample_postgres: int = 0
    stores: Sequence[Kind] = ("sqlite",)
    tries: int = 20
    violation: type[BaseException] | tuple[type[BaseException], ...] = AssertionError
    limit: float = 60.0

    @property
    def sampled(self) -> pytest.MarkDecorator:
        """Runs a test with each ``seed`` of the sample, and of the sample on PostgreSQL."""
        return on_stores("seed", range(self.sample), range(self.sample_postgres))

    async def notices(self, place: Place) -> int:
        """The first seed with which the control fails. Raises AssertionError if there is none."""
        for seed in range(self.tries):
            try:
                await self.control(seed, place.within(f"control{seed}"))
            except self.violation:
                return seed
        raise AssertionError(f"the control passed with each of {self.tries} seeds: this family proves nothing")


def on_stores(names: str | Sequence[str], sqlite: Iterable[Any], postgres: Iterable[Any]) -> pytest.MarkDecorator:
    """Runs a test that has a ``place`` with these values on SQLite, and with those on PostgreSQL."""
    together = [("sqlite", value) for value in sqlite] + [("postgresql", value) for value in postgres]
    names = [names] if isinstance(names, str) else [*names]
    found = []
    for store, value in together:
        values = value if isinstance(value, tuple) else (value,)
        id = "-".join(str(v) for v in ([] if store == "sqlite" else [store]) + [*values])
        found.append(pytest.param(store, *values, id=id))
    return pytest.mark.parametrize(("store_kind", *names), found)


@functools.cache
def family(name: str) -> Family:
    """Raises LookupError if there is none of that name."""
    if name not in names():
        raise LookupError(f"there is no family {name!r}, only {', '.join(names())}")
    found: Family = importlib.import_module(f"torture.test_{name}").FAMILY
    return found


def names() -> list[str]:
    modules = sorted(HERE.glob("test_*.py"))
    return [m.stem.removeprefix("test_") for m in modules if "\nFAMILY = " in m.read_text()]


# --- what has passed --------------------------------------------------------------------------------------------


@dataclass
class Progress:
    """All seeds before ``next`` have passed but the ``failed``. Other code starts anew: a pass is about what ran."""

    file: Path
    code: str
    next: int = 0
    failed: list[int] = dataclasses.field(default_factory=list)

    @classmethod
    def of(cls, file: Path, code: str) -> Progress:
        if file.exists() and (said := json.loads(file.read_text()))["code"] == code:
            return cls(file, **said)
        return cls(file, code)

    def keep(self) -> None:
        self.file.parent.mkdir(exist_ok=True)
        said = {"code": self.code, "next": self.next, "failed": self.failed}
        aside = self.file.with_suffix(".new")
        aside.write_text(json.dumps(said))
        aside.replace(self.file)


def code() -> str:
    """Names the code: what is tried, and what tries it."""
    digest = hashlib.sha256()
    for folder in ("src", "tests"):
        for file in sorted((ROOT / folder).rglob("*.py")) + sorted((ROOT / folder).rglob("*.sql")):
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


# --- a campaign -------------------------------------------------------------------------------------------------


class Campaign:
    """Runs the cases of one family on one store, one after the other, in this process."""

    def __init__(self, name: str, family: Family, say: Callable[[str], Any] = print, store: Kind = "sqlite") -> None:
        self.family, self.say, self.store = family, say, store
        self.name = name if len(family.stores) == 1 else f"{name} on {store}"
        self._command = f"make torture FAMILY={name}" + ("" if len(family.stores) == 1 else f" STORE={store}")
        self._service: Downstream | None = None
        self._uses = 0
        self._server: Server | None = None
        self._databases: list[str] = []

    def __enter__(self) -> Campaign:
        return self

    def __exit__(self, *_: object) -> None:
        self._end_service()
        if self._server is not None:
            self._server.remove()

    def replay(self, seed: int) -> bool:
        """Run the case with that seed. Returns whether it passed; what has passed before is not looked at."""
        passed = self._run(seed)
        if passed:
            self.say(f"{self.name}: seed {seed} passed")
        return passed

    def run(self, progress: Progress, *, minutes: float | None = None, go_on: bool = False) -> bool:
        """The control, then the seeds that have not passed, until all have or the time is over.

        Ends at the first failure, or tries the others too with ``go_on``. Returns whether nothing has failed.
        """
        if not self._control_fails():
            return False
        began = said = time.monotonic()
        again, progress.failed = progress.failed, []
        done = 0
        while again or progress.next < self.family.cases:
            now = time.monotonic()
            if minutes is not None and now - began > 60 * minutes:
                break
            seed = again.pop(0) if again else progress.next
            if not self._run(seed):
                progress.failed.append(seed)
            if seed == progress.next:
                progress.next += 1
            done += 1
            if progress.failed and not go_on:
                break
            if now - said > _SAY_EVERY:
                said = now
                progress.keep()
                self.say(self._state(progress, done, now - began))
        progress.failed += again
        progress.keep()
        self.say(self._state(progress, done, time.monotonic() - began))
        return not progress.failed

    def _state(self, progress: Progress, done: int, seconds: float) -> str:
        failed = f", failed: {progress.failed}" if progress.failed else ""
        return f"{self.name}: {progress.next} of {self.family.cases} cases, {done} in {seconds:.0f} s now{failed}"

    def _control_fails(self) -> bool:
        with empty_folder() as folder:
            try:
                seed = asyncio.run(self.family.notices(self._place(folder)))
            except Exception:  # said, and the campaign fails for it
                self.say(f"{self.name}: the control\n{traceback.format_exc()}")
                return False
        self._drop_databases()
        self.say(f"{self.name}: the control fails with seed {seed}, as it has to")
        return True

    def _run(self, seed: int) -> bool:
        faulthandler.dump_traceback_later(self.family.limit + 30, exit=True)  # where not even a time-out comes through
        try:
            with empty_folder() as folder:
                asyncio.run(self._bounded(seed, self._place(folder)))
        except Exception:  # that is what a case fails with: said with its seed, and counted
            command = f"{self._command} SEED={seed}"
            self.say(f"{traceback.format_exc()}\n{self.name}: seed {seed} FAILED. What it left: {folder}\n  {command}")
            return False
        finally:
            faulthandler.cancel_dump_traceback_later()
        self._drop_databases()
        if self._uses >= _CASES_A_SERVICE:
            self._end_service()
        return True

    async def _bounded(self, seed: int, place: Place) -> None:
        async with asyncio.timeout(self.family.limit):
            await self.family.case(seed, place)

    def _place(self, folder: Path) -> Place:
        if self.store == "postgresql" and self._server is None:
            self._server = Server(_temporary("torture-postgres-"), **FAST).init().start()
            self._server.make_template()
        return Place(folder, self._downstream, self._database if self._server is not None else None)

    def _database(self) -> str:
        assert self._server is not None
        self._databases.append(self._server.new_database())
        return self._databases[-1]

    def _drop_databases(self) -> None:
        while self._databases:
            assert self._server is not None
            self._server.drop(self._databases.pop())

    async def _downstream(self) -> Downstream:
        if self._service is None:
            self._service = await Downstream.start()
        self._uses += 1
        return self._service

    def _end_service(self) -> None:
        self._uses = 0
        if self._service is not None:
            asyncio.run(self._service.stop())
            self._service = None


@contextmanager
def empty_folder() -> Iterator[Path]:
    """It goes away if the block ends well."""
    folder = _temporary("torture-")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def _temporary(prefix: str) -> Path:
    return Path(tempfile.mkdtemp(prefix=prefix, dir=FOLDER))
