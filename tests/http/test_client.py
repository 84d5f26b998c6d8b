"""The client has the methods of a runtime, its handles and its errors; what is safe is sent again."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import signal
from collections.abc import AsyncIterator, Callable
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest
from cli.command import Done, ondol
from door import Door, door
from kit import Conversation, Gate

from ondol import (
    Agent,
    AlreadyDecided,
    Ask,
    AsyncClient,
    By,
    Client,
    Context,
    Limits,
    NotFound,
    OperationMismatch,
    ReplayUnsafe,
    ReplayVerdict,
    Run,
    RunFailed,
    Runtime,
    RunWaiting,
    Session,
    access,
    tool,
)
from ondol.blocking import BlockingAsk, BlockingRun, BlockingSession, _Loop
from ondol.cli.surface import Cli, Options
from ondol.errors import (
    Forbidden,
    InvalidInput,
    NotOpen,
    QueueFull,
    RevisionConflict,
    SessionBusy,
    Unreachable,
    WrongCursor,
)
from ondol.http.guard import Admission
from ondol.testing import ScriptedModel, call, error
from ondol.transactions import Decision


@tool(approve=True)
def pay(amount: Decimal) -> str:
    """Pay."""
    return f"paid {amount}"


@tool(effect="read")
def fine() -> str:
    """Do nothing."""
    return "fine"


def agents() -> list[Agent]:
    paying = Conversation({"pay": [[call("pay", amount="30")], "done"]})
    return [
        Agent("hello", model=ScriptedModel(lambda _: "hello")), Agent("payer", model=paying, tools=[pay]),
        Agent("broken", model=ScriptedModel(lambda _: error("rejected", "no"))),
    ]  # fmt: skip


@pytest.fixture
async def http(db: str) -> AsyncIterator[Door]:
    async with Runtime(db, agents=agents()) as rt, door(rt) as opened:
        yield opened


@pytest.fixture
async def there(http: Door) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(http.url) as client:
        yield client


async def test_a_run_from_afar_is_the_run(there: AsyncClient, http: Door) -> None:
    noted = {"n": 2**60, "at": date(2026, 11, 30), "paid": Decimal("1.50"), 7: {"$ondol": "a key"}}
    run = await there.start("hello", "hi", session="a/b", user="kim", operation_id='k "1"', metadata=noted)
    result = await run.result()
    here = await http.app.runtime.get_run(run.id)
    assert (result.text, result.body) == ("hello", (await here.result()).body)
    assert (run.session, run.user, run.operation_id, here.metadata) == ("a/b", "kim", 'k "1"', noted)
    assert run.metadata == (await there.get_run(run.id)).metadata == noted
    again = await there.start("hello", "hi", session="a/b", user="kim", operation_id='k "1"')
    assert (again.id, again.replayed) == (run.id, True)
    with pytest.raises(OperationMismatch, match="choose a new operation id"):
        await there.start("hello", "other", session="a/b", user="kim", operation_id='k "1"')
    assert [e.id async for e in run.events()] == [e.id async for e in here.events()]
    session = await there.get_session("a/b")
    assert (session.revision, session.user) == (1, "kim")
    assert [m.message.text for m in await session.messages()] == ["hi", "hello"]
    assert (await there.context(run.id)).matches
    assert [line.runs for line in await there.usage(by="agent")] == [1]
    with pytest.raises(NotFound, match="there is no run 'nobody'"):
        await there.get_run("nobody")
    failed = await there.start("broken", "hi")
    with pytest.raises(RunFailed) as ended:
        await failed.result()
    assert ended.value.error["code"] == "model_rejected"


async def test_asks_are_decided_from_afar(there: AsyncClient, http: Door) -> None:
    run = await there.start("payer", "pay")
    with pytest.raises(RunWaiting):
        await run.result()
    (ask,) = await run.asks()
    decided = await ask.approve(by="lee", arguments={"amount": Decimal("20.50")})
    assert (decided.state, decided.decided_by) == ("decided", "lee")
    with pytest.raises(AlreadyDecided):
        await ask.deny(by="kim")
    assert (await run.result()).text == "done"
    (effect,) = await run.effects()
    assert (effect.state, effect.arguments) == ("succeeded", {"amount": "20.50"})
    verdict = await there.replay(run, dry_run=True)
    assert verdict == await http.app.runtime.replay(run.id, dry_run=True)  # its times, too, read as there
    assert isinstance(verdict, ReplayVerdict)
    assert verdict.kind == "guarded"
    with pytest.raises(ReplayUnsafe) as unsafe:
        await there.replay(run)
    assert unsafe.value.verdict == verdict
    again = await there.replay(run, force=By("lee", "again"))
    assert isinstance(again, Run)
    assert (await again.lineage()).origin is not None
    fork = await there.fork(run, at_step=2, operation_id="f1")
    assert ((await fork.result()).text, fork.replayed) == ("done", False)


@pytest.mark.parametrize("far", [False, True])
async def test_the_id_of_a_replay_or_a_fork_that_was_completed_finds_it(db: str, far: bool) -> None:
    agent = Agent("fine", model=Conversation({"hi": ["hello"]}))
    async with Runtime(db, agents=[agent]) as rt, door(rt) as http, AsyncClient(http.url) as there:
        run = await rt.start("fine", "hi")
        await run.result()
        asked: AsyncClient | Runtime = there if far else rt
        for again in (
            lambda: asked.replay(run.id, operation_id="r1"),
            lambda: asked.fork(run.id, at_step=1, operation_id="f1"),
        ):
            first = await again()
            result = await first.result()
            second = await again()
            assert (second.id, first.replayed, second.replayed) == (first.id, False, True)
            assert ((await second.result()).body, (await second.result()).replayed) == (result.body, True)


async def test_an_error_has_from_afar_what_it_has_in_the_process(db: str) -> None:
    paying = Conversation({"pay": [[call("pay", amount="30")], "done"]})
    payer = Agent("payer", model=paying, tools=[pay], limits=Limits(queue=0))
    async with Runtime(db, agents=[payer]) as rt, door(rt) as http, AsyncClient(http.url) as there:
        run = await rt.start("payer", "pay", session="s")
        with pytest.raises(RunWaiting):
            await run.result()
        revision = (await rt.get_session("s")).revision
        for one in (rt, there):
            with pytest.raises(RevisionConflict) as conflict:
                await one.start("payer", "pay", session="s", expected_revision=70)
            assert (conflict.value.session, conflict.value.expected, conflict.value.actual) == ("s", 70, revision)
            with pytest.raises(SessionBusy) as busy:
                await one.start("payer", "pay", session="s", if_busy="reject")
            assert (busy.value.session, busy.value.run) == ("s", run.id)
            with pytest.raises(QueueFull) as full:
                await one.start("payer", "pay", session="s")
            assert (full.value.session, full.value.limit) == ("s", 0)


class Breaking(httpx.AsyncHTTPTransport):
    """Loses what ``loses`` says: the answer to a request, after the server has done it."""

    def __init__(self, loses: Callable[[httpx.Request, int], bool]) -> None:
        super().__init__()
        self.loses, self.requests = loses, 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.requests += 1
        answer = await super().handle_async_request(request)
        if self.loses(request, self.requests):
            await answer.aread()
            raise httpx.ReadError("the answer is lost", request=request)
        return answer


async def test_none_is_an_answer_from_afar_too(db: str) -> None:
    @tool(effect="steps")
    async def ask(ctx: Context[None]) -> str:
        """Ask."""
        return str(await ctx.ask("Which table?", schema=int | None))

    agent = Agent("asker", model=Conversation({"ask": [[call("ask")], "done"]}), tools=[ask])
    async with Runtime(db, agents=[agent]) as rt, door(rt) as http, AsyncClient(http.url) as there:
        run = await there.start("asker", "ask")
        with pytest.raises(RunWaiting):
            await run.result()
        decided = await (await run.asks())[0].answer(None, by="lee")
        assert (decided.state, decided.value, (await run.result()).text) == ("decided", None, "done")


async def test_what_an_ask_is_not_decided_with_is_refused_in_the_same_words(there: AsyncClient, http: Door) -> None:
    run = await there.start("payer", "pay")
    with pytest.raises(RunWaiting):
        await run.result()
    for ask in (*await run.asks(), *await (await http.app.runtime.get_run(run.id)).asks()):
        with pytest.raises(InvalidInput, match="cannot be answered with 'yes': say approve, deny"):
            await ask.answer("yes", by="lee")


async def test_an_answer_that_is_lost_makes_no_second_run(http: Door) -> None:
    transport = Breaking(lambda request, n: request.method == "POST" and n == 1)
    async with AsyncClient(http.url, transport=transport) as there:
        run = await there.start("hello", "hi")
        assert (await run.result()).text == "hello"
    assert len(await http.app.runtime.runs()) == 1


async def test_a_stream_that_breaks_goes_on_behind_the_last_event(db: str) -> None:
    gate = Gate()

    async def slow(ctx: Context[None]) -> str:
        """Take long."""
        await gate.wait()
        return "done"

    model = Conversation({"go": [[call("slow")], "done"]})
    async with Runtime(db, agents=[Agent("slow", model=model, tools=[slow])]) as rt, door(rt) as http:
        async with AsyncClient(http.url) as there:
            run = await there.start("slow", "go")
            seen: list[str] = []
            async for event in run.events():
                if event.id is not None:
                    seen.append(event.id)
                if event.type == "effect.started":
                    await gate.reached.wait()
                    http.app.drain.end_streams()
                    gate.open()
        assert seen == [e.id async for e in (await rt.get_run(run.id)).events()]


async def test_a_server_that_is_not_there_is_said(db: str) -> None:
    async with AsyncClient("http://127.0.0.1:9") as there:
        with pytest.raises(Unreachable, match="is 'ondol serve' running there"):
            await there.get_run("r")


@pytest.mark.parametrize(
    "address",
    [
        "h:8000",
        "ftp://h",
        "http://",
        "http://[",
        "http://h:port",
        "http://h:99999",
        "http://h:-1",
        "http://h?x",
        "http://h\n",
    ],
)
def test_what_is_no_address_of_a_server_is_refused_without_its_password(address: str) -> None:
    with pytest.raises(InvalidInput, match="is no address of a server: say http://HOST:PORT"):
        AsyncClient(address)
    with pytest.raises(InvalidInput) as refused:
        AsyncClient(address.replace("//", "//kim:secret@"))
    assert "secret" not in str(refused.value)


async def test_a_password_in_an_address_is_sent_and_not_shown() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        assert request.headers["authorization"] == "Basic a2ltOnNlY3JldA=="
        raise httpx.ConnectError("nobody there")

    async with AsyncClient("http://kim:secret@h:9/at/", transport=httpx.MockTransport(answer)) as there:
        with pytest.raises(Unreachable, match="no answer from http://h:9/at \\("):
            await there.get_run("r")


@pytest.mark.parametrize("said", ["Wed, 21 Oct 2026 07:28:00 GMT", "inf", "soon", "0"])
async def test_a_proxy_that_is_busy_is_asked_again_whatever_it_says_of_the_time(said: str) -> None:
    busy = httpx.Response(503, headers={"retry-after": said}, text="<html>busy</html>")
    answers = iter([busy, httpx.Response(200, json={"items": []})])
    async with AsyncClient("http://x", transport=httpx.MockTransport(lambda _: next(answers))) as there:
        assert await there.agents() == []


ELSEWHERE: dict[str, tuple[httpx.Response, str]] = {
    "another scheme": (httpx.Response(301, headers={"location": "https://x/"}), "http://x sends on to https://x/"),
    "a page": (httpx.Response(200, html="<p>hello"), "no server of Ondol: it gave text/html, not "),
    "nothing": (httpx.Response(200), "no server of Ondol: it gave nothing, not "),
}


@pytest.mark.parametrize("what", ELSEWHERE)
async def test_what_is_no_server_of_ondol_is_told_so(what: str) -> None:
    answer, said = ELSEWHERE[what]
    async with AsyncClient("http://x", transport=httpx.MockTransport(lambda _: answer)) as there:
        with pytest.raises(Unreachable, match=said):
            await there.start("hello", "hi")
        with pytest.raises(Unreachable, match=said):
            async for _ in there._events("default", "r_x", None, frozenset()):
                pass


async def test_a_stream_that_ends_with_nothing_told_is_not_asked_for_without_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    empty = httpx.Response(200, headers={"content-type": "text/event-stream"}, content=b": .\n\n")
    answers, paused = iter([empty, empty, httpx.Response(204)]), list[float]()

    async def sleep(seconds: float) -> None:
        paused.append(seconds)

    monkeypatch.setattr("ondol.client.asyncio.sleep", sleep)
    async with AsyncClient("http://x", transport=httpx.MockTransport(lambda _: next(answers))) as there:
        assert [e async for e in there._events("default", "r_x", None, frozenset())] == []
    assert len(paused) == 2


async def test_what_no_header_can_hold_is_told_before_anything_is_sent(there: AsyncClient, http: Door) -> None:
    for key in ("주문-7", "a\nb", "\x7f"):
        with pytest.raises(InvalidInput, match=r"operation_id goes to a server in a header"):
            await there.start("hello", "hi", operation_id=key)
    with pytest.raises(InvalidInput, match=r"^the token goes to a server in a header, .*: change it$"):
        AsyncClient(http.url, token="비밀")
    assert await http.app.runtime.runs() == []


@pytest.mark.parametrize("far", [False, True])
async def test_what_cannot_be_used_is_refused_and_half_an_emoji_is_not(http: Door, far: bool) -> None:
    """From afar as in the process."""
    anything: Any = 5
    no_json: Any = {"a": object()}
    async with AsyncClient(http.url) as client:
        rt: Any = client if far else http.app.runtime
        run = await rt.start("payer", "pay", user="kim", operation_id="op", metadata={"said": "\ud83d"})
        assert run.metadata == {"said": "\ud83d"}
        seen = [e.id async for e in run.events(after=f"{run.id}/1") if e.id]  # until it waits
        assert seen[0] == f"{run.id}/2"
        (ask,) = await run.asks()
        session = await rt.get_session(run.session)
        revision = session.revision
        for asked in (
            rt.get_run(run), rt.context(run), rt.runs(limit="5"), session.messages(limit=0), rt.usage(since="2027"),
            rt.start("payer", anything), rt.start("payer", "pay", operation_id=anything),
            rt.start("payer", "pay", attachments=anything), rt.start("payer", "pay", metadata=anything),
            rt.start("payer", "pay", metadata=no_json), rt.replay(run, force=anything), session.set_state(anything),
            session.set_state(no_json), session.set_title(no_json["a"]), ask.approve(arguments={"amount": object()}),
            ask.deny(reason=no_json["a"]), rt.memory.ls(agent=anything, user="kim"),
            rt.memory.ls(agent="payer", user="kim", limit="5"),
            session.delete(expected_revision="\ud800"), rt.write_session(run.session, expected_revision="1", title="t"),
        ):  # fmt: skip
            with pytest.raises(InvalidInput):
                await asked
        for nothing in ("", " ", "x", "\ud800", anything):
            with pytest.raises(WrongCursor):
                await anext(run.events(after=nothing))
        assert (await session.refresh()).revision == revision
        await ask.deny(by="lee", reason="no")
        assert (await run.result()).text == "done"


async def test_who_may_only_start_runs_starts_one(db: str) -> None:
    async with Runtime(db, agents=agents()) as rt, door(rt, Admission(needs_token=True)) as http:
        _, token = await access.create_token(rt, "starts", ["run"])
        async with AsyncClient(http.url, token=token) as there:
            run = await there.start("hello", "hi", operation_id="k")
            assert (run.id, run.operation_id) == ((await rt.runs())[0].id, "k")


async def test_what_is_to_be_settled_is_found_from_afar_as_in_the_process(db: str) -> None:
    @tool
    async def lost() -> str:
        """Lose the answer."""
        raise ConnectionError("gone")

    losing = Agent("loser", model=Conversation({"go": [[call("lost")], [call("fine")], "done"]}), tools=[lost, fine])
    async with Runtime(db, agents=[losing]) as rt, door(rt) as http, AsyncClient(http.url) as there:
        run = await there.start("loser", "go")
        with pytest.raises(RunWaiting):
            await run.result()
        (effect,) = await run.effects()
        for one in (rt, there):
            assert (await one.unknown_ask(effect.id)).id == (await one.settling_ask(effect.id)).id
        await (await there.unknown_ask(effect.id)).happened("sent", by="lee")
        await run.result()
        _, other = await run.effects()
        for one in (rt, there):
            assert (await one.settling_ask(effect.id)).state == "decided"
            with pytest.raises(NotFound, match=f"effect {effect.id} is succeeded: there is nothing to settle"):
                await one.unknown_ask(effect.id)
            with pytest.raises(NotFound, match=f"effect {other.id} is succeeded: there is nothing to settle"):
                await one.settling_ask(other.id)


async def test_a_client_is_closed_once_and_says_that_it_is(http: Door) -> None:
    async with AsyncClient(http.url) as there:
        run = await there.start("hello", "hi")
        await there.close()
    for work in (there.agents(), run.result(), anext(run.events())):
        with pytest.raises(NotOpen, match="this client is closed: make another one"):
            await work

    def program() -> None:
        with Client(http.url) as rt:
            run = rt.start("hello", "hi")
            rt.close()
        for work in (rt.agents, run.result, lambda: list(run.events())):
            with pytest.raises(NotOpen, match="this client is closed: make another one"):
                work()

    await asyncio.to_thread(program)


def test_a_program_that_is_interrupted_while_it_follows_a_run_hears_of_nothing_else() -> None:
    closed: list[bool] = []

    async def events() -> AsyncIterator[int]:
        try:
            yield 1
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            closed.append(True)

    loop = _Loop()
    following = loop.each(events())
    assert next(following) == 1
    with pytest.raises(KeyboardInterrupt):
        next(following)
    loop.close()
    assert closed == [True]


async def test_a_token_goes_with_each_request(db: str) -> None:
    async with Runtime(db, agents=agents()) as rt, door(rt, Admission(needs_token=True)) as http:
        _, reads = await access.create_token(rt, "reads", ["read"])
        async with AsyncClient(http.url, token=reads) as there:
            assert await there.runs() == []
            with pytest.raises(Forbidden, match="has no scope 'run'"):
                await there.start("hello", "hi")


async def test_the_blocking_client_does_the_same(http: Door) -> None:
    def program() -> Any:
        with Client(http.url) as rt:
            run = rt.start("payer", "pay", operation_id="one")
            with contextlib.suppress(RunWaiting):
                run.result()
            (ask,) = run.asks()
            ask.approve(by="lee")
            return run.result().text, [e.type for e in run.events()][-1], rt.run("hello", "hi").text

    assert await asyncio.to_thread(program) == ("done", "run.completed", "hello")


async def test_the_blocking_client_has_sessions_and_asks_too(http: Door) -> None:
    def program() -> Any:
        with Client(http.url) as rt:
            first = rt.run("hello", "hi", session="s")
            session = rt.get_session("s").set_title("Greeting", expected_revision=first.revision)
            said = [m.message.text for m in session.messages()]
            titles, runs = [s.title for s in rt.sessions()], [r.id for r in session.runs()]
            waits = rt.start("payer", "pay")
            with contextlib.suppress(RunWaiting):
                waits.result()
            (ask,) = rt.asks()
            denied = rt.decide(ask, Decision(kind="deny"), by="lee")
            session.refresh().delete(expected_revision=session.revision)
            return said, titles, runs == [first.run_id], denied.decided_by, [s.id for s in rt.sessions()]

    said, titles, its_run, denied_by, left = await asyncio.to_thread(program)
    assert (said, titles, its_run, denied_by) == (["hi", "hello"], ["Greeting"], True, "lee")
    assert "s" not in left


def test_the_blocking_client_has_every_method_of_the_other() -> None:
    for blocking, waited in ((Client, AsyncClient), (BlockingRun, Run), (BlockingAsk, Ask), (BlockingSession, Session)):
        verbs = {name for name, it in vars(waited).items() if inspect.isfunction(it) and not name.startswith("_")}
        assert verbs <= set(vars(blocking)), blocking


async def test_commands_work_on_a_server(http: Door, tmp_path: Path) -> None:
    async def typed(*words: str) -> Done:
        return await asyncio.to_thread(ondol, "--url", http.url, *words, cwd=tmp_path)

    ran = await typed("run", "payer", "pay", "--session", "s", "--operation-id", "k")
    assert ran.code == 6, ran.err
    (ask,) = await http.app.runtime.asks()
    assert f"ondol --url {http.url} asks approve {ask.id}" in ran.err
    approved = await typed("asks", "approve", ask.id, "--by", "lee")
    assert approved.code == 0, approved.err
    assert (await typed("run", "payer", "pay", "--session", "s", "--operation-id", "k")).out.strip() == "done"
    for words in (["runs"], ["effects"], ["sessions"], ["usage"], ["runs", "show", ask.run], ["sessions", "show", "s"],
                  ["context", ask.run], ["effects", "show", ask.effect or ""], ["runs", "watch", ask.run],
                  ["runs", "replay", ask.run, "--dry-run"], ["runs", "export", ask.run]):  # fmt: skip
        done = await typed(*words)
        assert (done.code, done.err) == (0, ""), (words, done.err)
        assert done.out.strip(), words
    nobody = await typed("run", "app.py:nobody", "hi")
    assert (nobody.code, "no agent 'nobody': its agents are hello, payer, broken" in nobody.err) == (4, True), (
        nobody.err
    )
    guarded = await typed("runs", "replay", ask.run)
    assert (guarded.code, "say --force --by NAME --why TEXT, or fork it" in guarded.err) == (5, True), guarded.err
    refused = await http.client.post(f"/v1/runs/{ask.run}/replay", json={})
    assert "force it with a name and a reason, or fork it" in refused.json()["detail"]
    shown = (await typed("effects", "show", ask.effect or "")).out.splitlines()
    (where,) = (line.split()[1:] for line in shown if line.startswith("result"))
    assert where == ["GET", f"{http.url}/v1/runs/{ask.run}/steps"]  # and no command that is refused there
    (step, _) = (await http.client.get(where[1])).json()["items"]
    assert step["calls"][0]["result"] is not None
    events = (await typed("runs", "show", ask.run, "-o", "json")).json["events"]
    assert [e["id"] for e in events] == [e.id async for e in (await http.app.runtime.get_run(ask.run)).events() if e.id]


async def test_what_a_server_does_not_have_is_not_found(http: Door, tmp_path: Path) -> None:
    whose = ("--agent", "a", "--user", "kim")
    for words in (
        ["context", "r_1"], ["runs", "show", "r_1"], ["runs", "watch", "r_1"], ["runs", "cancel", "r_1"],
        ["runs", "replay", "r_1", "--dry-run"], ["runs", "fork", "r_1", "--at", "1"], ["asks", "approve", "a_1"],
        ["effects", "resolve", "e_1", "--give-up", "--evidence", "it is lost"], ["sessions", "rm", "s"],
        ["memory", "edit", "m_1", "text", *whose], ["memory", "rm", "m_1", *whose], ["outbox", "retry", "o_1"],
    ):  # fmt: skip
        done = await asyncio.to_thread(ondol, "--url", http.url, *words, cwd=tmp_path)
        assert (done.code, "not_found" in done.err) == (4, True), (words, done.err)


async def test_where_there_is_nothing_the_place_is_named_that_was_looked_at(http: Door, tmp_path: Path) -> None:
    for noun in ("asks", "outbox", "memory"):
        done = await asyncio.to_thread(ondol, noun, cwd=tmp_path, ONDOL_URL=http.url)
        assert (done.code, http.url in done.out + done.err) == (0, True), (done.out, done.err)


def test_no_password_is_shown_of_the_place_that_was_looked_at() -> None:
    for given in (Options(db="postgresql://kim:secret@db/ondol"), Options(url="https://kim:secret@host")):
        cli = Cli(given, None)
        for shown in (cli.place, cli.command("runs")):
            assert ("kim@" in shown, "secret" in shown) == (True, False), shown


def test_a_store_and_a_server_are_not_named_together(tmp_path: Path) -> None:
    words = ("--url", "http://127.0.0.1:1", "--db", "sqlite:///x.db")
    for line in ((*words, "runs"), ("runs", *words)):
        refused = ondol(*line, cwd=tmp_path)
        assert (refused.code, "say one of them" in refused.err) == (2, True), refused.err


@pytest.mark.parametrize("words", [("--prices", "prices.toml"), ("--tenant", "acme")])
async def test_what_only_a_server_can_say_is_refused_and_not_passed_over(
    http: Door, tmp_path: Path, words: tuple[str, ...]
) -> None:
    refused = await asyncio.to_thread(ondol, "--url", http.url, "usage", *words, cwd=tmp_path)
    assert (refused.code, refused.out) == (2, "")
    assert f"leave {words[0].lstrip('-')} out" in refused.err.replace("--", "")


def test_a_command_that_no_server_takes_says_what_to_name_instead(tmp_path: Path) -> None:
    for words in (["audit"], ["doctor"], ["db", "check"], ["db", "restore", "backup"]):
        refused = ondol("--url", "http://127.0.0.1:1", *words, cwd=tmp_path)
        assert (refused.code, "works on a store, not on a server" in refused.err) == (2, True)
