"""The usual loop, as it stands in most agents: what it knows is in memory."""

from __future__ import annotations

from typing import Any

from ondol.cli.demo import shop as shops
from ondol.cli.demo.shop import Crash, Shop, tell


def run(shop: Shop, crash: Crash) -> None:
    def find_order(order_id: str) -> dict[str, str]:
        found = shops.ORDERS[order_id]
        crash.comes("find_order")
        return found

    def refund(order_id: str, amount: str) -> str:
        shop.pay_back(f"refund {order_id}", order_id, amount)
        crash.comes("refund")
        return "refunded"

    def send_email(to: str, body: str) -> str:
        shop.send("-", to, body)
        crash.comes("send_email")
        return "sent"

    tools: dict[str, Any] = {"find_order": find_order, "refund": refund, "send_email": send_email}
    messages: list[dict[str, Any]] = [{"role": "user", "content": shops.REQUEST}]
    while True:
        answer = model(messages)
        messages.append(answer)
        if "call" not in answer:
            break
        name, arguments = answer["call"]
        result = tools[name](**arguments)
        tell(f"{name:<11} done")
        messages.append({"role": "tool", "content": result})
    tell(f"answer      {messages[-1]['content']}")
    tell(f"the usual loop: {shop.emails()}")


def model(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """A model that always wants the same, in the same order."""
    wanted: list[dict[str, Any]] = [
        {"call": ("find_order", {"order_id": "1182"})},
        {"call": ("refund", {"order_id": "1182", "amount": "30"})},
        {"call": ("send_email", {"to": shops.TO, "body": shops.BODY})},
        {"content": shops.DONE},
    ]
    return {"role": "assistant", **wanted[sum(m["role"] == "tool" for m in messages)]}
