"""Ondol against raw commits of the same store, in one run. Prints ratios: they count, the times move with the machine.

    python benchmarks/bench.py             everything, about a minute
    python benchmarks/bench.py steps conc  only these
    python benchmarks/bench.py --json      the figures as one JSON object

The floor is a probe: 2K + 2 raw INSERT + COMMIT of 1.1 KB (SQLite, WAL, synchronous=FULL), timed right before each
turn. ``x`` is the turn's wall time divided by the probe's: 1.0 would be a journal with one append a step.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw

sys.path.insert(0, str(Path(__file__).parent))

import work
from adapter import OndolAdapter

K = 10
STEPS = 2 * K + 1
TURNS = 15
SESSIONS = 64


@dataclass
class Ctx:
    workdir: str
    k: int = K
    backend: str = "sqlite"
    dsn: str = ""
    opts: dict[str, Any] = field(default_factory=dict)


class Probe:
    """Raw commits into a file of their own in the same folder."""

    def __init__(self, folder: str) -> None:
        self.connection = apsw.Connection(os.path.join(folder, "probe.sqlite"))
        self.connection.execute("PRAGMA journal_mode = WAL")
        self.connection.execute("PRAGMA synchronous = FULL")
        self.connection.execute("CREATE TABLE j (session TEXT, seq INTEGER, body TEXT, PRIMARY KEY (session, seq))")
        self.n = 0
        self.seconds()

    def seconds(self) -> float:
        started = time.perf_counter()
        for _ in range(2 * K + 2):
            self.connection.execute("BEGIN IMMEDIATE")
            self.connection.execute("INSERT INTO j VALUES ('s', ?, ?)", (self.n, "x" * 1100))
            self.connection.execute("COMMIT")
            self.n += 1
        return time.perf_counter() - started


async def opened(effect: str = "read") -> tuple[OndolAdapter, str]:
    folder = tempfile.mkdtemp(prefix="ondol-bench-")
    adapter = OndolAdapter(Ctx(folder, opts={"effect": effect}))
    await adapter.open()
    return adapter, folder


async def closed(adapter: OndolAdapter, folder: str) -> None:
    await adapter.close()
    shutil.rmtree(folder)


async def steps(effect: str) -> dict[str, float]:
    """One session: wall time against the floor, CPU a step."""
    adapter, folder = await opened(effect)
    probe = Probe(folder)
    for n in range(3):
        await adapter.turn("warm", n)
    ratios, walls, cpus = [], [], []
    for n in range(TURNS):
        floor = probe.seconds()
        wall, cpu = time.perf_counter(), time.process_time()
        await adapter.turn("s", n)
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
        ratios.append(walls[-1] / floor)
    await closed(adapter, folder)
    return {
        "x": statistics.median(ratios),
        "wall_ms_a_step": statistics.median(walls) / STEPS * 1e3,
        "cpu_ms_a_step": statistics.mean(cpus) / STEPS * 1e3,
    }


async def conc() -> dict[str, float]:
    """64 sessions at once: turns a second, against turns a second of the floor (which has one session)."""
    adapter, folder = await opened()
    probe = Probe(folder)
    await asyncio.gather(*(adapter.turn(f"w{j}", 0) for j in range(8)))
    floor = [probe.seconds() for _ in range(3)]
    wall, cpu, rounds = time.perf_counter(), time.process_time(), 5
    for n in range(rounds):
        await asyncio.gather(*(adapter.turn(f"c{j}", n) for j in range(SESSIONS)))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    floor += [probe.seconds() for _ in range(3)]
    await closed(adapter, folder)
    done = rounds * SESSIONS
    return {
        "turns_a_second": done / wall,
        "cpu_ms_a_turn": cpu / done * 1e3,
        "floor_turns_a_second": 1 / statistics.median(floor),
    }


async def growth() -> dict[str, float]:
    """The same turn at 100 and at 5,000 messages: time when warm, time when cold, bytes on disk."""
    found: dict[str, float] = {}
    for messages in (100, 5000):
        adapter, folder = await opened()
        await adapter.seed("g", messages)
        await adapter.turn("warm", 0)
        before = _disk(adapter)
        walls = []
        for n in range(TURNS):
            wall = time.perf_counter()
            await adapter.turn("g", 100_000 + n)
            walls.append(time.perf_counter() - wall)
        found[f"warm_ms_at_{messages}"] = statistics.median(walls) * 1e3
        found[f"bytes_a_turn_at_{messages}"] = (_disk(adapter) - before) / TURNS
        await adapter.close()
        await adapter.open()
        wall = time.perf_counter()
        await adapter.turn("g", 200_000)
        found[f"cold_ms_at_{messages}"] = (time.perf_counter() - wall) * 1e3
        await closed(adapter, folder)
    found["warm_ratio"] = found["warm_ms_at_5000"] / found["warm_ms_at_100"]
    found["bytes_ratio_to_content"] = found["bytes_a_turn_at_5000"] / work.content_bytes(K)
    return found


def _disk(adapter: OndolAdapter) -> int:
    """Bytes in use in the database file, after what is in the log is counted in."""
    connection = apsw.Connection(adapter.sqlite_path(), flags=apsw.SQLITE_OPEN_READONLY)
    pages = connection.execute("PRAGMA page_count").get - connection.execute("PRAGMA freelist_count").get
    size = connection.execute("PRAGMA page_size").get
    connection.close()
    return int(pages * size)


async def cold() -> dict[str, float]:
    """A new process: import, then open a store and read a session of 1,000 messages ready to go on."""
    adapter, folder = await opened()
    await adapter.seed("g", 1000)
    await adapter.close()
    imports = [_in_new_process("import ondol") for _ in range(3)]
    bare = [_in_new_process("pass") for _ in range(3)]
    resumes = [float(_script(folder)) for _ in range(3)]
    shutil.rmtree(folder)
    return {
        "import_ms": (min(imports) - min(bare)) * 1e3,
        "resume_1000_messages_ms": statistics.median(resumes) * 1e3,
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def _in_new_process(code: str) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - started


def _script(folder: str) -> str:
    code = (
        "import asyncio, sys, time; sys.path.insert(0, sys.argv[2])\n"
        "from bench import Ctx; from adapter import OndolAdapter\n"
        "async def main():\n"
        "    started = time.perf_counter()\n"
        "    adapter = OndolAdapter(Ctx(sys.argv[1])); await adapter.open(); n = await adapter.load('g')\n"
        "    assert n >= 1000, n; print(time.perf_counter() - started); await adapter.close()\n"
        "asyncio.run(main())\n"
    )
    here = str(Path(__file__).parent)
    done = subprocess.run([sys.executable, "-c", code, folder, here], check=True, capture_output=True, text=True)
    return done.stdout


PHASES: dict[str, Callable[[], Awaitable[dict[str, float]]]] = {
    "steps": lambda: steps("read"),
    "steps_once": lambda: steps("once"),
    "conc": conc,
    "growth": growth,
    "cold": cold,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("phases", nargs="*", choices=[*PHASES, []], help="by default all")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = {name: asyncio.run(PHASES[name]()) for name in arguments.phases or PHASES}
    if arguments.json:
        print(json.dumps(found))
        return
    for name, figures in found.items():
        print(name)
        for what, figure in figures.items():
            print(f"  {what:26} {figure:12,.2f}")


if __name__ == "__main__":
    main()
