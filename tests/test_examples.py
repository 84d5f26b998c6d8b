"""The examples do what they say: in processes of their own, really killed, and without a network."""

from __future__ import annotations

import ast
import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from ondol import Runtime
from ondol.testing import Process

EXAMPLES = Path(__file__).parents[1] / "examples"
CHAT = EXAMPLES / "chat" / "app.py"
TRIP, SUPPORT = EXAMPLES / "trip_booking" / "app.py", EXAMPLES / "refund_support" / "app.py"
SEAT_STEP = 7
STEPS = range(1, 9)  # each calls one service; the last answer calls none

NO_NETWORK = """\
import socket


def refuse(*_):
    raise OSError("an example reaches for the network")


socket.socket.connect = socket.socket.connect_ex = refuse
"""


def cut_off(folder: Path) -> None:
    """Python imports ``sitecustomize`` before anything else."""
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(NO_NETWORK)


async def run(folder: Path, *args: str | Path) -> tuple[int, str, str]:
    """Run ``python *args`` in a folder; returns its exit code and what it wrote to stdout and stderr."""
    cut_off(folder)
    async with Process(args, cwd=folder, env={"PYTHONPATH": str(folder), "ONDOL_DB": ""}) as process:
        return await process.wait(), process.output, process.errors


async def works(folder: Path, *args: str | Path) -> str:
    code, said, errors = await run(folder, *args)
    assert code == 0, errors
    return said


def ledger(folder: Path, service: str) -> list[dict[str, Any]]:
    path = folder / "outside" / f"{service}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


async def test_there_is_no_network(tmp_path: Path) -> None:
    code, _, errors = await run(tmp_path, "-c", "import socket; socket.create_connection(('127.0.0.1', 9))")
    assert code == 1
    assert "an example reaches for the network" in errors


# --- trip booking -----------------------------------------------------------------------------------------------


def sold(folder: Path) -> dict[str, int]:
    """How often each service did something."""
    return {p.stem: len(ledger(folder, p.stem)) for p in sorted((folder / "outside").iterdir())}


EVERYTHING_ONCE = {"airline-flights": 1, "airline-seats": 1, "hotel": 1, "mail": 1, "railway": 1}


async def test_a_trip_killed_when_the_seat_was_reserved_goes_on_with_one_seat(tmp_path: Path) -> None:
    code, said, _ = await run(tmp_path, TRIP, "--kill-at", str(SEAT_STEP))
    assert code == -9
    assert len(said.splitlines()) == SEAT_STEP
    assert len(ledger(tmp_path, "airline-seats")) == 1  # it is reserved, and nobody was told

    asked, mailed, answer = (await works(tmp_path, TRIP)).splitlines()
    assert asked == "  airline-seats: was one taken on TW401 for this call? yes"
    assert mailed.startswith("  mail: 3 lines")
    assert "seat 14A" in answer
    assert [s["seat"] for s in ledger(tmp_path, "airline-seats")] == ["14A"]
    assert sold(tmp_path) == EVERYTHING_ONCE

    assert await works(tmp_path, TRIP) == answer  # the same operation: its stored answer, and no service is asked
    assert sold(tmp_path) == EVERYTHING_ONCE


async def test_a_trip_killed_at_any_step_is_booked_once(tmp_path: Path) -> None:
    async def killed_at(step: int) -> None:
        folder = tmp_path / str(step)
        code, _, errors = await run(folder, TRIP, "--kill-at", str(step))
        assert code == -9, errors
        assert "Your trip is booked" in await works(folder, TRIP)
        assert sold(folder) == EVERYTHING_ONCE, step

    await asyncio.gather(*(killed_at(step) for step in STEPS))


async def test_a_trip_that_nothing_happens_to_asks_each_service_once(tmp_path: Path) -> None:
    assert len((await works(tmp_path, TRIP)).splitlines()) == len(STEPS) + 1
    assert sold(tmp_path) == EVERYTHING_ONCE


# --- refund support ---------------------------------------------------------------------------------------------

LARGE = [SUPPORT, "--ticket", "t1", "Please refund order 1182."]
ondol = ["-m", "ondol"]


async def open_asks(folder: Path) -> list[str]:
    return (await works(folder, *ondol, "asks", "-o", "ids")).split()


async def waits(folder: Path, *args: str | Path) -> str:
    """Run it until it waits for a person; returns the ask."""
    code, _, errors = await run(folder, *args)
    assert code == 1
    (ask,) = await open_asks(folder)
    assert ask in errors
    return ask


@pytest.mark.parametrize("door", ["cli", "python"])
async def test_a_large_refund_waits_for_a_person_and_is_paid_once(tmp_path: Path, door: str) -> None:
    ask = await waits(tmp_path, *LARGE)
    assert await waits(tmp_path, *LARGE) == ask  # asking again opens no second one
    assert ledger(tmp_path, "payments") == ledger(tmp_path, "mail") == []

    if door == "cli":
        await works(tmp_path, *ondol, "asks", "approve", ask, "--by", "lee")
    else:
        async with Runtime(f"sqlite:///{tmp_path}/ondol.db") as rt:
            opened = await rt.get_ask(ask)
            assert (opened.tool, opened.arguments) == ("refund", {"order_id": "1182", "amount": "30.00"})
            await opened.approve(by="lee")

    answer = await works(tmp_path, *LARGE)
    assert "30.00 EUR paid back for order 1182" in answer
    assert await works(tmp_path, *LARGE) == answer
    assert [(p["order"], p["amount"]) for p in ledger(tmp_path, "payments")] == [("1182", "30.00")]
    assert [m["to"] for m in ledger(tmp_path, "mail")] == ["kim@example.com"]


