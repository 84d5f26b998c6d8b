"""``ondol memory``: a person looks into what an agent remembers, corrects it and erases it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ondol import Runtime

from .command import ondol

KIM = ("--agent", "friend", "--user", "kim")


async def fill(file: Path) -> None:
    async with Runtime(f"sqlite:///{file}") as rt:
        for text in ("점검은 금요일 오후", "drinks green tea"):
            await rt.memory.add(text, agent="friend", user="kim", by="kim")
        await rt.memory.add("plays chess", agent="friend", user="lee", by="lee")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    asyncio.run(fill(tmp_path / "ondol.db"))
    return tmp_path


def test_the_bare_word_lists_whose_memory_there_is_and_nothing_that_it_says(folder: Path) -> None:
    shown = ondol("memory", cwd=folder)
    assert shown.code == 0
    assert [line.split() for line in shown.out.splitlines()] == [
        ["AGENT", "USER", "FACTS"], ["friend", "kim", "2"], ["friend", "lee", "1"],
    ]  # fmt: skip


def test_a_memory_is_listed_and_searched(folder: Path) -> None:
    facts = ondol("memory", "ls", *KIM, "-o", "json", cwd=folder).json
    assert [f["fact"] for f in facts] == ["drinks green tea", "점검은 금요일 오후"]
    found = ondol("memory", "search", "점검", *KIM, "-o", "json", cwd=folder).json
    assert [(f["fact"], f["terms"]) for f in found] == [("점검은 금요일 오후", ["점검"])]
    assert "nothing fits" in ondol("memory", "search", "chess", *KIM, cwd=folder).out


def test_facts_are_changed_and_erased(folder: Path) -> None:
    (id,) = ondol("memory", "search", "tea", *KIM, "-o", "ids", cwd=folder).ids
    assert ondol("memory", "edit", id, "drinks coffee", *KIM, "--by", "kim", cwd=folder).code == 0
    assert "drinks coffee" in ondol("memory", "ls", *KIM, cwd=folder).out
    assert ondol("memory", "rm", id, "--agent", "friend", "--user", "lee", cwd=folder).code == 4
    assert ondol("memory", "rm", id, *KIM, "--by", "kim", cwd=folder).code == 0
    assert "1 fact is erased" in ondol("memory", "rm", "--all", *KIM, "--by", "kim", cwd=folder).out
    assert ondol("memory", "ls", *KIM, "-o", "ids", cwd=folder).ids == []
    assert ondol("memory", "ls", "--agent", "friend", "--user", "lee", "-o", "ids", cwd=folder).ids != []
    acts = ondol("audit", "-o", "json", cwd=folder).json
    assert [(a["act"], a["by"], a["door"]) for a in acts[:3]] == [
        ("memory.erase", "kim", "cli"), ("memory.rm", "kim", "cli"), ("memory.edit", "kim", "cli"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "line",
    [("ls", "--agent", "friend"), ("search", "tea"), ("rm", "m_1"), ("rm", *KIM), ("rm", "m_1", "--all", *KIM)],
)
def test_a_scope_or_a_choice_that_is_missing_is_an_error(folder: Path, line: tuple[str, ...]) -> None:
    shown = ondol("memory", *line, cwd=folder)
    assert (shown.code, shown.out) == (2, "")
    assert "--agent A --user U" in shown.err or "their ids, or --all" in shown.err
