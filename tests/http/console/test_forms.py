"""What the forms do: once, on what was shown, and the same as the command line does."""

from __future__ import annotations

import html
import json
import re
from collections.abc import AsyncIterator
from typing import Any, Literal

import pytest
from house import House, house, visitor
from kit import until, waits

from ondol import Agent, Context, ContextPolicy, Memory, Runtime, access, schemas, tool
from ondol.handles import Ask
from ondol.http.guard import Admission
from ondol.testing import ScriptedModel, call


@pytest.fixture
async def h(db: str) -> AsyncIterator[House]:
    async with house(db) as opened:
        yield opened


async def asked(h: House, said: str = "pay") -> Ask:
    (ask,) = await (await h.rests(said)).asks()
    return ask


# --- sending ----------------------------------------------------------------------------------------------------


async def test_pressed_twice_it_is_one_run(h: House) -> None:
    form = (await h.page("/")).fields("/session/send")
    sent = form | {"agent": "support", "text": "find", "session": "kim"}
    first, second = await h.post("/session/send", **sent), await h.post("/session/send", **sent)
    assert first.to == second.to == "/session?id=kim"
    assert len(await h.rt.runs()) == 1
    await h.post("/session/send", **(sent | {"text": "mail"}))  # the page was gone back to, and says something else
    assert len(await h.rt.runs()) == 2
    again = (await h.page("/")).fields("/session/send")
    await h.post("/session/send", **(sent | again))
    assert len(await h.rt.runs()) == 3


async def test_a_conversation_shows_what_was_said_and_done(h: House) -> None:
    form = (await h.page("/")).fields("/session/send")
    there = await h.post("/session/send", **form, agent="support", text="find", session="a/b ?#&é")
    (run,) = await h.rt.runs()
    assert run.session == "a/b ?#&é"
    await run.result()
    page = await h.page(there.to)
    for shown in ("a/b ?#&é", "find", "find_order", "succeeded", "found it", "completed", run.id, "revision 1"):
        assert shown in page.text, shown
    follow = page.fields("/session/send")
    assert (follow["session"], follow["agent"]) == ("a/b ?#&é", "support")
    await h.post("/session/send", **follow, text="mail")
    assert len(await h.rt.runs(session="a/b ?#&é")) == 2


async def test_files_go_along(h: House) -> None:
    form = (await h.page("/")).fields("/session/send") | {"agent": "hello", "text": "", "session": "kim"}
    answer = await h.client.post(
        "/session/send", data=form, files={"files": ("../note.txt", b"hi there", "text/plain")}
    )
    assert answer.status_code == 303
    (run,) = await h.rt.runs()
    await run.result()
    page = await h.page("/session?id=kim")
    assert "note.txt" in page.text
    (link,) = [a for a in page.all("a") if "/blobs/" in str(a["href"])]
    saved = await h.client.get(str(link["href"]))
    assert saved.content == b"hi there"
    assert saved.headers["content-disposition"].startswith("attachment")


async def test_who_sends_says_for_whom(db: str) -> None:
    remembers = Agent("remembers", model=ScriptedModel(lambda _: "yes"), memory=Memory())
    async with Runtime(db, agents=[remembers]) as rt, visitor(rt) as client:
        h = House(rt, client)
        form = (await h.page("/")).fields("/session/send") | {"agent": "remembers", "text": "Tea, please"}
        assert "name one" in (await h.post("/session/send", 422, **form)).text
        there = (await h.post("/session/send", **form, session="s", user="kim")).to
        (field,) = (await h.page(there)).all("input", name="user")
        assert field["value"] == "kim"
        await h.post("/session/send", **form, session="s", user="lee")
        assert [run.user for run in await rt.runs()] == ["lee", "kim"]


async def test_nothing_is_started_by_an_empty_form_or_for_nobody(h: House) -> None:
    assert "nothing to send" in (await h.post("/session/send", 422, agent="hello", text=" ")).text
    assert "nobody" in (await h.post("/session/send", 404, agent="nobody", text="x")).text
    assert (
        await h.client.post("/session/send", content=b"x", headers={"content-type": "text/plain"})
    ).status_code == 415
    other = {"origin": "http://evil.example", "content-type": "application/x-www-form-urlencoded"}
    assert (await h.client.post("/session/send", content=b"agent=hello&text=x", headers=other)).status_code == 403
    assert await h.rt.runs() == []


# --- deciding ---------------------------------------------------------------------------------------------------


