"""``make torture``: which family, for how long, from where?"""

from __future__ import annotations

import argparse
import functools
import os
import sys
from typing import get_args

from torture.campaign import STATES, Campaign, Kind, Progress, code, family, names


def main() -> int:
    """Exit code 0: nothing failed; 1: something did; 2: that cannot be asked for."""
    parser = argparse.ArgumentParser(prog="make torture", description=__doc__)
    parser.add_argument("--family", help="one of " + ", ".join(names()) + "; all of them, one after another, without")
    parser.add_argument("--minutes", type=float, help="for each family; without it, until all of its cases have passed")
    parser.add_argument("--seed", type=int, help="run this one case, as a failure names it")
    parser.add_argument("--go-on", action="store_true", help="after a failure too")
    parser.add_argument("--store", choices=get_args(Kind), help="without it, one after another that the family has")
    asked = parser.parse_args()
    if asked.family and asked.family not in names():
        parser.error(f"there is no family {asked.family!r}, only {', '.join(names())}")
    if asked.seed is not None and not asked.family:
        parser.error("a seed belongs to a family: name that, too")
    version, well = code(), True
    chosen = [(name, store) for name in names() if asked.family in (None, name) for store in family(name).stores]
    if asked.store:
        chosen = [(name, store) for name, store in chosen if store == asked.store]
    if not chosen:
        parser.error(f"the family {asked.family!r} has no cases on {asked.store}")
    for name, store in chosen[: 1 if asked.seed is not None else None]:
        with Campaign(name, family(name), functools.partial(print, flush=True), store) as campaign:
            if asked.seed is not None:
                well &= campaign.replay(asked.seed)
            else:
                progress = Progress.of(STATES / f"{name}-{store}.json", version)
                well &= campaign.run(progress, minutes=asked.minutes, go_on=asked.go_on)
        if not well and not asked.go_on:
            break
    return 0 if well else 1


if __name__ == "__main__":
    code_of_exit = main()
    sys.stdout.flush()
    os._exit(code_of_exit)  # what a case has left behind in threads does not keep the command from ending
