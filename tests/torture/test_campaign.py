"""A campaign stops where a promise breaks, says how to see that again, and goes on where it was."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from in_memory import FOLDER

from torture import campaign
from torture.campaign import Campaign, Family, Place, Progress


async def fails(seed: int, place: Place) -> None:
    raise AssertionError("a guard is missing")


class Cases:
    """Cases of which some fail; they remember which ones were run."""

    def __init__(self, *failing: int) -> None:
        self.failing, self.ran = set(failing), list[int]()

    async def case(self, seed: int, place: Place) -> None:
        assert list(place.folder.iterdir()) == []
        (place.folder / "left").touch()
        self.ran.append(seed)
        assert seed not in self.failing, "broken"

    def family(self, cases: int = 6) -> Family:
        return Family(case=self.case, control=fails, cases=cases)


def run(cases: Cases, progress: Progress, **options: bool) -> tuple[bool, str]:
    said: list[str] = []
    with Campaign("example", cases.family(), said.append) as running:
        return running.run(progress, **options), "\n".join(said)


@pytest.fixture(autouse=True)
def what_a_failure_leaves(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with TemporaryDirectory(dir=FOLDER) as folder:
        Path(folder).chmod(0o755)  # a server has another user
        monkeypatch.setattr(campaign, "FOLDER", folder)
        yield


@pytest.fixture
def progress(tmp_path: Path) -> Progress:
    return Progress.of(tmp_path / "states" / "example.json", "this code")


def test_it_stops_at_the_first_failure_and_says_how_to_see_it_again(progress: Progress) -> None:
    cases = Cases(2)
    well, said = run(cases, progress)
    assert (well, cases.ran) == (False, [0, 1, 2])
    assert "AssertionError: broken" in said
    assert "make torture FAMILY=example SEED=2" in said
    with Campaign("example", cases.family(), print) as again:
        assert not again.replay(2)
        assert again.replay(3)


def test_it_goes_on_after_a_failure_where_that_is_asked_for(progress: Progress) -> None:
    cases = Cases(0, 3)
    well, said = run(cases, progress, go_on=True)
    assert (well, cases.ran) == (False, [0, 1, 2, 3, 4, 5])
    assert "failed: [0, 3]" in said


def test_what_passed_is_not_run_again_and_what_failed_comes_first(progress: Progress) -> None:
    run(Cases(2), progress)
    cases = Cases()
    well, _ = run(cases, Progress.of(progress.file, "this code"))
    assert (well, cases.ran) == (True, [2, 3, 4, 5])
    assert run(cases, Progress.of(progress.file, "this code"))[0]
    assert cases.ran == [2, 3, 4, 5]


def test_a_pass_of_other_code_counts_for_nothing(progress: Progress) -> None:
    run(Cases(), progress)
    cases = Cases()
    run(cases, Progress.of(progress.file, "other code"))
    assert cases.ran == [0, 1, 2, 3, 4, 5]


def test_a_family_whose_control_passes_has_failed(progress: Progress) -> None:
    cases, said = Cases(), list[str]()
    blind = Family(case=cases.case, control=Cases().case, cases=3, tries=4)
    with Campaign("blind", blind, said.append) as running:
        assert not running.run(progress)
    assert "passed with each of 4 seeds" in said[0]
    assert cases.ran == []


def test_a_case_that_hangs_fails() -> None:
    async def hangs(seed: int, place: Place) -> None:
        await asyncio.get_running_loop().create_future()

    said = list[str]()
    with Campaign("hangs", Family(case=hangs, control=fails, cases=1, limit=0.01), said.append) as running:
        assert not running.replay(0)
    assert "TimeoutError" in said[0]


def test_every_family_is_found_by_its_name_and_tries_more_than_the_tests_do() -> None:
    for name in campaign.names():
        assert campaign.family(name).cases >= campaign.family(name).sample


def test_a_family_of_both_stores_has_new_ones_for_each_case_and_names_them_where_it_fails() -> None:
    seen: list[str] = []

    async def case(seed: int, place: Place) -> None:
        assert place.db == place.db
        seen.append(place.db)
        assert seed == 0, "broken"

    family, said = Family(case=case, control=fails, cases=2, stores=("sqlite", "postgresql")), list[str]()
    for store in family.stores:
        with Campaign("example", family, said.append, store) as running:
            assert running.replay(0)
            assert not running.replay(1)
        assert f"make torture FAMILY=example STORE={store} SEED=1" in said[-1]
    assert [db.partition(":")[0] for db in seen] == ["sqlite", "sqlite", "postgresql", "postgresql"]
    assert len(set(seen)) == 4


def test_a_family_that_does_not_exist_is_refused_with_those_that_do() -> None:
    command = [sys.executable, "-m", "torture", "--family", "nothing"]
    folder = Path(__file__).parents[1]
    ended = subprocess.run(command, cwd=folder, env=dict(os.environ), capture_output=True, text=True)
    assert ended.returncode == 2
    assert "there is no family 'nothing', only" in ended.stderr
