"""Refund support: find an order, pay money back, tell the customer.

Of the 59 lines of code here, 23 are about Ondol; the others are about refunds.
"""

import argparse
import sys
from decimal import Decimal
from typing import Any

import shop
from offline import answers

from ondol import Agent, Context, Happened, NotDone, NotHappened, Runtime, RunWaiting, tool
from ondol.testing import ScriptedModel

ALONE = Decimal(20)  # euros that support may pay back without asking anybody


@tool(effect="read")
async def find_order(order_id: str) -> dict[str, Any]:
    """Look an order up by its number: what was bought, by whom, for how much, and what was paid back already."""
    order = shop.ORDERS.get(order_id)
    if order is None:
        raise LookupError(f"there is no order {order_id}")
    return {"order": order_id, **order, "paid_back": shop.paid_back(order_id)}


def is_large(amount: Decimal) -> bool:
    return amount > ALONE


@tool(effect="idempotent", approve=is_large)
async def refund(ctx: Context, order_id: str, amount: Decimal) -> str:
    """Pay money back for an order, at most what was paid. Amounts above 20 EUR are decided by a person."""
    order = shop.ORDERS.get(order_id)
    if order is None:
        raise NotDone(f"there is no order {order_id}")
    before = shop.paid_back(order_id, besides=ctx.idempotency_key)  # an earlier attempt of this call is no second one
    if not 0 < amount <= order["paid"] - before:
        raise NotDone(f"order {order_id} cost {order['paid']}, {before} of it was paid back: {amount} is too much")
    shop.pay_back(ctx.idempotency_key, order_id, amount)
    return f"{amount} EUR paid back for order {order_id}"


async def was_sent(ctx: Context) -> Happened | NotHappened:
    return Happened("sent") if shop.was_sent(ctx.idempotency_key) else NotHappened()


@tool(effect="once", check=was_sent)
async def send_email(ctx: Context, to: str, body: str) -> str:
    """Send one e-mail to a customer of the shop."""
    if not any(order["customer"] == to for order in shop.ORDERS.values()):
        raise NotDone(f"{to} is not a customer")
    shop.send(ctx.idempotency_key, to, body)
    return "sent"


INSTRUCTIONS = """\
You are the support of a lamp shop. Be brief and kind.
Find the order before you promise anything. Refund what the customer asks for, at most what was paid.
When money was paid back, tell the customer by e-mail. When it was not, say why in your answer.
"""
support = Agent(
    "support",
    model=ScriptedModel(answers, name="offline"),
    instructions=INSTRUCTIONS,
    tools=[find_order, refund, send_email],
)


def main() -> None:
    parser = argparse.ArgumentParser(description="One message to the support of the shop.")
    parser.add_argument("message", nargs="?", default="Order 1182 arrived broken. Can I have my money back?")
    parser.add_argument("--customer", default="kim")
    parser.add_argument("--ticket", default="ticket-1", help="the same ticket again is the same request")
    asked = parser.parse_args()
    rt = Runtime(agents=[support])
    try:
        print(rt.run_sync(support, asked.message, session=asked.customer, operation_id=asked.ticket).text)
    except RunWaiting as waiting:
        sys.exit(str(waiting))


if __name__ == "__main__":
    main()
