"""The process that is killed.

It imports all it needs, and then forks a child for each order that it reads: a child does what the client of a
scenario does, and dies by SIGKILL where the order's plan of faults says. An order is one line of JSON, and so is the
answer: the child's process id at once, and its exit code as ``subprocess`` gives it when it has ended.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from crash.scenarios import SCENARIOS, World, first_life, second_life
from ondol import Runtime
from ondol.stores.sqlite import SqliteStore
from ondol.testing import FaultPlan, FaultyStore


async def live(order: dict[str, Any]) -> None:
    scenario = SCENARIOS[order["scenario"]]
    world = World(order["url"], order["case"], Path(order["log"]))
    plan = FaultPlan.from_json(order["plan"])

    def runtime() -> Runtime:
        store = FaultyStore(SqliteStore(order["file"]), plan)
        return Runtime(store, agents=[scenario.agent(world)], deps=world)

    async with runtime() as rt:
        await first_life(rt, world, scenario)
    if scenario.asks:
        async with runtime() as rt:
            await second_life(rt, world)
    world.note(event="writes", names=plan.writes)


def fork(order: dict[str, Any]) -> int:
    child = os.fork()
    if child:
        print(child, flush=True)
    else:
        try:
            asyncio.run(live(order))
        except BaseException:  # a forked child must not come back into the loop that reads orders
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    print("ready", flush=True)
    for line in sys.stdin:
        print(fork(json.loads(line)), flush=True)
