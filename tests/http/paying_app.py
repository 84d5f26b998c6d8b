"""An app that writes into a ledger what it did."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ondol import Agent, Context, Runtime, tool
from ondol.testing import ScriptedModel, call


def note(line: str) -> None:
    with Path(os.environ["LEDGER"]).open("a") as file:
        file.write(line + "\n")


def order(what: str) -> str:
    """Order."""
    note(what)
    return "ordered"


@tool(approve=True)
def pay(ctx: Context[Any], amount: int) -> str:
    """Pay."""
    note(f"pay {ctx.run_id}")
    return "paid"


rt = Runtime(agents=[
    Agent("order", model=ScriptedModel([[call("order", what="tea")], "ordered it"]), tools=[order]),
    Agent("payer", model=ScriptedModel([[call("pay", amount=3)], "done"]), tools=[pay]),
])  # fmt: skip