async def test_an_ask_shows_the_exact_arguments_and_nothing_above_them(h: House) -> None:
    ask = await asked(h)
    page = await h.page(f"/asks/{ask.id}")
    card = page.html[page.html.index('id="ask-') :]
    above = card[: card.index('<dl class="args">')]
    assert "pay" in above
    for tag in ("<p", "prose", "said"):
        assert tag not in above
    assert "amount 30" in page.text
    assert f"asks approve {ask.id} --by" in page.text
    assert f"asks deny {ask.id} --by" in page.text


async def test_approve(h: House) -> None:
    ask = await asked(h)
    form = (await h.page("/asks")).fields(f"/asks/{ask.id}")
    there = await h.post(f"/asks/{ask.id}", **form, decision="approve", by="lee")
    assert there.to == "/asks"
    run = await h.rt.get_run(ask.run)
    assert (await run.result()).text == "done"
    page = await h.page(f"/asks/{ask.id}")
    assert "approve by lee through console" in page.text
    assert (run.door, (await h.rt.audit())[0].door) == ("python", "console")
    assert page.all("button", value="approve") == []


async def test_what_is_done_on_a_page_says_so_with_the_token_that_did_it(db: str) -> None:
    """A token does not approve through a page what it started through the API, nor the other way round."""
    async with house(db, Admission(needs_token=True)) as h:
        made, secret = await access.create_token(h.rt, "laptop", ["run", "read", "answer"])
        other, others = await access.create_token(h.rt, "desk", ["read", "answer"])
        mine, theirs = ({"authorization": f"Bearer {s}"} for s in (secret, others))
        sent = {"agent": "support", "input": "pay", "session": "api"}
        await h.client.post("/v1/runs", json=sent, headers=mine)
        sent = {"agent": "support", "text": "pay", "session": "page", "key": "k"}
        await h.client.post("/session/send", data=sent, headers=mine)
        runs = {r.session: r for r in await h.rt.runs()}
        assert {s: r.door for s, r in runs.items()} == {"api": f"http:{made.id}", "page": f"console:{made.id}"}
        for run in runs.values():
            (ask,) = await waits(run)
            word = {"decision": "approve", "seen": ask.arguments_hash}
            refused = await h.client.post(f"/asks/{ask.id}", data=word, headers=mine)
            assert (refused.status_code, "cannot approve" in refused.text) == (403, True)
            match = mine | {"if-match": f'"{ask.arguments_hash}"'}
            refused = await h.client.post(f"/v1/asks/{ask.id}/decision", json={"decision": "approve"}, headers=match)
            assert refused.status_code == 403
            taken = await h.client.post(f"/asks/{ask.id}", data=word, headers=theirs)
            assert taken.status_code == 303
            assert (await h.rt.get_ask(ask.id)).door == f"console:{other.id}"


async def test_deny_with_a_reason(h: House) -> None:
    ask = await asked(h)
    form = (await h.page("/")).fields(f"/asks/{ask.id}")
    await h.post(f"/asks/{ask.id}", **form, decision="deny", reason="too much", by="lee")
    (effect,) = await (await h.rt.get_run(ask.run)).effects()
    assert effect.state == "denied"


async def test_other_arguments_replace_those_asked_about_in_full(h: House) -> None:
    ask = await asked(h)
    page = await h.page(f"/asks/{ask.id}")
    form = page.fields(f"/asks/{ask.id}")
    for typed, why in (("{", "no JSON"), ("[1]", "must be a JSON object"), ('{"amount": "x"}', "amount")):
        refused = await h.post(f"/asks/{ask.id}", 422, **form, decision="replace", arguments=typed)
        assert why in refused.text
        assert typed in refused.text, "what was typed is gone"
        assert (await h.rt.get_ask(ask.id)).state == "open"
    replaced = json.dumps({"amount": 10, "to": "lee"})
    await h.post(f"/asks/{ask.id}", **form, decision="replace", arguments=replaced, by="lee")
    run = await h.rt.get_run(ask.run)
    await run.result()
    (effect,) = await run.effects()
    assert effect.arguments == {"amount": 10, "to": "lee"}
    assert 'to "lee"' in (await h.page(f"/session?id={run.session}")).text


async def test_arguments_that_were_edited_are_not_passed_over_by_the_other_approve(h: House) -> None:
    ask = await asked(h)
    form = (await h.page(f"/asks/{ask.id}")).fields(f"/asks/{ask.id}")
    for typed in ('{"amount": 10, "to": "lee"}', "{", "[1]", "1e999", str(10**30)):
        refused = await h.post(f"/asks/{ask.id}", 422, **form, decision="approve", arguments=typed)
        assert "the arguments below were edited" in refused.text
        assert typed in refused.text, "what was typed is gone"
        assert (await h.rt.get_ask(ask.id)).state == "open"
    asked_about = json.dumps(ask.arguments, indent=4)  # a browser hands in what the page showed
    await h.post(f"/asks/{ask.id}", **form, decision="approve", arguments=asked_about, by="lee")
    (effect,) = await (await h.rt.get_run(ask.run)).effects()
    assert effect.arguments == ask.arguments


