"""What is there to look at? The pages; none of them changes anything."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any, get_args

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from ondol import checkup, clock, usage
from ondol.bodies import event_body, run_body
from ondol.effects import EffectState
from ondol.errors import InvalidInput, NotFound
from ondol.handles import ENDED, Ask, AskState, Effect, Run
from ondol.http.callers import Caller
from ondol.http.console import chat, share
from ondol.http.console.looks import STOPPED, Looks
from ondol.http.console.timeline import timeline
from ondol.http.requests import caller_in
from ondol.journal import RunStatus
from ondol.served import read_prices
from ondol.spending import UsageBy, UsageLine
from ondol.threads import in_thread

_PER_PAGE = 50
_TURNS = 20  # of a conversation, on one page
_EVENTS = 300  # of a run, on one page
_LINES = 200  # of what was spent
_ROWS = 200  # of its timeline: the page is made again whenever something happens
_SUMMED_EVERY = timedelta(seconds=15)  # today's tokens
_LATELY = timedelta(days=7)  # a failure older than that needs nobody any more
RUN_STATES, EFFECT_STATES = get_args(RunStatus), get_args(EffectState)


def add_to(router: APIRouter, looks: Looks) -> None:
    _add_lists(router, looks)
    _add_run(router, looks)
    _add_session(router, looks)
    _add_asks(router, looks)
    _add_rest(router, looks)


def _add_lists(router: APIRouter, looks: Looks) -> None:
    service, today = looks.service, _Today(looks)

    @router.get("/")
    async def home(request: Request) -> Response:
        """What needs a person, and what happened lately."""
        caller = caller_in(request)
        now = service.rt.clock.now()
        asks, failed, recent = await asyncio.gather(
            service.asks(caller, limit=_PER_PAGE), service.runs(caller, state="failed", limit=8),
            service.runs(caller, limit=8),
        )  # fmt: skip
        day = await today.of(caller)
        unknown = [a for a in asks.items if a.kind == "unknown_effect"]
        stopped = [a for a in asks.items if a.kind in STOPPED]
        lately = [r for r in failed.items if r.ended_at is None or r.ended_at > now - _LATELY]
        return await looks.page(
            request, "home.html", caller=caller, recent=recent.items,
            asks=[a for a in asks.items if a not in unknown and a not in stopped], unknown=unknown, stopped=stopped,
            more_asks=asks.next, runs=await _runs(looks, caller, asks.items),
            failed=lately, more_failed=failed.next is not None and len(lately) == len(failed.items),
            today=day, today_tokens=0 if day is None else _counted(day), agents=service.agents(caller),
        )  # fmt: skip

    @router.get("/runs")
    async def runs(
        request: Request, state: str = "", agent: str = "", session: str = "", user: str = "", q: str = "",
        before: str | None = None,
    ) -> Response:  # fmt: skip
        caller = caller_in(request)
        if state and state not in RUN_STATES:
            raise InvalidInput(f"state {state!r} is none of {', '.join(RUN_STATES)}")
        wanted = {"state": state, "agent": agent, "session": session, "user": user, "q": q}
        given = {name: value for name, value in wanted.items() if value}
        found = await service.runs(
            caller, session=session or None, user=user or None, state=state or None, agent=agent or None,
            text=q or None, before=before, limit=_PER_PAGE,
        )  # fmt: skip
        return await looks.page(
            request, "runs.html", caller=caller, found=found, wanted=wanted, given=given, states=RUN_STATES,
            agents=service.agents(caller), before=before,
        )  # fmt: skip

    @router.get("/sessions")
    async def sessions(request: Request, after: str | None = None) -> Response:
        caller = caller_in(request)
        found = await service.sessions(caller, after=after, limit=_PER_PAGE)
        return await looks.page(
            request, "sessions.html", caller=caller, found=found, agents=service.agents(caller), after=after
        )

    @router.get("/effects")
    async def effects(request: Request, state: str = "", session: str = "", after: str | None = None) -> Response:
        caller = caller_in(request)
        if state and state not in EFFECT_STATES:
            raise InvalidInput(f"state {state!r} is none of {', '.join(EFFECT_STATES)}")
        wanted = {"state": state, "session": session}
        given = {name: value for name, value in wanted.items() if value}
        found = await service.effects(
            caller, session=session or None, state=state or None, after=after or None, limit=_PER_PAGE
        )
        of_them = await _runs(looks, caller, found.items)
        return await looks.page(
            request, "effects.html", caller=caller, found=found, wanted=wanted, given=given, states=EFFECT_STATES,
            runs=of_them, after=after or None,
        )  # fmt: skip


def _add_run(router: APIRouter, looks: Looks) -> None:
    service = looks.service

    @router.get("/runs/{run}")
    async def run_page(
        request: Request, run: str, before: Annotated[int | None, Query(ge=1, le=10**9)] = None
    ) -> Response:
        """Its latest rows, or those before one of them: only the latest grow."""
        caller = caller_in(request)
        found = await service.run(caller, run)
        about = await _about(looks, caller, found)  # before its events: a page that is behind goes on to watch
        events = await chat.recorded(service.rt, found)
        rows = timeline(events, service.rt.clock.now())[:before]
        earlier = max(0, len(rows) - _ROWS)
        effects = {e.id: e for e in await service.effects_of(found)}
        messages = await found.messages()
        return await looks.page(
            request, "run.html", tab="timeline", rows=rows[earlier:], earlier=earlier, latest=before is None,
            effects=effects, messages=messages, last=events[-1].id if events else None,
            decided=_decided(await found.asks(None)), **about,
        )  # fmt: skip

    @router.get("/runs/{run}/context")
    async def context(
        request: Request, run: str, step: int | None = None,
        keep: Annotated[int | None, Query(ge=0, le=1000)] = None,
    ) -> Response:  # fmt: skip
        """With ``keep``, also what would become of its session if all but so many turns were compacted now."""
        caller = caller_in(request)
        found = await service.run(caller, run)
        preview = (
            None if keep is None else await service.compact_session(caller, found.session, keep=keep, preview=True)
        )
        events = await chat.recorded(service.rt, found)
        steps = sorted({e.data["step"] for e in events if e.type == "context.built"})
        try:
            seen = await service.context(caller, run, step)
        except NotFound:
            if steps and step is not None:
                raise
            seen = None
        parts = share.shares(seen) if seen is not None else []
        less = [m for m in seen.before if m not in seen.messages] if seen is not None and seen.before else []
        return await looks.page(
            request, "context.html", tab="context", seen=seen, steps=steps, parts=parts,
            shown_tokens=share.total(parts), less=less, keep=keep, preview=preview,
            **await _about(looks, caller, found),
        )  # fmt: skip

    @router.get("/runs/{run}/effects")
    async def effects_of(request: Request, run: str) -> Response:
        caller = caller_in(request)
        found = await service.run(caller, run)
        effects = await service.effects_of(found)
        return await looks.page(
            request, "run_effects.html", tab="effects", effects=effects, runs={run: found},
            **await _about(looks, caller, found),
        )  # fmt: skip

    @router.get("/runs/{run}/lineage")
    async def lineage(request: Request, run: str) -> Response:
        caller = caller_in(request)
        found = await service.run(caller, run)
        line = await found.lineage()
        joined = None if found.host is None else await service.run(caller, found.host)
        return await looks.page(
            request, "lineage.html", tab="lineage", origin=_seen(caller, [line.origin]),
            replays=_seen(caller, line.replays), forks=_seen(caller, line.forks), host=joined,
            **await _about(looks, caller, found),
        )  # fmt: skip

    @router.get("/runs/{run}/raw")
    async def raw(request: Request, run: str, after: int = 0) -> Response:
        caller = caller_in(request)
        found = await service.run(caller, run)
        events = (await chat.recorded(service.rt, found))[max(0, after) :]
        return await looks.page(
            request, "raw.html", tab="raw", body=run_body(found), events=[event_body(e) for e in events[:_EVENTS]],
            next=after + _EVENTS if len(events) > _EVENTS else None, **await _about(looks, caller, found),
        )  # fmt: skip

    @router.get("/runs/{run}/replay")
    async def replay(request: Request, run: str) -> Response:
        """The verdict comes before the button."""
        caller = caller_in(request)
        found = await service.run(caller, run)
        verdict = await service.verdict(caller, run)
        return await looks.page(
            request, "replay.html", tab="replay", verdict=verdict, **await _about(looks, caller, found)
        )


async def _about(looks: Looks, caller: Caller, run: Run) -> dict[str, Any]:
    """What every page of a run shows."""
    service = looks.service
    session = None
    with contextlib.suppress(NotFound):  # it was erased
        session = await service.session(caller, run.session)
    prices, used = read_prices(service.rt.prices), run.usage
    await run.refresh()
    waits = await service.rt.waits_for_driver(run) if run.status == "queued" else None
    return {
        "caller": caller, "run": run, "session": session, "cost": prices.known_cost(used),
        "currency": prices.currency, "unpriced": prices.unpriced(used),
        "total": usage.total(run.usage), "asks": await run.asks(), "waits_for_driver": waits,
        "over": run.status in ENDED,
    }  # fmt: skip


def _seen(caller: Caller, runs: Sequence[Run | None]) -> list[Run]:
    return [run for run in runs if run is not None and caller.sees(run.user)]


def _decided(asks: Sequence[Ask]) -> dict[str, Ask]:
    return {ask.id: ask for ask in asks}


def _add_session(router: APIRouter, looks: Looks) -> None:
    service = looks.service

    @router.get("/session")
    async def session_page(request: Request, id: str, before: str | None = None) -> Response:
        """A session as a conversation. Its id may hold anything, so it stands in the query."""
        caller = caller_in(request)
        session = await service.session(caller, id)
        found = await service.runs(caller, session=id, before=before, limit=_TURNS)
        known = (await service.runs(caller, session=id, limit=200)).items if before is None else []
        open_asks = (await service.asks(caller, session=id, limit=200)).items
        turns = await chat.turns(service.rt, reversed(found.items), open_asks)
        agents = service.agents(caller)
        last = found.items[0].agent if found.items else ""
        return await looks.page(
            request, "session.html", caller=caller, session=session, turns=turns, older=found.next, agents=agents,
            agent=last if last in {a.name for a in agents} else "", first=before is None, place=chat.place(known),
            busy=[r for r in known if r.status not in ENDED], summary=session._row.summary,
        )  # fmt: skip


def _add_asks(router: APIRouter, looks: Looks) -> None:
    service = looks.service

    @router.get("/asks")
    async def asks(request: Request, state: str = "open", after: str | None = None) -> Response:
        """Who waits longest comes first; of what is decided, what was asked last."""
        caller = caller_in(request)
        states = (*get_args(AskState), "all")
        if state not in states:
            raise InvalidInput(f"state {state!r} is none of {', '.join(states)}")
        found = await service.asks(
            caller, state=None if state == "all" else state, after=after or None, newest_first=state != "open",
            limit=_PER_PAGE,
        )  # fmt: skip
        of_them = await _runs(looks, caller, found.items)
        return await looks.page(
            request, "asks.html", caller=caller, found=found, state=state, states=states, runs=of_them,
            after=after or None,
        )  # fmt: skip

    @router.get("/asks/{ask}")
    async def ask_page(request: Request, ask: str) -> Response:
        caller = caller_in(request)
        return await show_ask(looks, request, caller, await service.ask(caller, ask))

    @router.get("/effects/{effect}")
    async def effect_page(request: Request, effect: str) -> Response:
        caller = caller_in(request)
        return await show_effect(looks, request, caller, await service.effect(caller, effect))


async def show_ask(
    looks: Looks, request: Request, caller: Caller, ask: Ask, *, error: Exception | None = None, status: int = 200,
    typed: str | None = None,
) -> Response:  # fmt: skip
    """The page of an ask; with the ``error`` of a decision that was not taken, and what was typed for it."""
    return await looks.page(
        request, "ask.html", status=status, caller=caller, ask=ask, error=error, typed=typed,
        runs=await _runs(looks, caller, [ask]),
    )  # fmt: skip


async def show_effect(
    looks: Looks, request: Request, caller: Caller, effect: Effect, *, error: Exception | None = None,
    status: int = 200, typed: str | None = None, result: str = "",
) -> Response:  # fmt: skip
    """The page of an effect; with the ``error`` of a word about it that was not taken, and what was typed: as evidence,
    and as what the call returned."""
    found = await looks.service.asks(caller, run=effect.run, state=None, limit=1000)
    about = [a for a in found.items if a.effect == effect.id]
    return await looks.page(
        request, "effect.html", status=status, caller=caller, effect=effect, about=about, error=error,
        typed=typed, result=result, runs=await _runs(looks, caller, [effect]),
    )  # fmt: skip


async def _runs(looks: Looks, caller: Caller, of: Sequence[Ask | Effect]) -> dict[str, Run]:
    """The runs of these, by id."""
    found = await asyncio.gather(*(looks.service.run(caller, run) for run in {one.run for one in of}))
    return {run.id: run for run in found}


def _add_rest(router: APIRouter, looks: Looks) -> None:
    service = looks.service

    @router.get("/usage")
    async def usage_page(request: Request, by: str = "model", days: int = 30) -> Response:
        caller = caller_in(request)
        kinds = get_args(UsageBy)
        if by not in kinds:
            raise InvalidInput(f"by {by!r} is none of {', '.join(kinds)}")
        since = _midnight(looks) - timedelta(days=max(0, min(days, 3650) - 1))
        lines = await service.usage(caller, by=by, since=since)  # type: ignore[arg-type]
        most = max((_tokens(line) for line in lines), default=0)
        widths = {line.key: round(_tokens(line) / most * 1000, 1) if most else 0 for line in lines}
        shown = len(lines) if by == "day" else _LINES  # else those with the most tokens come first
        return await looks.page(
            request, "usage.html", caller=caller, lines=lines[:shown], more=max(0, len(lines) - shown), by=by,
            kinds=kinds, days=days, widths=widths, since=since,
        )  # fmt: skip

    @router.get("/system")
    async def system(request: Request, checks: bool = False) -> Response:
        caller = caller_in(request)
        caller.needs("read")
        rt = service.rt
        file = looks.file
        findings = None
        if checks:
            service.whole_tenant(caller)
            findings = await in_thread(checkup.findings, file, looks.command)
        return await looks.page(
            request, "system.html", caller=caller, drives=rt.drives, file=file, agents=service.agents(caller),
            findings=findings, size_of=file.stat().st_size if file is not None and file.exists() else None,
            machine=checkup.versions(),
        )  # fmt: skip


def _tokens(line: UsageLine) -> int:
    return (line.tokens.input or 0) + (line.tokens.output or 0)


def _counted(line: UsageLine) -> int | None:
    return None if line.tokens.input is None and line.tokens.output is None else _tokens(line)


def _midnight(looks: Looks) -> datetime:
    """The first instant of today, in the runtime's zone."""
    zone = clock.here(looks.service.rt.time_zone)
    return looks.service.rt.clock.now().astimezone(zone).replace(hour=0, minute=0, second=0, microsecond=0)


class _Today:
    """What was taken today, of each tenant. To sum it up goes over all runs of the day, so it is not done each time."""

    def __init__(self, looks: Looks) -> None:
        self._looks = looks
        self._known: dict[str, tuple[datetime, UsageLine | None]] = {}

    async def of(self, caller: Caller) -> UsageLine | None:
        """None where nothing was, or where it is not the caller's to know."""
        if caller.user is not None:
            return None
        now, midnight = self._looks.service.rt.clock.now(), _midnight(self._looks)
        at, line = self._known.get(caller.tenant, (None, None))
        if at is None or not midnight <= at <= now < at + _SUMMED_EVERY:
            lines = await self._looks.service.usage(caller, by="day", since=midnight)
            line = lines[-1] if lines else None
            self._known[caller.tenant] = now, line
        return line
