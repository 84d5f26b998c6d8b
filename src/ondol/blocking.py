"""How does a program without an event loop use a runtime that runs somewhere else? The methods of ``AsyncClient``,
each of which returns when it is done."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

from ondol.client import CLOSED, AsyncClient
from ondol.compacting import Compaction
from ondol.deliveries import OutboxMessage
from ondol.errors import NotOpen
from ondol.events import Event
from ondol.handles import Ask, Effect, Lineage, Run, RunResult, Session, SessionMessage
from ondol.messages import Message
from ondol.remote_memory import BlockingMemory
from ondol.replay import ReplayVerdict
from ondol.seeing import SeenContext
from ondol.spending import UsageLine
from ondol.transactions import Decision

T = TypeVar("T")


class _Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="ondol.client", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        if self.is_closed:
            work.close()
            raise NotOpen(CLOSED)
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:  # Ctrl-C above all: what nobody waits for is not left running in the other thread
            future.cancel()
            raise

    def each(self, items: AsyncIterator[T]) -> Iterator[T]:
        """What an async generator gives."""
        waiting: asyncio.Task[Any] | None = None

        async def following() -> T:
            nonlocal waiting
            waiting = asyncio.current_task()
            return await anext(items)

        async def closed() -> None:
            if waiting is not None:  # it may have been interrupted: only what stands still can be closed
                if not waiting.cancelling():
                    waiting.cancel()
                await asyncio.wait({waiting})
            await items.aclose()  # type: ignore[attr-defined]

        try:
            while True:
                try:
                    yield self.run(following())
                except StopAsyncIteration:
                    return
        finally:
            if not self.is_closed:
                self.run(closed())

    @property
    def is_closed(self) -> bool:
        return self._loop.is_closed()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@dataclass(frozen=True)
class BlockingAsk:
    """An ``Ask`` for programs without an event loop: what it knows is in ``ask``, its verbs return when it is done."""

    ask: Ask
    _loop: _Loop

    def __getattr__(self, name: str) -> Any:
        return getattr(self.ask, name)

    def approve(
        self, *, by: str | None = None, arguments: Mapping[str, Any] | None = None, reason: str = ""
    ) -> BlockingAsk:  # fmt: skip
        return self._said(self.ask.approve(by=by, arguments=arguments, reason=reason))

    def deny(self, *, by: str | None = None, reason: str = "") -> BlockingAsk:
        return self._said(self.ask.deny(by=by, reason=reason))

    def answer(self, value: Any, *, by: str | None = None, reason: str = "") -> BlockingAsk:
        return self._said(self.ask.answer(value, by=by, reason=reason))

    def happened(self, result: Any = None, evidence: str = "", *, by: str | None = None) -> BlockingAsk:
        return self._said(self.ask.happened(result, evidence, by=by))

    def not_happened(self, evidence: str = "", *, by: str | None = None) -> BlockingAsk:
        return self._said(self.ask.not_happened(evidence, by=by))

    def give_up(self, reason: str = "", *, by: str | None = None) -> BlockingAsk:
        return self._said(self.ask.give_up(reason, by=by))

    def _said(self, work: Coroutine[Any, Any, Ask]) -> BlockingAsk:
        return BlockingAsk(self._loop.run(work), self._loop)


@dataclass(frozen=True)
class BlockingRun:
    """A ``Run`` for programs without an event loop: what it knows is in ``handle``, its verbs wait."""

    handle: Run
    _loop: _Loop

    def __getattr__(self, name: str) -> Any:
        return getattr(self.handle, name)

    @property
    def id(self) -> str:
        return self.handle.id

    @property
    def status(self) -> str:
        return self.handle.status

    def refresh(self) -> BlockingRun:
        return BlockingRun(self._loop.run(self.handle.refresh()), self._loop)

    def result(self, *, through_asks: bool = False) -> RunResult:
        return self._loop.run(self.handle.result(through_asks=through_asks))

    def events(self, after: str | None = None, *, through_asks: bool = False) -> Iterator[Event]:
        return self._loop.each(self.handle.events(after, through_asks=through_asks))

    def asks(self, state: str | None = "open") -> list[BlockingAsk]:
        return [BlockingAsk(a, self._loop) for a in self._loop.run(self.handle.asks(state))]

    def effects(self) -> list[Effect]:
        return self._loop.run(self.handle.effects())

    def messages(self) -> list[Message]:
        return self._loop.run(self.handle.messages())

    def state(self) -> dict[str, Any]:
        return self._loop.run(self.handle.state())

    def lineage(self) -> Lineage:
        return self._loop.run(self.handle.lineage())

    def cancel(self, *, by: str | None = None, reason: str = "") -> BlockingRun:
        return BlockingRun(self._loop.run(self.handle.cancel(by=by, reason=reason)), self._loop)


@dataclass(frozen=True)
class BlockingSession:
    """A ``Session`` for programs without an event loop: what it knows is in ``handle``, its verbs wait."""

    handle: Session
    _loop: _Loop

    def __getattr__(self, name: str) -> Any:
        return getattr(self.handle, name)

    def refresh(self) -> BlockingSession:
        return self._changed(self.handle.refresh())

    def messages(self, after: int = -1, limit: int = 1000) -> list[SessionMessage]:
        return self._loop.run(self.handle.messages(after, limit))

    def runs(self, limit: int = 100) -> list[BlockingRun]:
        return [BlockingRun(r, self._loop) for r in self._loop.run(self.handle.runs(limit))]

    def set_state(self, state: Mapping[str, Any], *, expected_revision: int | None = None) -> BlockingSession:
        return self._changed(self.handle.set_state(state, expected_revision=expected_revision))

    def set_title(self, title: str, *, expected_revision: int | None = None) -> BlockingSession:
        return self._changed(self.handle.set_title(title, expected_revision=expected_revision))

    def pin(self, text: str, *, by: str | None = None, expected_revision: int | None = None) -> BlockingSession:
        return self._changed(self.handle.pin(text, by=by, expected_revision=expected_revision))

    def unpin(self, pin: str, *, by: str | None = None, expected_revision: int | None = None) -> BlockingSession:
        return self._changed(self.handle.unpin(pin, by=by, expected_revision=expected_revision))

    def compact(self, **options: Any) -> Compaction:
        return self._loop.run(self.handle.compact(**options))

    def delete(self, *, expected_revision: int | None = None, cancel: bool = False, by: str | None = None) -> None:
        self._loop.run(self.handle.delete(expected_revision=expected_revision, cancel=cancel, by=by))

    def _changed(self, work: Coroutine[Any, Any, Session]) -> BlockingSession:
        return BlockingSession(self._loop.run(work), self._loop)


class Client:
    """``AsyncClient`` for programs without an event loop.

    with Client("http://127.0.0.1:8000") as rt:
        print(rt.run("support", "Refund order 1182", operation_id="slack:Ev07").text)
    """

    def __init__(self, url: str | None = None, *, token: str | None = None, timeout: float = 60.0) -> None:
        self._there = AsyncClient(url, token=token, timeout=timeout)
        self._loop = _Loop()
        self.memory = BlockingMemory(self._there.memory, self._loop.run)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._loop.is_closed:
            return
        try:
            self._loop.run(self._there.close())
        finally:
            self._loop.close()

    def start(self, agent: str, input: str, **options: Any) -> BlockingRun:
        return self._run(self._there.start(agent, input, **options))

    def run(self, agent: str, input: str, **options: Any) -> RunResult:
        return self._loop.run(self._there.run(agent, input, **options))

    def get_run(self, run: str) -> BlockingRun:
        return self._run(self._there.get_run(run))

    def waits_for_driver(self, run: BlockingRun) -> str | None:
        return self._loop.run(self._there.waits_for_driver(run.handle))

    def runs(self, **wanted: Any) -> list[BlockingRun]:
        return [BlockingRun(r, self._loop) for r in self._loop.run(self._there.runs(**wanted))]

    def replay(self, run: BlockingRun | str, **options: Any) -> BlockingRun | ReplayVerdict:
        made = self._loop.run(self._there.replay(_handle(run), **options))
        return BlockingRun(made, self._loop) if isinstance(made, Run) else made

    def fork(self, run: BlockingRun | str, *, at_step: int, **options: Any) -> BlockingRun:
        return self._run(self._there.fork(_handle(run), at_step=at_step, **options))

    def resume(self, run: BlockingRun | str) -> BlockingRun:
        return self._run(self._there.resume(_handle(run)))

    def cancel(self, run: BlockingRun | str, *, by: str | None = None, reason: str = "") -> BlockingRun:
        return self._run(self._there.cancel(_handle(run), by=by, reason=reason))

    def asks(self, **wanted: Any) -> list[BlockingAsk]:
        return [BlockingAsk(a, self._loop) for a in self._loop.run(self._there.asks(**wanted))]

    def get_ask(self, ask: str) -> BlockingAsk:
        return self._ask(self._there.get_ask(ask))

    def decide(self, ask: BlockingAsk, decision: Decision, *, by: str | None = None) -> BlockingAsk:
        return self._ask(self._there.decide(ask.ask, decision, by=by))

    def unknown_ask(self, effect: str) -> BlockingAsk:
        return self._ask(self._there.unknown_ask(effect))

    def settling_ask(self, effect: str) -> BlockingAsk:
        return self._ask(self._there.settling_ask(effect))

    def effects(self, **wanted: Any) -> list[Effect]:
        return self._loop.run(self._there.effects(**wanted))

    def get_effect(self, effect: str) -> Effect:
        return self._loop.run(self._there.get_effect(effect))

    def usage(self, **wanted: Any) -> list[UsageLine]:
        return self._loop.run(self._there.usage(**wanted))

    def outbox(self, **wanted: Any) -> list[OutboxMessage]:
        return self._loop.run(self._there.outbox(**wanted))

    def deliver_again(self, message: str, *, by: str | None = None) -> OutboxMessage:
        return self._loop.run(self._there.deliver_again(message, by=by))

    def context(self, run: str, step: int | None = None) -> SeenContext:
        return self._loop.run(self._there.context(run, step))

    def export_run(self, run: str) -> str:
        return self._loop.run(self._there.export_run(run))

    def agents(self) -> list[dict[str, Any]]:
        return self._loop.run(self._there.agents())

    def get_session(self, session: str) -> BlockingSession:
        return self._session(self._there.get_session(session))

    def sessions(self, **wanted: Any) -> list[BlockingSession]:
        return [BlockingSession(s, self._loop) for s in self._loop.run(self._there.sessions(**wanted))]

    def write_session(self, session: str, **written: Any) -> BlockingSession:
        return self._session(self._there.write_session(session, **written))

    def pin(self, session: str, text: str, **options: Any) -> BlockingSession:
        return self._session(self._there.pin(session, text, **options))

    def unpin(self, session: str, pin: str, **options: Any) -> BlockingSession:
        return self._session(self._there.unpin(session, pin, **options))

    def compact_session(self, session: str, **options: Any) -> Compaction:
        return self._loop.run(self._there.compact_session(session, **options))

    def delete_session(self, session: str, **options: Any) -> None:
        self._loop.run(self._there.delete_session(session, **options))

    def _run(self, work: Coroutine[Any, Any, Run]) -> BlockingRun:
        return BlockingRun(self._loop.run(work), self._loop)

    def _ask(self, work: Coroutine[Any, Any, Ask]) -> BlockingAsk:
        return BlockingAsk(self._loop.run(work), self._loop)

    def _session(self, work: Coroutine[Any, Any, Session]) -> BlockingSession:
        return BlockingSession(self._loop.run(work), self._loop)


def _handle(run: BlockingRun | str) -> Run | str:
    return run.handle if isinstance(run, BlockingRun) else run