async def test_what_was_not_shown_is_not_decided(h: House) -> None:
    ask = await asked(h)
    for seen, status in (("", 428), ("0" * 64, 412)):
        refused = await h.post(f"/asks/{ask.id}", status, decision="approve", seen=seen)
        assert refused.all("button", value="approve"), "the ask is shown as it is now"
    assert (await h.rt.get_ask(ask.id)).state == "open"


async def test_decided_elsewhere_says_by_whom(h: House) -> None:
    ask = await asked(h)
    form = (await h.page(f"/asks/{ask.id}")).fields(f"/asks/{ask.id}")
    await ask.deny(by="lee")
    page = await h.post(f"/asks/{ask.id}", 409, **form, decision="approve", by="kim")
    assert "already decided" in page.text
    assert "deny by lee" in page.text
    assert (await h.rt.get_ask(ask.id)).decision == "deny"
    form = (await h.page(f"/asks/{(other := await asked(h)).id}")).fields(f"/asks/{other.id}")
    for _ in range(2):  # a double click
        await h.post(f"/asks/{other.id}", **form, decision="approve", by="kim")


async def test_a_question_is_answered_in_its_type(h: House) -> None:
    ask = await asked(h, "leave")
    page = await h.page(f"/asks/{ask.id}")
    assert [b.get("value") for b in page.all("button", name="value")] == ["true", "false"]
    form = page.fields(f"/asks/{ask.id}")
    assert "already" not in (await h.post(f"/asks/{ask.id}", 422, **form, value="maybe")).text
    await h.post(f"/asks/{ask.id}", **form, value="true", by="lee")
    run = await h.rt.get_run(ask.run)
    await run.result()
    assert "deleted" in (await h.page(f"/runs/{run.id}")).text


@pytest.mark.parametrize(
    ("schema", "shown", "typed", "answer"),
    [
        (Literal["a", None], ['"a"', "null"], "null", None),
        (Literal["1", 1, True], ['"1"', "1", "true"], '"1"', "1"),
        (Literal["a", "b"], ["a", "b"], "a", "a"),
        (str | None, ["Answer"], "1182", "1182"),
        (str | None, ["Answer"], "null", None),
        (bool | None, ["Answer"], "yes", True),
        (str, ["Answer"], '"1182"', '"1182"'),
    ],
)
async def test_what_can_be_answered_is_seen_and_typed_as_on_the_command_line(
    db: str, schema: Any, shown: list[str], typed: str, answer: Any
) -> None:
    @tool(effect="steps")
    async def question(ctx: Context[None]) -> str:
        return repr(await ctx.ask("Which one?", schema=schema))

    agent = Agent("asks", model=ScriptedModel([call("question"), "done"]), tools=[question])
    async with Runtime(db, agents=[agent]) as rt, visitor(rt) as client:
        h = House(rt, client)
        run = await h.rests("go", "asks")
        (ask,) = await run.asks()
        page = await h.page(f"/asks/{ask.id}")
        if shown == ["Answer"] and schema is not str:
            assert f"as JSON: {schemas.described(ask.schema or {})}" in page.text
        buttons = re.findall(r"<button (?:class=\"go\"|name=\"value\")[^>]*>(.*?)</button>", page.html)
        assert [html.unescape(re.sub(r"<svg.*</svg>", "", b)) for b in buttons] == shown
        await h.post(f"/asks/{ask.id}", **page.fields(f"/asks/{ask.id}"), value=typed, by="lee")
        assert (await rt.get_ask(ask.id)).value == answer


async def test_an_unknown_effect_is_settled_by_what_somebody_saw(h: House) -> None:
    ask = await asked(h, "lost")
    where = f"/effects/{ask.effect}/resolve"
    page = await h.page("/")
    assert "send_email" in page.text
    form = page.fields(where)
    for outcome in ("happened", "not_happened", "give_up"):
        refused = await h.post(where, 422, **form, outcome=outcome, evidence=" ", result="<sent>")
        assert "that is the evidence" in refused.text
        assert "<sent>" in refused.text, "what was typed is gone"
    assert "say what you saw" in (await h.post(where, 422, **form, outcome="", evidence="x")).text
    there = await h.post(where, **form, outcome="happened", evidence="it is in the outbox", result="sent", by="lee")
    assert there.to == "/"
    run = await h.rt.get_run(ask.run)
    assert (await run.result()).text == "told"
    effect = await h.page(f"/effects/{ask.effect}")
    assert "succeeded" in effect.text
    assert "happened by lee through console" in effect.text
    late = await h.post(where, 409, outcome="not_happened", evidence="it is not there", by="kim")
    assert "already decided" in late.text
    (act,) = [a for a in await h.rt.audit() if "happened" in a.act]
    assert (act.by, act.note) == ("lee", "it is in the outbox")


