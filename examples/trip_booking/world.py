"""The outside world: an airline, a hotel, a railway and a mail service, each with its ledger in a file.

They stand in for services on a network, and they outlive this program. Flights, rooms and trains are sold by services
that honour an idempotency key. The airline's seat desk and the mail service do not: they do what they are told, every
time they are told. All write the key down beside what they did.
"""

import json
import os
import signal
from decimal import Decimal
from pathlib import Path
from typing import Any

LEDGERS = Path("outside")
FLIGHTS: list[dict[str, Any]] = [
    {"flight": "KE901", "from": "ICN", "to": "CDG", "departs": "12:05", "fare": Decimal(980)},
    {"flight": "AF267", "from": "ICN", "to": "CDG", "departs": "09:10", "fare": Decimal(810)},
    {"flight": "TW401", "from": "ICN", "to": "CDG", "departs": "10:15", "fare": Decimal(640)},
]
HOTELS: list[dict[str, Any]] = [
    {"hotel": "Hôtel du Nord", "city": "Paris", "night": Decimal(142)},
    {"hotel": "Le Grand", "city": "Paris", "night": Decimal(395)},
]
SEATS = {"14A": "window", "14C": "aisle", "15A": "window", "15B": "middle"}

power_cut_after = 0  # calls that this process serves before it is killed; 0: it is not


def ledger(service: str) -> list[dict[str, Any]]:
    """Everything that was ever sold by a service."""
    path = LEDGERS / f"{service}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def answer(said: str) -> None:
    """A service was asked for something, and does it. Then the power may go: before its answer arrives."""
    global power_cut_after
    print(f"  {said}", flush=True)
    power_cut_after -= 1
    if power_cut_after == 0:
        os.kill(os.getpid(), signal.SIGKILL)


def sell(service: str, key: str, said: str, **what: Any) -> None:
    """Do what was asked for, and write it down."""
    LEDGERS.mkdir(exist_ok=True)
    with (LEDGERS / f"{service}.jsonl").open("a") as file:
        file.write(json.dumps({"key": key, **what}, default=str) + "\n")
        file.flush()
        os.fsync(file.fileno())
    answer(f"{service}: {said}")


def sell_once(service: str, key: str, said: str, **what: Any) -> None:
    """As ``sell``, at a service that honours keys: the same key again is the same sale."""
    if any(sale["key"] == key for sale in ledger(service)):
        answer(f"{service}: {said}, as sold before")
    else:
        sell(service, key, said, **what)
