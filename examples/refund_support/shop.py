"""The outside world: the shop's orders, its payment service and its mail service, as files.

They stand in for services on a network, and they outlive this program. The payment service honours an idempotency
key. The mail service does not, but it can be searched.
"""

import json
import os
from decimal import Decimal
from pathlib import Path
from typing import Any

LEDGERS = Path("outside")
ORDERS: dict[str, dict[str, Any]] = {
    "1182": {"customer": "kim@example.com", "item": "floor lamp", "paid": Decimal("30.00")},
    "1183": {"customer": "kim@example.com", "item": "lamp shade", "paid": Decimal("12.50")},
    "1190": {"customer": "lee@example.com", "item": "desk", "paid": Decimal("249.00")},
}


def ledger(service: str) -> list[dict[str, Any]]:
    """Everything that a service ever did."""
    path = LEDGERS / f"{service}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def write(service: str, **done: Any) -> None:
    """A service did something: it is on the disk when this returns."""
    LEDGERS.mkdir(exist_ok=True)
    with (LEDGERS / f"{service}.jsonl").open("a") as file:
        file.write(json.dumps(done, default=str) + "\n")
        file.flush()
        os.fsync(file.fileno())


def paid_back(order_id: str, besides: str = "") -> Decimal:
    """What was paid back for an order, but for the payment with this key."""
    payments = (p for p in ledger("payments") if p["order"] == order_id and p["key"] != besides)
    return sum((Decimal(p["amount"]) for p in payments), Decimal("0.00"))


def pay_back(key: str, order_id: str, amount: Decimal) -> None:
    """The payment service: the same key again is the same payment."""
    if not any(payment["key"] == key for payment in ledger("payments")):
        write("payments", key=key, order=order_id, amount=amount)


def send(key: str, to: str, body: str) -> None:
    """The mail service: it sends what it is given."""
    write("mail", key=key, to=to, body=body)


def was_sent(key: str) -> bool:
    return any(mail["key"] == key for mail in ledger("mail"))