async def test_what_is_unknown_of_a_run_that_has_ended_is_not_offered_to_be_run(h: House) -> None:
    ask = await asked(h, "lost")
    pages = (
        "/",
        "/asks",
        f"/asks/{ask.id}",
        f"/effects/{ask.effect}",
        f"/runs/{ask.run}",
        f"/session?id={ask.session}",
    )
    for address in pages:
        assert "It did not: run it" in (await h.page(address)).text, address
    await (await h.rt.get_run(ask.run)).cancel(by="lee")
    for address in pages:
        shown = (await h.page(address)).text
        assert "It did not" in shown, address
        assert "run it" not in shown, address


@pytest.mark.parametrize(
    ("fields", "value"),
    [
        ({"decision": "compact"}, None),
        ({"decision": "drop", "part": ""}, ["calls", "turns"]),
        ({"decision": "drop", "part": "turns"}, ["turns"]),
        ({"decision": "raise", "tokens": "9000"}, 9000),
    ],
)
async def test_a_request_that_is_too_large_is_decided_like_any_ask(
    db: str, fields: dict[str, str], value: object
) -> None:
    model = ScriptedModel(lambda request: "so it is, as far as anybody knows " * 20)
    policy = ContextPolicy(budget=1_200, on_overflow="ask", keep=1, summary="excerpt")
    agent = Agent("talks", model=model, context=policy)
    async with Runtime(db, agents=[agent]) as rt, visitor(rt) as client:
        h, asks = House(rt, client), list[Ask]()
        while not asks:
            run = await rt.start(agent, "and then?", session="s")
            async for _ in run.events():
                pass
            asks = await run.asks()
        page = await h.page("/")
        assert "budget 1200" in page.text
        assert [b["value"] for b in page.all("button", name="decision")] == ["compact", "drop", "raise", "fail"]
        at = f"/asks/{asks[0].id}"
        seen = page.fields(at) | {"by": "lee"}
        assert "no number of tokens" in (await h.post(at, 422, **seen, decision="raise", tokens="more")).text
        await h.post(at, **seen, **fields)
        await run.result()
        decided = await rt.get_ask(asks[0].id)
        assert (decided.decision, decided.value) == (fields["decision"], value)


# --- runs -------------------------------------------------------------------------------------------------------


async def test_cancel_stops_a_run_and_says_who_did(h: House) -> None:
    ask = await asked(h)
    form = (await h.page("/runs")).fields(f"/runs/{ask.run}/cancel")
    there = await h.post(f"/runs/{ask.run}/cancel", **form, by="lee")
    assert there.to == "/runs"
    assert "cancelled" in (await h.page(f"/runs/{ask.run}")).text
    assert (await h.rt.get_run(ask.run)).status == "cancelled"
    await h.post(f"/runs/{ask.run}/cancel", **form)  # again: nothing more happens
    assert "ask closed" in (await h.post(f"/asks/{ask.id}", 409, decision="approve", seen=ask.arguments_hash)).text


async def test_what_failed_for_now_can_be_cancelled(h: House) -> None:
    run = await h.rests("x", "down")
    page = await h.page(f"/runs/{run.id}")
    assert f"runs cancel {run.id}" in page.text
    await h.post(f"/runs/{run.id}/cancel", **page.fields(f"/runs/{run.id}/cancel"))
    assert (await run.refresh()).status == "cancelled"
    assert f"/runs/{run.id}/resume" not in (await h.page(f"/runs/{run.id}")).text


async def test_resume_goes_on_with_what_failed_for_now(h: House) -> None:
    run = await h.rests("x", "down", operation_id="d-1")
    page = await h.page(f"/runs/{run.id}")
    assert "model_auth" in page.text
    assert "explain model_auth" in page.text
    assert f"runs resume {run.id}" in page.text
    await h.post(f"/runs/{run.id}/resume", **page.fields(f"/runs/{run.id}/resume"))
    assert (await until(run, "run.queued", why="retried")).data["why"] == "retried"
    done = await h.rests("hi", "hello")
    assert "for good" in (await h.post(f"/runs/{(await cancelled(h)).run}/resume", 409)).text
    assert (await h.rt.get_run(done.id)).status == "completed"


