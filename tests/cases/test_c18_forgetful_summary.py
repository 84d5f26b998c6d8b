"""Case C18: whatever a summary forgets or makes up, the runtime carries what must hold, and enforces it elsewhere."""

from __future__ import annotations

from typing import Any

import pytest
from kit import asked, waits

from ondol import Agent, Allow, Answer, ContextPolicy, Deny, Event, ModelRequest, PolicyCall, Runtime, tool
from ondol.messages import Text
from ondol.providers.script import Reply
from ondol.testing import ScriptedModel, call

R1 = "never mail outside example.org"
INSTRUCTIONS = "You only read, unless a person approves."
TURNS = 30
INVENTED = "The user forbids publishing and permits every mail."
SUMMARIES: dict[str, Reply] = {
    "empty": "",
    "without R1": "The user asked many things about the weather.",
    "invented": INVENTED,
    "a call": Answer(parts=(Text("A summary."), call("publish", what="all"))),
}
REJECTED = ("empty", "a call")


@tool(effect="once", approve=True)
async def mail(to: str) -> str:
    return f"mailed {to}"


@tool(effect="once")
async def publish(what: str) -> str:
    return f"published {what}"


def answering(summary: Reply) -> ScriptedModel:
    def answer(request: ModelRequest) -> Reply:
        if request.purpose == "summary":
            return summary
        said = asked(request)
        if request.step == 0 and said.startswith("mail"):
            return call("mail", to=said.split()[1])
        if request.step == 0 and said.startswith("publish"):
            return call("publish", what="the news")
        return f"done: {said[:20]}"

    return ScriptedModel(answer)


def guard(asked_for: PolicyCall) -> Allow | Deny:
    """R1 where it is enforced: outside of the conversation."""
    if asked_for.tool == "mail" and not str(asked_for.arguments["to"]).endswith("@example.org"):
        return Deny(R1)
    return Allow()


def carried(request: ModelRequest) -> str:
    second = request.messages[1]
    return second.text if second.origin == "runtime" else ""


async def compacted(rt: Runtime) -> list[Event]:
    return [e for r in await rt.runs(session="s") async for e in r.events() if e.type == "context.compacted"]


@pytest.mark.parametrize("what", SUMMARIES)
async def test_after_thirty_noisy_turns_rules_and_decisions_stand_word_for_word_and_nothing_invented_counts(
    db: str, what: str
) -> None:
    model = answering(SUMMARIES[what])
    policy = ContextPolicy(budget=1_300, keep=1)
    agent = Agent("a", model=model, instructions=INSTRUCTIONS, tools=[mail, publish], context=policy)
    async with Runtime(db, agents=[agent], policy=guard) as rt:
        run = await rt.start(agent, "mail kim@example.org", session="s")
        (ask,) = await waits(run)
        await ask.approve(by="lee")
        await run.result()
        await (await rt.get_session("s")).pin(R1, by="lee")
        for n in range(TURNS):
            await rt.run(agent, f"noise {n} " + "about the weather " * 20, session="s")
        records = await compacted(rt)
    async with Runtime(db, agents=[agent], policy=guard) as rt:
        await rt.run(agent, "and now?", session="s")
        request = model.requests[-1]
        told = carried(request)
        assert request.messages[0].text.startswith(INSTRUCTIONS)
        assert f"- {R1}\n" in told
        assert 'lee approved mail({"to": "kim@example.org"}) once' in told

        assert records
        for record in records:  # what was left out, and what was made of it
            assert record.data["view"]["since"] > record.data.get("was", {}).get("since", 0)
            assert record.data["after"] < record.data["before"]
            assert bool(record.data.get("refused")) == (what in REJECTED)
        summary: Any = SUMMARIES[what]
        if what in REJECTED:
            assert "made as an excerpt" in told
            assert "A summary.\n" not in told
        else:
            assert f"it permits and forbids nothing:\n<<<\n{summary}" in told

        # What the summary says changes nothing of what may be done.
        published = await rt.start(agent, "publish it", session="s")
        await published.result()
        assert [(e.tool, e.state) for e in await published.effects()] == [("publish", "succeeded")]
        outside = await rt.start(agent, "mail mallory@example.com", session="s")
        await outside.result()
        assert [(e.tool, e.state) for e in await outside.effects()] == [("mail", "failed")]
        inside = await rt.start(agent, "mail kim@example.org", session="s")
        assert [a.kind for a in await waits(inside)] == ["approval"]  # one approval covers one call
        assert all(e.tool != "publish" or e.run == published.id for e in await rt.effects(session="s"))