async def test_a_refund_that_is_denied_is_not_paid_and_the_customer_hears_why(tmp_path: Path) -> None:
    ask = await waits(tmp_path, *LARGE)
    await works(tmp_path, *ondol, "asks", "deny", ask, "--by", "lee", "--reason", "the lamp was returned empty")
    assert "the lamp was returned empty" in await works(tmp_path, *LARGE)
    assert ledger(tmp_path, "payments") == ledger(tmp_path, "mail") == []


async def test_a_small_refund_needs_nobody_and_the_session_remembers_it(tmp_path: Path) -> None:
    assert "12.50 EUR" in await works(tmp_path, SUPPORT, "--ticket", "t1", "Please refund order 1183.")
    assert "12.50 EUR" in await works(tmp_path, SUPPORT, "--ticket", "t2", "What did I get back so far?")
    assert "Which order" in await works(tmp_path, SUPPORT, "--customer", "lee", "--ticket", "t3", "And what did I get?")

    refused = await works(tmp_path, SUPPORT, "--ticket", "t4", "Please refund order 1183 once more.")
    assert "too much" in refused
    assert len(ledger(tmp_path, "payments")) == len(ledger(tmp_path, "mail")) == 1


@pytest.mark.parametrize(
    ("app", "text", "answer"),
    [
        (f"{TRIP}:trip", "Book me a trip to Paris.", "Your trip is booked"),
        (f"{SUPPORT}:support", "Please refund order 1183.", "Your money is on its way"),
    ],
)
async def test_an_example_runs_from_the_command_line(tmp_path: Path, app: str, text: str, answer: str) -> None:
    assert answer in await works(tmp_path, *ondol, "run", app, text, "--operation-id", "o1")


# --- chat -------------------------------------------------------------------------------------------------------


async def test_a_chat_goes_on_in_another_process(tmp_path: Path) -> None:
    assert await works(tmp_path, CHAT, "--session", "kim", "buy oil", "call Lee") == "noted: buy oil\nnoted: call Lee"
    assert await works(tmp_path, CHAT, "--session", "kim", "read") == "noted: read"
    assert [json.loads(line)["note"] for line in (tmp_path / "notes.jsonl").read_text().splitlines()] == [
        "buy oil",
        "call Lee",
        "read",
    ]
    async with Runtime(f"sqlite:///{tmp_path}/ondol.db") as rt:
        said = [m.message.text for m in await (await rt.get_session("kim")).messages() if m.message.role == "user"]
    assert said == ["buy oil", "call Lee", "read"]


async def test_a_chat_says_which_key_is_missing_before_anything_starts(tmp_path: Path) -> None:
    code, said, errors = await run(tmp_path, CHAT, "--model", "script:demo", "--model", "anthropic:any", "hello")
    assert (code, said) == (1, "")
    assert errors.startswith("ANTHROPIC_API_KEY is not set")
    assert not (tmp_path / "ondol.db").exists()


# --- what is about Ondol, and what is about the business ----------------------------------------------------------


def _lines(node: ast.AST) -> set[int]:
    assert isinstance(node, ast.expr | ast.stmt | ast.arg)
    return set(range(node.lineno, (node.end_lineno or node.lineno) + 1))


def count_lines(source: str) -> tuple[int, int]:
    """The lines of code (no blank ones, comments or docstrings), and how many of them are about Ondol.

    About Ondol is a line that imports it, or names something of it or the ``ctx`` that it hands to tools; and all
    lines of a call of it and of a decorator.
    """
    tree = ast.parse(source)
    names, ondols, words = {"ctx"}, set[int](), set[int]()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "ondol":
            names |= {alias.asname or alias.name for alias in node.names}
            ondols |= _lines(node)
        if isinstance(node, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(node):
            words |= _lines(node.body[0])

    def is_ondols(node: ast.AST) -> bool:
        return any(isinstance(part, ast.Name) and part.id in names for part in ast.walk(node))

    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.arg) and is_named(node) in names:
            ondols.add(node.lineno)
        if isinstance(node, ast.Call) and is_ondols(node.func):
            ondols |= _lines(node)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            ondols = ondols.union(*(_lines(d) for d in node.decorator_list if is_ondols(d)))
    lines = enumerate(source.splitlines(), 1)
    code = {n for n, line in lines if line.strip() and not line.strip().startswith("#")} - words
    return len(code), len(code & ondols)


def is_named(node: ast.Name | ast.arg) -> str:
    return node.id if isinstance(node, ast.Name) else node.arg


@pytest.mark.parametrize("app", [TRIP, SUPPORT], ids=lambda app: app.parent.name)
def test_less_than_half_of_an_example_is_about_ondol_and_it_says_how_much(app: Path) -> None:
    source = app.read_text()
    code, ondols = count_lines(source)
    assert ondols < code - ondols
    said = re.search(r"Of the (\d+) lines of code here, (\d+) are about Ondol", source)
    assert said is not None
    assert (int(said[1]), int(said[2])) == (code, ondols)


def test_lines_are_counted_for_ondol_when_they_name_it() -> None:
    source = '''"""Words."""

from ondol import Agent, tool  # 1

LIMIT = 20  # not


@tool(  # 2
    effect="read",  # 3
)  # 4
async def find(ctx, order: str) -> str:  # 5
    """Words."""
    price = look(order)  # not
    return f"{price} for {ctx.user}"  # 6


# a comment
agent = Agent(  # 7
    "shop",  # 8
    model="script:demo",  # 9
)  # 10
'''
    assert count_lines(source) == (12, 10)