async def cancelled(h: House) -> Ask:
    ask = await asked(h)
    await (await h.rt.get_run(ask.run)).cancel(by="lee")
    return ask


async def test_a_replay_shows_its_verdict_first_and_wants_a_reason(h: House) -> None:
    run = await h.rests("mail", session="kim")
    page = await h.page(f"/runs/{run.id}/replay")
    assert "guarded" in page.text
    assert "send_email once succeeded" in page.text
    form = page.fields(f"/runs/{run.id}/replay")
    assert "replay" in (await h.post(f"/runs/{run.id}/replay", 409, **form)).text
    there = await h.post(f"/runs/{run.id}/replay", **form, why="the customer asked", by="lee")
    assert (await h.post(f"/runs/{run.id}/replay", **form, why="the customer asked", by="lee")).to == there.to
    again = await h.rt.get_run(there.to.rpartition("/")[2])
    assert again.replay_of == run.id
    await again.result()
    line = await h.page(f"/runs/{run.id}/lineage")
    assert again.id in line.text
    unknown = await asked(h, "lost")
    blocked = await h.page(f"/runs/{unknown.run}/replay")
    assert "blocked" in blocked.text
    assert f'action="/runs/{unknown.run}/replay"' not in blocked.html


async def test_a_fork_goes_on_from_a_step_in_a_session_of_its_own(h: House) -> None:
    run = await h.rests("find", session="kim")
    form = (await h.page(f"/runs/{run.id}")).fields(f"/runs/{run.id}/fork")
    assert form["at_step"] == "1"
    there = await h.post(f"/runs/{run.id}/fork", **form, effects="reuse")
    assert (await h.post(f"/runs/{run.id}/fork", **form, effects="reuse")).to == there.to
    fork = await h.rt.get_run(there.to.rpartition("/")[2])
    assert (fork.forked_at, fork.replay_of) == (1, run.id)
    assert fork.session != "kim"
    for at in ("0", "x", "", "9" * 30):
        await h.post(f"/runs/{run.id}/fork", 422, at_step=at)


async def test_erasing_wants_a_tick_and_the_revision_that_was_seen(h: House) -> None:
    await h.rests("find", session="kim")
    form = (await h.page("/session?id=kim")).fields("/session/erase")
    assert "tick the box" in (await h.post("/session/erase", 422, **form)).text
    await h.rests("mail", session="kim")
    assert "revision" in (await h.post("/session/erase", 412, **form, sure="yes")).text
    form = (await h.page("/session?id=kim")).fields("/session/erase")
    assert (await h.post("/session/erase", **form, sure="yes")).to == "/sessions"
    assert await h.rt.sessions() == []


# --- what a model sees of a session -----------------------------------------------------------------------------


async def test_what_the_preview_shows_is_done_to_the_session_that_was_looked_at(h: House) -> None:
    for n in range(3):
        run = await h.rests(f"say {n} <b>at length</b> " + "and on " * 40, "hello", session="kim & lee")
    page = await h.page(f"/runs/{run.id}/context?keep=1")
    form = page.fields("/session/compact")
    assert form == {"session": "kim & lee", "revision": "3", "keep": "1"}
    assert re.search("sessions compact --keep 1 --by .*? 'kim & lee'", page.text)
    told = await h.rt.compact_session("kim & lee", keep=1, preview=True)
    there = await h.post("/session/compact", **form, by="lee")
    assert there.to == "/session?id=kim+%26+lee"
    session = await h.rt.get_session("kim & lee")
    assert session.revision == 4
    seen = await h.page(there.to)
    assert f"a summary in the place of {told.first} to {told.last}" in seen.text
    assert "hello" in seen.text.partition("The summary, by script")[2]
    assert [(a.act, a.by, a.door) for a in await h.rt.audit()] == [("session.compact", "lee", "console")]
    stale = await h.post("/session/compact", 412, **form)
    assert "is at revision 4, not 3: load it again" in stale.text
    for wrong in ({"keep": "all"}, {"revision": "new"}):
        await h.post("/session/compact", 422, **(form | wrong))
    await h.rt.pin("kim & lee", "never mail <b>outside</b>", by="lee")
    pinned = await h.page(there.to)
    assert "p1 never mail <b>outside</b> lee" in pinned.text
    assert "<b>outside</b>" not in pinned.html
    assert (await h.rt.get_session("kim & lee")).revision == 5
