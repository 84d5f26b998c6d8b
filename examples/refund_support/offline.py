"""What the model says when there is no model: one plan, followed step by step.

``ondol run examples/refund_support/app.py:support "..." --model openai:...`` puts a real one in its place.
"""

import re
from typing import Any

from ondol import ModelRequest, ToolResponse
from ondol.testing import call


def answers(request: ModelRequest) -> Any:
    """The next answer of a run that holds ``request.step`` answers already."""
    said = next(m.text for m in reversed(request.messages) if m.role == "user" and m.origin is None)
    results = [part for message in request.messages for part in message.parts if isinstance(part, ToolResponse)]
    number = re.search(r"\b\d{4}\b", said)
    if number is None:
        paid = [r.text for r in results if r.name == "refund" and not r.error]
        return f"So far: {'; '.join(paid)}." if paid else "Which order is it about? Please tell me its number."
    if request.step == 0:
        return call("find_order", order_id=number[0])
    last = results[-1]
    if last.error:
        return f"I am sorry, I could not do that: {last.text}."
    match last.name:
        case "find_order":
            return call("refund", order_id=number[0], amount=str(last.value["paid"]))
        case "refund":
            order = next(r.value for r in reversed(results) if r.name == "find_order")
            return call("send_email", to=order["customer"], body=f"Hello! {last.text}. We are sorry.")
        case _:
            return f"Your money is on its way: {results[-2].text}."
