"""The same work on Ondol: what is done is written down, so a killed process is only a pause."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime, timedelta
from typing import Any

from ondol.agent import Agent
from ondol.cli import codes
from ondol.cli.bystander import Bystander
from ondol.cli.demo import shop as shops
from ondol.cli.demo.shop import Crash, Shop, tell
from ondol.cli.follow import waiting_code
from ondol.cli.output import say_failed
from ondol.errors import NotFound, OndolError, RunWaiting
from ondol.events import Event
from ondol.handles import Ask, Effect, Run, this_person
from ondol.providers.script import ScriptedModel, call
from ondol.runtime import Runtime
from ondol.showing import called, counted, exact
from ondol.tools import Context, Happened, NotHappened, Tool, tool

OPERATION = "refund order 1182"
_TIMEOUT = 2.0  # seconds a call may take, when nobody has to find the time to kill it


# --- the agents: all there is to it -----------------------------------------------------------------------------


def find_order_tool(crash: Crash) -> Tool[..., Any]:
    @tool(effect="read")
    def find_order(order_id: str) -> dict[str, str]:
        """Look an order up."""
        found = shops.ORDERS[order_id]
        crash.comes("find_order")
        return found

    return find_order


def refund_tool(shop: Shop, crash: Crash, *, asks: bool = False) -> Tool[..., Any]:
    @tool(effect="idempotent", timeout=_time(crash), approve=asks)
    def refund(ctx: Context[None], order_id: str, amount: str) -> str:
        """Pay an order back."""
        shop.pay_back(ctx.idempotency_key, order_id, amount)
        crash.comes("refund")
        return "refunded"

    return refund


def send_email_tool(shop: Shop, crash: Crash, *, can_look: bool) -> Tool[..., Any]:
    def was_sent(ctx: Context[None], to: str, body: str) -> Happened | NotHappened:
        sent = shop.was_sent(ctx.idempotency_key)
        found = "it is" if sent else "it is not"
        tell(f"send_email  check looks downstream: {found} in {shop.outbox}")
        return Happened("sent") if sent else NotHappened()

    @tool(effect="once", check=was_sent if can_look else None, timeout=_time(crash))
    def send_email(ctx: Context[None], to: str, body: str) -> str:
        """Send an e-mail to a customer."""
        shop.send(ctx.idempotency_key, to, body)
        crash.comes("send_email")
        return "sent"

    return send_email


def refund_agent(shop: Shop, crash: Crash) -> Agent:
    tools = [find_order_tool(crash), refund_tool(shop, crash), send_email_tool(shop, crash, can_look=True)]
    return Agent("demo-refund", model=_model(), tools=tools)


def unknown_agent(shop: Shop, crash: Crash) -> Agent:
    tools = [find_order_tool(crash), refund_tool(shop, crash), send_email_tool(shop, crash, can_look=False)]
    return Agent("demo-unknown", model=_model(), tools=tools)


def approval_agent(shop: Shop, crash: Crash) -> Agent:
    tools = [find_order_tool(crash), refund_tool(shop, crash, asks=True), send_email_tool(shop, crash, can_look=True)]
    return Agent("demo-approval", model=_model(), tools=tools)


def _model() -> ScriptedModel:
    return ScriptedModel([
        call("find_order", order_id="1182"),
        call("refund", order_id="1182", amount="30"),
        call("send_email", to=shops.TO, body=shops.BODY),
        shops.DONE,
    ])  # fmt: skip


def _time(crash: Crash) -> timedelta:
    return timedelta(seconds=max(_TIMEOUT, crash.pause + 0.1))


# --- what is printed about it -----------------------------------------------------------------------------------


async def run(agent: Agent, shop: Shop, crash: Crash, again: str) -> int:
    """Start the operation, or go on with it: the same lines do both. Returns the exit code."""
    recorded, steps = await _before(shop, agent)
    if recorded is not None:
        _say_recorded(*recorded, steps)
    model = agent.model
    assert isinstance(model, ScriptedModel)
    async with Runtime(shop.url, agents=[agent], door="cli") as rt:
        operation = f"{agent.name}: {OPERATION}"
        run = await rt.start(agent, shops.REQUEST, session=agent.name, operation_id=operation)
        async for event in run.events(after=recorded[2] if recorded is not None else None):
            _say_event(event)
        try:
            result = await run.result()
        except RunWaiting as waiting:
            asks = await rt.asks(run=waiting.run)
            _say_asks(shop, asks, again)
            return waiting_code(asks)
        except OndolError as error:
            say_failed(error)
            tell(f"begin anew: {again} --fresh")
            return codes.of_error(error)
    tell(f"answer      {result.text}")
    if recorded is not None:
        repeated = sum(1 for request in model.requests if request.step < steps)
        new = len(model.requests) - repeated
        tell(f"model       {counted(repeated, 'call')} for the {counted(steps, 'step')} before, {new} for those after")
    tell(f"on Ondol: {shop.refunded()}")
    tell(f"on Ondol: {shop.emails()}")
    return codes.OK


async def _before(shop: Shop, agent: Agent) -> tuple[tuple[Run, list[Effect], str] | None, int]:
    """What an earlier process wrote down: the run, its effects and its last event; and how many answers there are."""
    if not shop.db.exists():
        return None, 0
    async with Runtime(Bystander(shop.db), door="cli") as rt:
        try:
            run = await rt.find_run(f"{agent.name}: {OPERATION}")
        except NotFound:
            return None, 0
        answers = sum(1 for message in await run.messages() if message.role == "assistant")
        return (run, await run.effects(), f"{run.id}/{run._row.next_seq - 1}"), answers


def _say_recorded(run: Run, effects: list[Effect], _: str, steps: int) -> None:
    if run.status == "completed":
        tell("this operation is completed: the stored answer is given again (--fresh begins anew)")
        return
    reused = f"{counted(steps, 'answer')} of the model {'is' if steps == 1 else 'are'} reused, not asked for again"
    tell(f"run {run.id} is in the journal: {reused}")
    for effect in effects:
        tell(f"{effect.tool:<11} {effect.effect:<11} {_recorded(effect)}")


def _recorded(effect: Effect) -> str:
    match effect.state:
        case "succeeded":
            return "reused: its result is in the journal"
        case "started":
            left = 0.0 if effect.deadline is None else (effect.deadline - datetime.now(UTC)).total_seconds()
            wait = f"; for {left:.0f} s more it could still act" if left > 0 else ""
            return f"was started, its outcome was lost{wait}"
        case "unknown":
            return "may have happened"
        case "asked":
            return "waits for a person's word"
        case "approved":
            return "was approved: it runs now"
        case state:
            return f"{state}: it had not begun"


def _say_event(event: Event) -> None:
    d = event.data
    match event.type:
        case "effect.planned":
            wanted = called(d["tool"], d["arguments"])
            tell(f"model       wants {wanted}")
        case "effect.started" if d["attempt"] > 1:
            tell(f"{d['tool']:<11} again, with the same key")
        case "effect.succeeded":
            how = {"tool": "done", "check": "done before the crash, not repeated", "person": "done, a person says so"}
            tell(f"{d['tool']:<11} {how[d.get('by', 'tool')]}")
        case "effect.failed":
            tell(f"{d['tool']:<11} failed: {exact(d.get('reason', ''))}")
        case _:
            pass


def _say_asks(shop: Shop, asks: list[Ask], again: str) -> None:
    for ask in asks:
        asked = called(ask.tool, ask.arguments)
        if ask.kind == "approval":
            tell(f"waiting for a person: {asked}")
            tell("this process ends now, the question stays. To decide:")
            _say_command(shop, "asks", "approve", ask.id, "--by", this_person())
            _say_command(shop, "asks", "deny", ask.id, "--by", this_person(), "--reason", "not refundable")
        else:
            tell(f"unknown: {asked} was started, and nobody can tell whether it happened. Ondol does not guess.")
            tell(f"look into {shop.outbox}, then settle it:")
            settle = ("effects", "resolve", ask.effect or "")
            _say_command(shop, *settle, "--happened", "--evidence", "it is in the outbox", "--by", this_person())
            _say_command(shop, *settle, "--not-happened", "--evidence", "it is not there", "--by", this_person())
        tell(f"then run the same command again: {again}")


def _say_command(shop: Shop, *words: str) -> None:
    tell("  " + shlex.join(["ondol", "--db", shop.url, *words]))
