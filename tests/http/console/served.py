"""The app that the browser tests kill: its one write waits, after its effect, for a file that nobody makes."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path

from ondol import Agent, Runtime, tool
from ondol.testing import ScriptedModel, call

HERE = Path(os.environ["SERVED"])


@tool(effect="read")
def find_order(order_id: str) -> dict[str, str]:
    """Look an order up."""
    return {"order": order_id, "paid": "30.00"}


@tool(effect="once", timeout=timedelta(seconds=3))
def send_email(to: str, body: str) -> str:
    """Send one e-mail."""
    with open(HERE / "outbox.txt", "a") as outbox:
        outbox.write(f"{to}: {body}\n")
    if not (HERE / "crashed").exists():
        (HERE / "crashed").touch()
        time.sleep(60)  # until the test kills the process
    return "sent"


model = ScriptedModel([
    call("find_order", order_id="1182"), call("send_email", to="kim@example.com", body="30.00 are on their way"),
    "The customer was told.",
])  # fmt: skip
rt = Runtime(os.environ["ONDOL_DB"], agents=[Agent("support", model=model, tools=[find_order, send_email])])
