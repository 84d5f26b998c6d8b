"""How does a program use a runtime that runs somewhere else? The methods of ``Runtime``, over HTTP.

``AsyncClient`` hands out the same ``Run``, ``Ask``, ``Effect`` and ``Session`` as a ``Runtime``, and raises the same
errors. Only what is safe is sent again: an operation with its id, a decision, a question. A stream that breaks goes on
behind the last event that came. ``blocking.Client`` is the same for programs without an event loop.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import mimetypes
import os
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx

from ondol import clock, files, ids, telling, values
from ondol.attaching import Attached, File
from ondol.compacting import Compaction
from ondol.deliveries import OutboxMessage
from ondol.errors import (
    CannotGoOn,
    InvalidInput,
    NotFound,
    NotOpen,
    OndolError,
    ReplayUnsafe,
    RunEnded,
    Unreachable,
)
from ondol.events import Event
from ondol.from_bodies import (
    ask_of,
    compaction_of,
    context_of,
    effect_of,
    event_of,
    message_of,
    outbox_message_of,
    run_of,
    run_row,
    session_of,
    usage_line_of,
    verdict_of,
)
from ondol.handles import ENDED, Ahead, Ask, Effect, Lineage, Run, RunResult, Session, SessionMessage, encode_given
from ondol.http.problems import raised
from ondol.ids import DEFAULT_TENANT, in_address
from ondol.records import RunRow
from ondol.remote_memory import RemoteMemory
from ondol.replay import By, ReplayVerdict
from ondol.runtime import ForkEffects, ReplayClock, Trigger
from ondol.seeing import SeenContext
from ondol.spending import UsageBy, UsageLine
from ondol.transactions import Decision, IfBusy, OutboxState
from ondol.transactions.signals import DECISIONS, refuse_unfit

T = TypeVar("T")

_TRIES = 5  # of what is safe to send again
_PAUSE = 0.2  # seconds before the second try; each further one waits twice as long
_WAIT = 30  # seconds that one request waits for an end
_SUMMARY = 180.0  # seconds for a summary: a model has 120 of them
_REPLAYED = "idempotent-replayed"  # a header: the operation was completed before
_AGAIN = frozenset({502, 503, 504})
CLOSED = "this client is closed: make another one"


class AsyncClient:
    """A runtime elsewhere. ``url`` and ``token`` are by default ``ONDOL_URL`` and ``ONDOL_TOKEN``.

        async with AsyncClient("http://127.0.0.1:8000") as rt:
            run = await rt.start("support", "Refund order 1182", operation_id="slack:Ev07")
            print((await run.result()).text)

    ``transport`` is one of httpx, for tests.
    """

    def __init__(
        self, url: str | None = None, *, token: str | None = None, timeout: float = 60.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:  # fmt: skip
        url = url or os.environ.get("ONDOL_URL")
        if not url:
            raise InvalidInput("no server is named: say Client('http://HOST:PORT'), or set ONDOL_URL")
        url = url.rstrip("/")
        self.url, self._timeout = _shown_address(url), timeout
        token = token or os.environ.get("ONDOL_TOKEN")
        headers = {"authorization": f"Bearer {_in_header('the token', token)}"} if token else {}
        self._http = httpx.AsyncClient(
            base_url=f"{url}/v1/", headers=headers, timeout=httpx.Timeout(timeout, read=max(timeout, _WAIT + 15)),
            transport=transport, trust_env=False,
        )  # fmt: skip
        self.clock, self.memory = clock.SystemClock(), RemoteMemory(self)
        self._here: Any = self  # what handles hold: they ask no more of a runtime than is here

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    @property
    def _open(self) -> httpx.AsyncClient:
        if self._http.is_closed:
            raise NotOpen(CLOSED)
        return self._http

    # --- operations ---------------------------------------------------------------------------------------------

    async def start(
        self, agent: str, input: str, *, session: str | None = None, user: str | None = None,
        operation_id: str | None = None, if_busy: IfBusy = "queue", expected_revision: int | None = None,
        attachments: Sequence[Attached] = (), time_zone: str | None = None, metadata: Mapping[str, Any] | None = None,
        trigger: Trigger = "api", tenant: str = DEFAULT_TENANT,
    ) -> Run:  # fmt: skip
        """As ``Runtime.start``. Without an ``operation_id`` one is made, so that a lost answer makes no second run."""
        if not isinstance(attachments, Sequence) or isinstance(attachments, str | bytes):
            raise InvalidInput("attachments must be a list of paths or bytes")
        body = {
            "agent": getattr(agent, "name", agent), "input": input, "session": session, "user": user,
            "if_busy": if_busy, "time_zone": time_zone, "metadata": _object("metadata", metadata),
            "trigger": None if trigger == "api" else trigger,
            "attachments": [await asyncio.to_thread(_attached, a) for a in attachments],
        }  # fmt: skip
        headers = {"prefer": "respond-async", "idempotency-key": _key(operation_id)} | _if_match(expected_revision)
        answer = await self._send("POST", "runs", body, headers)
        begun = answer.json()
        run = run_of(self._here, begun) if "accepted_at" in begun else await self.get_run(begun["id"])
        run.replayed = _REPLAYED in answer.headers
        return run

    async def run(self, agent: str, input: str, **options: Any) -> RunResult:
        """``start``, then ``Run.result``."""
        return await (await self.start(agent, input, **options)).result()

    async def replay(
        self, run: Run | str, *, dry_run: bool = False, force: By | None = None, operation_id: str | None = None,
        clock: ReplayClock = "recorded", time_zone: str | None = None, tenant: str = DEFAULT_TENANT,
    ) -> Run | ReplayVerdict:  # fmt: skip
        """As ``Runtime.replay``."""
        where = f"runs/{_id(run)}/replay"
        if force is not None and not isinstance(force, By):
            raise InvalidInput(f"force={force!r}: say force=By(name, why)")
        if dry_run:
            return verdict_of((await self._send("POST", where, None, {}, {"dry_run": "true"})).json())
        body = {
            "why": force and force.why, "by": force and force.name, "clock": clock, "time_zone": time_zone,
        }  # fmt: skip
        return self._begun(await self._send("POST", where, body, {"idempotency-key": _key(operation_id)}))

    async def fork(
        self, run: Run | str, *, at_step: int, effects: ForkEffects = "reuse", operation_id: str | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> Run:  # fmt: skip
        """As ``Runtime.fork``."""
        body = {"at_step": at_step, "effects": effects}
        headers = {"idempotency-key": _key(operation_id)}
        return self._begun(await self._send("POST", f"runs/{_id(run)}/fork", body, headers))

    def _begun(self, answer: httpx.Response) -> Run:
        run = run_of(self._here, answer.json())
        run.replayed = _REPLAYED in answer.headers
        return run

    async def resume(self, run: Run | str, *, tenant: str = DEFAULT_TENANT) -> Run:
        """As ``Runtime.resume``."""
        with contextlib.suppress(CannotGoOn):  # it stays as it is
            return run_of(self._here, (await self._send("POST", f"runs/{_id(run)}/resume")).json())
        return await self.get_run(_id(run))

    async def cancel(
        self, run: Run | str, *, by: str | None = None, reason: str = "", tenant: str = DEFAULT_TENANT
    ) -> Run:
        """As ``Runtime.cancel``."""
        answer = await self._send("POST", f"runs/{_id(run)}/cancel", {"by": by, "reason": reason})
        return run_of(self._here, answer.json())

    # --- runs ---------------------------------------------------------------------------------------------------

    async def get_run(self, run: str, *, tenant: str = DEFAULT_TENANT) -> Run:
        return run_of(self._here, await self._get(f"runs/{in_address(run)}"))

    async def runs(
        self, *, session: str | None = None, user: str | None = None, state: str | None = None,
        before: str | None = None, limit: int = 100, tenant: str = DEFAULT_TENANT,
    ) -> list[Run]:  # fmt: skip
        wanted = {"session": session, "user": user, "state": state, "before": before}
        return [run_of(self._here, b) for b in await self._list("runs", wanted, limit)]

    async def context(self, run: str, step: int | None = None, *, tenant: str = DEFAULT_TENANT) -> SeenContext:
        body = await self._get(f"runs/{in_address(run)}/context", {"step": step})
        return context_of(body)

    async def export_run(self, run: str, *, tenant: str = DEFAULT_TENANT, **_: Any) -> str:
        return (await self._send("GET", f"export/runs/{in_address(run)}")).text

    async def waits_for_driver(self, run: Run) -> str | None:
        return None  # the server drives

    # --- asks and effects ---------------------------------------------------------------------------------------

    async def asks(
        self, *, run: str | None = None, session: str | None = None, user: str | None = None,
        state: str | None = "open", after: str | None = None, newest_first: bool = False, limit: int = 100,
        tenant: str = DEFAULT_TENANT,
    ) -> list[Ask]:  # fmt: skip
        wanted = {"run": run, "session": session, "user": user, "state": state or "all", "after": after}
        wanted["order"] = "newest_first" if newest_first else None
        return [ask_of(self._here, b) for b in await self._list("asks", wanted, limit)]

    async def get_ask(self, ask: str, *, tenant: str = DEFAULT_TENANT) -> Ask:
        return ask_of(self._here, await self._get(f"asks/{in_address(ask)}"))

    async def decide(self, ask: Ask, decision: Decision, *, by: str | None = None) -> Ask:
        """As ``Runtime.decide``: it counts for the arguments of ``ask`` as it is in hand."""
        if ask.kind in DECISIONS:  # a newer server may know others
            refuse_unfit(ask.id, ask.kind, decision.kind)
        body = {
            "decision": decision.kind, "reason": decision.reason, "evidence": decision.evidence, "by": by,
            "arguments": _object("arguments", decision.arguments), "value": decision.value,
            "result": decision.result,
        }  # fmt: skip
        seen = {"if-match": f'"{ask.arguments_hash}"'}
        answer = await self._send("POST", f"asks/{ask.id}/decision", body, seen, nulls=True)  # None is an answer
        return ask_of(self._here, answer.json())

    async def effects(
        self, *, run: str | None = None, session: str | None = None, state: str | None = None,
        after: str | None = None, limit: int = 100, tenant: str = DEFAULT_TENANT,
    ) -> list[Effect]:  # fmt: skip
        wanted = {"run": run, "session": session, "state": state, "after": after}
        most = ids.MAX_LIMIT if run is not None else limit  # of one run all
        return [effect_of(b) for b in await self._list("effects", wanted, most)]

    async def get_effect(self, effect: str, *, tenant: str = DEFAULT_TENANT) -> Effect:
        return effect_of(await self._get(f"effects/{in_address(effect)}"))

    async def unknown_ask(self, effect: str, *, tenant: str = DEFAULT_TENANT) -> Ask:
        """As ``Runtime.unknown_ask``."""
        return await self._ask_about(effect, "open")

    async def settling_ask(self, effect: str, *, tenant: str = DEFAULT_TENANT) -> Ask:
        """As ``Runtime.settling_ask``."""
        return await self._ask_about(effect, None)

    async def _ask_about(self, effect: str, state: str | None) -> Ask:
        found = await self.get_effect(effect)
        of_run = await self.asks(run=found.run, state=state, limit=ids.MAX_LIMIT)
        about = [a for a in of_run if a.effect == effect and a.kind == "unknown_effect"]
        if not about:
            raise NotFound(f"effect {effect} is {found.state}: there is nothing to settle")
        return about[-1]

    async def usage(
        self, *, by: UsageBy = "model", since: date | None = None, until: date | None = None,
        prices: Any = None, time_zone: str | None = None, tenant: str = DEFAULT_TENANT,
    ) -> list[UsageLine]:  # fmt: skip
        """As ``Runtime.usage``, with the prices of the server.

        Raises:
            InvalidInput: other prices are named.
        """
        if prices is not None:
            raise InvalidInput("what tokens cost is the server's to say: leave prices out, or give it to its runtime")
        for at in (since, until):
            if at is not None and not isinstance(at, date):
                raise InvalidInput(f"{at!r} is no instant: give a date or a datetime")
        first, end = (None if at is None else at.isoformat() for at in (since, until))
        wanted = {"by": by, "since": first, "until": end, "time_zone": time_zone}
        return [usage_line_of(b) for b in (await self._get("usage", wanted))["items"]]

    async def outbox(
        self, *, state: OutboxState | None = None, after: str | None = None,
        limit: int = 100, tenant: str = DEFAULT_TENANT,
    ) -> list[OutboxMessage]:  # fmt: skip
        """As ``Runtime.outbox``."""
        return [outbox_message_of(b) for b in await self._list("outbox", {"state": state, "after": after}, limit)]

    async def deliver_again(
        self, message: str, *, by: str | None = None, tenant: str = DEFAULT_TENANT
    ) -> OutboxMessage:
        """As ``Runtime.deliver_again``."""
        return outbox_message_of((await self._send("POST", f"outbox/{in_address(message)}/retry", {"by": by})).json())

    async def agents(self) -> list[dict[str, Any]]:
        """What the agents of the server are: name, model, instructions, tools."""
        items: list[dict[str, Any]] = (await self._get("agents"))["items"]
        return items

    # --- sessions -----------------------------------------------------------------------------------------------

    async def get_session(self, session: str, *, tenant: str = DEFAULT_TENANT) -> Session:
        return session_of(self._here, await self._get(f"sessions/{in_address(session)}"))

    async def sessions(
        self, *, user: str | None = None, after: str | None = None, limit: int = 100, tenant: str = DEFAULT_TENANT
    ) -> list[Session]:
        found = await self._list("sessions", {"user": user, "after": after}, limit)
        return [session_of(self._here, b) for b in found]

    async def write_session(
        self, session: str, *, state: Mapping[str, Any] | None = None, title: str | None = None,
        time_zone: str | None = None, expected_revision: int | None = None, tenant: str = DEFAULT_TENANT,
    ) -> Session:  # fmt: skip
        """As ``Runtime.write_session``, of a session that exists."""
        body = {"state": _object("state", state), "title": title, "time_zone": time_zone}
        match = _if_match(expected_revision) or {"if-match": "*"}
        answer = await self._send("PATCH", f"sessions/{in_address(session)}", body, match, safe=False)
        return session_of(self._here, answer.json())

    async def delete_session(
        self, session: str, *, expected_revision: int | None = None, cancel: bool = False, by: str | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> None:  # fmt: skip
        match = _if_match(expected_revision) or {"if-match": "*"}
        options = ({"cancel": "true"} if cancel else {}) | ({"by": by} if by else {})
        await self._send("DELETE", f"sessions/{in_address(session)}", None, match, options, safe=False)

    async def compact_session(
        self, session: str, *, keep: int = 3, preview: bool = False, model_free: bool = False,
        agent: str | None = None, by: str | None = None, expected_revision: int | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> Compaction:  # fmt: skip
        """As ``Runtime.compact_session``, with the agents of the server."""
        body = {
            "keep": keep, "preview": preview, "model_free": model_free, "agent": getattr(agent, "name", agent),
            "by": by,
        }  # fmt: skip
        answer = await self._send(
            "POST", f"sessions/{in_address(session)}/compact", body, _if_match(expected_revision), safe=preview,
            patience=None if preview or model_free else _SUMMARY,
        )  # fmt: skip
        return compaction_of(answer.json())

    async def pin(
        self, session: str, text: str, *, by: str | None = None, expected_revision: int | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> Session:  # fmt: skip
        """As ``Runtime.pin``."""
        body, match = {"text": text, "by": by}, _if_match(expected_revision)
        where = f"sessions/{in_address(session)}/pins"
        return session_of(self._here, (await self._send("POST", where, body, match, safe=not match)).json())

    async def unpin(
        self, session: str, pin: str, *, by: str | None = None, expected_revision: int | None = None,
        tenant: str = DEFAULT_TENANT,
    ) -> Session:  # fmt: skip
        """As ``Runtime.unpin``."""
        where, match = f"sessions/{in_address(session)}/pins/{in_address(pin)}", _if_match(expected_revision)
        answer = await self._send("DELETE", where, None, match, {"by": by} if by else None, safe=False)
        return session_of(self._here, answer.json())

    # --- what handles ask for -----------------------------------------------------------------------------------

    async def _run_row(self, tenant: str, run: str) -> RunRow:
        return run_row(await self._get(f"runs/{in_address(run)}"))

    async def _ahead(self, row: RunRow) -> Ahead | None:
        return None

    async def _until_rest(self, row: RunRow, at_rest: frozenset[str]) -> RunRow:
        while True:
            row = await self._run_row(row.tenant, row.id)
            if row.state in at_rest and row.state != "completed":
                return row
            wait = 0 if row.state == "completed" else _WAIT
            answer = await self._send("GET", f"runs/{in_address(row.id)}/result", params={"wait": wait})
            body = answer.json()
            if body["state"] == "completed" and body["id"] == row.id:
                return (await self._run_row(row.tenant, row.id))._replace(reply=answer.text)

    async def _events(self, tenant: str, run: str, after: str | None, at_rest: frozenset[str]) -> AsyncIterator[Event]:
        telling.cursor(run, after)
        options = {"through_asks": "true"} if at_rest == ENDED else {}
        failures = 0
        while True:
            headers = {"accept": "text/event-stream", **({"last-event-id": after} if after else {})}
            try:
                async with self._open.stream(
                    "GET", f"runs/{in_address(run)}/events", headers=headers, params=options
                ) as response:
                    if response.status_code == 204:
                        return
                    if response.status_code >= 400:
                        await response.aread()
                        if response.status_code not in _AGAIN or failures >= _TRIES:
                            raise _error(response)
                        raise httpx.ReadError("again")
                    self._check_kind(response, "text/event-stream")
                    told = False
                    async for event in _read(response):
                        failures, told = 0, True
                        after = event.id or after
                        yield event
                if not told:  # a server that is about to stop, or a proxy that lets nothing stay open
                    await asyncio.sleep(_PAUSE)
            except httpx.TransportError as error:
                failures += 1
                if failures > _TRIES:
                    raise _unreachable(self.url, error) from error
                await asyncio.sleep(_PAUSE * 2 ** (failures - 1))
            # What ended may go on behind the last event: the server says (204) when nothing follows.

    async def _session_messages(self, tenant: str, session: str, after: int, limit: int) -> list[SessionMessage]:
        found = await self._list(f"sessions/{in_address(session)}/messages", {"after": str(after)}, limit)
        return [SessionMessage(m["seq"], m["run"], message_of(m["message"])) for m in found]

    async def _lineage(self, row: RunRow) -> Lineage:
        body = await self._get(f"runs/{in_address(row.id)}/lineage")
        get = self.get_run
        return Lineage(
            origin=None if body["origin"] is None else await get(body["origin"]),
            replays=[await get(r) for r in body["replays"]], forks=[await get(r) for r in body["forks"]],
        )  # fmt: skip

    async def _run_messages(self, tenant: str, run: str) -> dict[int, str]:
        found = await self._scratchpad(tenant, run)
        return {ordinal: values.dumps(body) for ordinal, body in enumerate(found["messages"], 1)}

    async def _scratchpad(self, tenant: str, run: str) -> dict[str, Any]:
        body: dict[str, Any] = await self._get(f"runs/{in_address(run)}/state")
        return body

    # --- one request --------------------------------------------------------------------------------------------

    async def _get(self, path: str, params: Mapping[str, Any] | None = None) -> Any:
        given = {k: v for k, v in (params or {}).items() if v is not None}
        return (await self._send("GET", path, params=given)).json()

    async def _list(self, path: str, params: Mapping[str, str | None], limit: int) -> list[Any]:
        """As many as are wanted, page by page."""
        ids.checked_limit(limit)
        found: list[Any] = []
        cursor = "before" if path == "runs" else "after"
        wanted: dict[str, Any] = {k: v for k, v in params.items() if v is not None}
        while len(found) < limit:
            page = await self._get(path, wanted | {"limit": min(limit - len(found), 1000)})
            found += page["items"]
            if page["next"] is None:
                break
            wanted[cursor] = page["next"]
        return found

    async def _send(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None,
        params: Mapping[str, Any] | None = None, *, safe: bool = True, patience: float | None = None,
        nulls: bool = False,
    ) -> httpx.Response:  # fmt: skip
        """One request, sent again where that is safe and of use. ``patience``: seconds that its answer may take, where
        it is not a usual one. ``nulls``: what is None in its body is sent. Raises the error that its problem is."""
        waits: Any = httpx.USE_CLIENT_DEFAULT if patience is None else httpx.Timeout(self._timeout, read=patience)
        given = None if body is None else _written({k: v for k, v in body.items() if nulls or v is not None})
        kind = {} if given is None else {"content-type": "application/json"}
        for attempt in range(_TRIES):
            last = attempt == _TRIES - 1
            try:
                answer = await self._open.request(
                    method, path, content=given, headers={**kind, **(headers or {})}, params=params, timeout=waits
                )
            except UnicodeError as error:
                raise InvalidInput(f"an address cannot hold this ({error}): leave out what is no text") from error
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:  # it never left
                if last:
                    raise _unreachable(self.url, error) from error
                pause = _PAUSE * 2**attempt
            except httpx.TransportError as error:
                if last or not safe:
                    raise _unreachable(self.url, error) from error
                pause = _PAUSE * 2**attempt
            else:
                if answer.status_code < 400:
                    if answer.status_code != 204:
                        self._check_kind(answer, "application/json")
                    return answer
                refused = answer.headers.get("content-type", "") == "application/problem+json"
                if last or answer.status_code not in _AGAIN or not (safe or refused):
                    raise _error(answer)
                pause = _asked_pause(answer) or _PAUSE * 2**attempt
            await asyncio.sleep(pause)
        raise AssertionError("the last try returns or raises")

    def _check_kind(self, answer: httpx.Response, kind: str) -> None:
        """Raises Unreachable for the answer of something else than a server of Ondol."""
        if answer.has_redirect_location:
            raise Unreachable(f"{self.url} sends on to {answer.headers['location']}: name the address of the server")
        given = answer.headers.get("content-type", "nothing").partition(";")[0]
        if given != kind:
            raise Unreachable(f"what answers at {self.url} is no server of Ondol: it gave {given}, not {kind}")


def _id(run: Run | str) -> str:
    return in_address(run.id if isinstance(run, Run) else run)


def _key(operation_id: str | None) -> str:
    made = ids.new_operation_id(clock.SystemClock().now()) if operation_id is None else operation_id
    given = ids.checked_id("operation_id", _in_header("operation_id", made))
    return '"' + given.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _shown_address(url: str) -> str:
    """The address of a server as it is shown: without a user and a password. Raises InvalidInput for what is none."""
    with contextlib.suppress(ValueError):  # unbalanced brackets, or a port that is no number
        parts = urlsplit(url if url.isprintable() else "")
        if (
            parts.scheme in ("http", "https")
            and parts.hostname
            and parts.port != 0
            and not (parts.query or parts.fragment)
        ):
            return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    shown = re.sub(r"//.*@", "//…@", url)
    raise InvalidInput(f"{shown!r} is no address of a server: say http://HOST:PORT")


def _in_header(kind: str, value: str) -> str:
    """Raises InvalidInput for what no header can hold."""
    if not (isinstance(value, str) and value.isascii() and value.isprintable()):
        shown = repr(value) if kind == "operation_id" else "it"
        raise InvalidInput(f"{kind} goes to a server in a header, which takes letters of ASCII only: change {shown}")
    return value


def _object(what: str, given: Mapping[str, Any] | None) -> Any:
    """Raises InvalidInput for what is no object, or holds what has no JSON form."""
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise InvalidInput(f"{what} must be a mapping, got {type(given).__name__}")
    return encode_given(what, given, values.encode_object)


def _written(body: dict[str, Any]) -> bytes:
    """Raises InvalidInput for what has no JSON form."""
    try:
        return json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    except UnicodeEncodeError:  # half an emoji, as in a text that was cut: JSON can spell it
        return json.dumps(body, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"a server is sent JSON, and this is none ({error}): give texts and numbers") from error


def _if_match(revision: int | None) -> dict[str, str]:
    return {} if ids.checked_revision(revision) is None else {"if-match": f'"{revision}"'}


def _attached(given: Attached) -> dict[str, Any]:
    match given:
        case bytes():
            name, data, media_type = "attachment", given, None
        case File():
            name, data, media_type = given
        case _:
            path = Path(given)
            try:
                name, data = path.name, files.read(path)
            except (OSError, ValueError) as error:
                why = getattr(error, "strerror", None) or error
                raise InvalidInput(f"attachment {str(path)!r} cannot be read ({why})") from error
            media_type = mimetypes.guess_type(name)[0]
    return {"name": name, "data": base64.b64encode(data).decode(), "media_type": media_type}


async def _read(response: httpx.Response) -> AsyncIterator[Event]:
    data: list[str] = []
    async for line in _lines(response):
        if line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
        elif not line and data:
            body = json.loads("\n".join(data))
            data = []
            yield event_of(body)


async def _lines(response: httpx.Response) -> AsyncIterator[str]:
    """The lines of a stream as server-sent events have them. (httpx ends lines at U+2028 and the like, too.)"""
    rest = b""
    async for piece in response.aiter_bytes():
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r").decode("utf-8", "replace")


def _error(answer: httpx.Response) -> OndolError:
    try:
        body = answer.json()
    except ValueError:
        body = answer.text
    error = raised(body, answer.status_code)
    if isinstance(error, RunEnded):
        error.error, error.retryable = {}, False
    if isinstance(error, ReplayUnsafe):
        error.verdict = verdict_of(error.verdict)
    return error


def _asked_pause(answer: httpx.Response) -> float:
    """The seconds that the server asks for; 0 where it asks for none, or says it as a date, as a proxy may."""
    asked = answer.headers.get("retry-after", "")
    return min(float(asked), _WAIT) if asked.isdecimal() else 0.0


def _unreachable(url: str, error: Exception) -> Unreachable:
    return Unreachable(f"no answer from {url} ({type(error).__name__}: {error}): is 'ondol serve' running there?")
