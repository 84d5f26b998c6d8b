"""What can happen in a run? One closed union, the same for journal, stream and log.

Each class is one kind of entry. Calls are named by their ordinal in the run, messages by their ordinal among the
run's messages; bodies are never repeated here. What ``run.events()`` yields is ``Event``: the same facts, with the
ids that people use. ``model.delta``, ``progress`` and ``message.snapshot`` exist only in the stream: they carry no id
and are not stored.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar, dataclass_transform

from ondol.errors import EndCode

EffectClass: TypeAlias = Literal["read", "idempotent", "once", "steps"]
OriginEffects: TypeAlias = Literal["free", "guard", "reuse", "stub", "run"]
AskKind: TypeAlias = Literal["approval", "question", "unknown_effect", "parked", "definition_changed", "compaction"]


T = TypeVar("T")


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
def _entry(cls: type[T]) -> type[T]:
    """A dataclass with keywords only, that nobody changes. Type checkers see to that: to have it checked when it runs,
    too, would make it twice as slow to make, and three times to define."""
    return dataclass(kw_only=True, slots=True)(cls)


@_entry
class Spent:
    """What one model call took, in tokens; None where nobody said. See ``model.Answer``.

    ``model`` is the model's name as its provider gave it, ``asked`` the name that the agent has for it, where they
    differ.
    """

    model: str = ""
    asked: str = ""
    input: int | None = None
    output: int | None = None
    cache_read: int | None = None
    cache_write: int | None = None
    reasoning: int | None = None


@_entry
class RunAccepted:
    kind: ClassVar[str] = "run.accepted"
    agent: str
    session: str
    trigger: str


@_entry
class RunOrigin:
    """It is a replay of another run, or (``at_step``) a fork of one, which has the steps before that as its own.

    ``effects`` says what becomes of its own writes: ``free``, as of any other run · ``guard``, one equal to a recorded
    success gets that outcome, any other asks a person · ``reuse``, one equal to a recorded success gets that outcome ·
    ``stub``, each gets a made-up result · ``run``, each asks a person. ``pool`` holds those successes: effect, tool,
    hash of the arguments. ``clock`` is the instant that the model is shown as the one of acceptance (microseconds
    since 1970), None where that is its own. ``by`` and ``why`` are there where a person forced it. ``steers`` messages
    follow its input: they had joined the run that it replays. What its shared steps noted for the memory is its own to
    keep from the step ``remembers`` on, since no run that completed has (None: none of it).
    """

    kind: ClassVar[str] = "run.origin"
    of: str
    effects: OriginEffects = "free"
    at_step: int | None = None
    clock: int | None = None
    by: str = ""
    why: str = ""
    pool: list[list[str]] = field(default_factory=list)
    steers: int = 0
    remembers: int | None = None


@_entry
class RunReplayed:
    """``run`` replays its family: it could have gone on, and does not any more."""

    kind: ClassVar[str] = "run.replayed"
    run: str


@_entry
class RunQueued:
    """Back in the queue: ``why`` is ``decided``, ``released``, ``recovered`` or ``retried``.

    ``cut``: its process gave it back in the middle of something.
    """

    kind: ClassVar[str] = "run.queued"
    why: str
    deaths: int = 0
    cut: bool = False


@_entry
class RunStarted:
    kind: ClassVar[str] = "run.started"


@_entry
class RunResumed:
    kind: ClassVar[str] = "run.resumed"


@_entry
class RunWaiting:
    kind: ClassVar[str] = "run.waiting"
    asks: list[str]
    revision: int


@_entry
class RunCancelling:
    """A cancel was accepted while somebody held the run. ``interrupted_by`` names the run that took its place, if one
    did: then what is in flight may finish."""

    kind: ClassVar[str] = "run.cancelling"
    by: str
    door: str
    reason: str = ""
    interrupted_by: str = ""


@_entry
class RunCompleted:
    kind: ClassVar[str] = "run.completed"


@_entry
class RunFailed:
    kind: ClassVar[str] = "run.failed"
    code: EndCode
    message: str
    retryable: bool = False


@_entry
class RunCancelled:
    kind: ClassVar[str] = "run.cancelled"
    by: str = ""
    door: str = ""
    reason: str = ""
    interrupted_by: str = ""


@_entry
class RunExpired:
    """The question ``ask`` was not answered in time, and there is nothing to go on with."""

    kind: ClassVar[str] = "run.expired"
    ask: str
    message: str = ""


@_entry
class RunParked:
    """An operator's word is needed. ``ask_kind`` is ``parked`` or ``definition_changed``.

    ``restored``: the store comes out of a backup. Between the entry before this and this one anything may have happened
    that nobody wrote down here.
    """

    kind: ClassVar[str] = "run.parked"
    why: str
    ask: str
    ask_kind: AskKind = "parked"
    restored: bool = False


@_entry
class RunJoined:
    """Its message became part of the run ``host``, which shows it to its model from here on; or it answered the
    question ``ask`` of that run. They share their end."""

    kind: ClassVar[str] = "run.joined"
    host: str
    ask: str = ""


@_entry
class SessionCommitted:
    kind: ClassVar[str] = "session.committed"
    revision: int


@_entry
class StepStarted:
    kind: ClassVar[str] = "step.started"
    step: int


@_entry
class StepCompleted:
    kind: ClassVar[str] = "step.completed"
    step: int


@_entry
class StepFailed(Spent):
    """One attempt of a model call failed. With ``retry_at`` (microseconds since 1970) it is tried again then.

    ``fallback`` is the place, in the agent's list of models, of the one that takes over for the rest of the run.
    ``error`` is ``cancelled`` where a cancel came first; ``message`` then is what the answer had said. ``untold``: it
    may have cost tokens, and nobody said how many. ``fits``: the request was too long, and is made again with so many
    estimated tokens at most.
    """

    kind: ClassVar[str] = "step.failed"
    step: int
    attempt: int
    error: str
    message: str
    retry_at: int | None = None
    fallback: int | None = None
    untold: bool = False
    fits: int | None = None


@_entry
class ContextBuilt:
    """What the next model call sees: enough to build the same request again, and the hash that proves it.

    It holds the run's own messages so far, with ``note`` the ordinal of a note added with it, and ``told`` what that
    note tells of. ``steers`` are runs that joined with it: their inputs are the messages behind the note, in order.
    ``clock`` is the instant shown (microseconds since 1970), ``since`` the accepted instant where the
    run is told both, ``history`` the session's message sequence up to which history is read. Where ``clock`` is left
    out, all of ``clock``, ``since``, ``zone``, ``history`` and ``definition`` are as in the record before.
    ``tokens`` is a rough estimate of its size. History is read from the place ``start`` on; ``view`` says what of it,
    and of the own messages, is shown in what form (see ``view.View``), and ``carried`` is the digest of what is told in
    the place of the rest. ``recalled`` are the facts of the memory that are shown, each with its id, its text, how well
    it fits the request and by which terms, and whether it is untrusted; ``recalled_by`` says for each whether
    ``words``, ``vectors`` or ``both`` found it, and is left out where words found all. ``over``: it is larger than the
    agent's budget, or the model's window, and must not be sent.
    """

    kind: ClassVar[str] = "context.built"
    step: int
    hash: str
    tokens: int = 0
    clock: int | None = None
    since: int | None = None
    zone: str | None = None
    history: int = 0
    definition: str = ""
    start: int = 0
    view: dict[str, int] = field(default_factory=dict)
    carried: str = ""
    recalled: list[list[Any]] = field(default_factory=list)
    recalled_by: list[str] = field(default_factory=list)
    over: Literal["", "budget", "window"] = ""
    note: int | None = None
    told: list[list[str]] = field(default_factory=list)
    steers: list[str] = field(default_factory=list)


@_entry
class ContextCompacted(Spent):
    """The model is shown less from this step on: ``view`` in the place of ``was`` (see ``view.View``).

    The journal and the session's messages stay as they are. ``before`` and ``after`` are tokens of the request, as its
    budget counts them. ``summary`` stands in the place of turns that are not shown; the model ``by`` wrote it, if one
    did, asked with the prompt of that digest. ``refused`` says why what a model wrote was not taken. ``offered``: what
    goes of the agent's earlier turns is offered to its memory, which learns from turns; each turn is offered once.
    """

    kind: ClassVar[str] = "context.compacted"
    step: int
    before: int
    after: int
    was: dict[str, int] = field(default_factory=dict)
    view: dict[str, int] = field(default_factory=dict)
    summary: str = ""
    by: str = ""
    prompt: str = ""
    refused: str = ""
    offered: bool = False


@_entry
class ModelStarted:
    """``model`` is the name of the one that is asked, where the agent has several. ``summary``: it is asked for one, to
    stand in the place of older turns."""

    kind: ClassVar[str] = "model.started"
    step: int
    model: str = ""
    summary: bool = False


@_entry
class ModelCompleted(Spent):
    """``message`` is the ordinal of the answer. ``stop`` is the finish reason, where it is not the usual one."""

    kind: ClassVar[str] = "model.completed"
    step: int
    message: int
    stop: str = ""


@_entry
class EffectPlanned:
    """``call`` is the call's ordinal in the run. It is the next call of the answer written with it.

    A call that a tool of steps makes has that tool's call as its ``parent``, and its ``place`` among all that the
    parent recorded, from 0; ``hash`` is that of its arguments. ``decision`` says what was decided about it, and why:
    ``allow``, ``ask`` or ``deny``, where a policy or the tool itself had a say. ``reuses`` is the effect (of another
    run) whose outcome it gets.
    """

    kind: ClassVar[str] = "effect.planned"
    call: int
    tool: str
    effect: EffectClass
    ask: str | None = None
    decision: str = ""
    parent: int | None = None
    place: int | None = None
    hash: str = ""
    reuses: str | None = None


@_entry
class EffectStarted:
    """``presumed``: it may have been started after the backup that this store comes from; nothing was sent now."""

    kind: ClassVar[str] = "effect.started"
    call: int
    attempt: int
    deadline: int
    presumed: bool = False


@_entry
class EffectSucceeded:
    """``by`` says who knew: the ``tool`` itself, its ``check``, a ``person``, or that it is ``recorded`` of another
    effect; a ``stub`` was made up. ``warning`` says what of the result or of the session state could not be recorded
    as it was. ``memory`` is what the run's commit changes of its memory: ``["remember", id, text, untrusted]`` or
    ``["forget", id]``. ``pins`` are texts that it pinned."""

    kind: ClassVar[str] = "effect.succeeded"
    call: int
    by: str = "tool"
    patch: dict[str, Any] = field(default_factory=dict)
    warning: str = ""
    memory: list[list[Any]] = field(default_factory=list)
    pins: list[str] = field(default_factory=list)


@_entry
class EffectFailed:
    kind: ClassVar[str] = "effect.failed"
    call: int
    reason: str = ""


@_entry
class EffectUnknown:
    """``seen``: the process that writes this saw the attempt end, or its time run out, so it cannot act any more."""

    kind: ClassVar[str] = "effect.unknown"
    call: int
    ask: str
    reason: str = ""
    seen: bool = False


@_entry
class EffectResolved:
    """A person settled an unknown: ``happened``, ``not_happened`` or ``give_up``."""

    kind: ClassVar[str] = "effect.resolved"
    call: int
    outcome: str


@_entry
class EffectAbandoned:
    kind: ClassVar[str] = "effect.abandoned"
    call: int


@_entry
class EffectExpired:
    """Its approval was not given in time; the model is told so."""

    kind: ClassVar[str] = "effect.expired"
    call: int


@_entry
class AskOpened:
    """``definition`` is there where an approval is asked for again, since the tool is another one now.

    A question is asked by the tool of steps ``call``, at this ``place`` among all that it recorded; ``hash`` is that of
    its words and its schema.
    """

    kind: ClassVar[str] = "ask.opened"
    ask: str
    ask_kind: AskKind
    call: int | None = None
    definition: str = ""
    place: int | None = None
    hash: str = ""


@_entry
class AskDecided:
    """``arguments`` is there only where the person replaced them, ``value`` is the answer to a question."""

    kind: ClassVar[str] = "ask.decided"
    ask: str
    decision: str
    by: str
    door: str
    call: int | None = None
    arguments: dict[str, Any] | None = None
    value: Any = None


@_entry
class AskExpired:
    """``value`` is what a question is answered with by default; ``unanswered``: it has no default, so its run ends."""

    kind: ClassVar[str] = "ask.expired"
    ask: str
    value: Any = None
    unanswered: bool = False


Entry: TypeAlias = (
    RunAccepted | RunOrigin | RunReplayed | RunQueued | RunStarted | RunResumed | RunWaiting | RunCancelling
    | RunCompleted | RunFailed | RunCancelled | RunExpired | RunParked | RunJoined | SessionCommitted | StepStarted
    | StepCompleted | StepFailed | ContextBuilt | ContextCompacted | ModelStarted | ModelCompleted | EffectPlanned
    | EffectStarted | EffectSucceeded | EffectFailed | EffectUnknown | EffectResolved | EffectAbandoned | EffectExpired
    | AskOpened | AskDecided | AskExpired
)  # fmt: skip

KINDS: dict[str, type[Entry]] = {cls.kind: cls for cls in Entry.__args__}

_NOTHING = object()


def _default(field: dataclasses.Field[Any]) -> Any:
    """What the field is when it is left out; a field without a default is never left out."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return _NOTHING if field.default is dataclasses.MISSING else field.default


_FIELDS: dict[str, tuple[tuple[str, Any], ...]] = {
    kind: tuple((f.name, _default(f)) for f in dataclasses.fields(cls)) for kind, cls in KINDS.items()
}


def to_json(entry: Entry) -> list[Any]:
    """``[kind, fields]``; a field at its default is left out."""
    data = {}
    for name, default in _FIELDS[entry.kind]:
        value = getattr(entry, name)
        if value != default:
            data[name] = value
    return [entry.kind, data]


def from_json(raw: list[Any]) -> Entry:
    """Raises KeyError for a kind of a newer version, TypeError for a field that this version does not know."""
    return KINDS[raw[0]](**raw[1])


#: Types of what is only streamed.
DELTA, PROGRESS, SNAPSHOT = "model.delta", "progress", "message.snapshot"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened, as watchers see it.

    ``id`` is ``<run>/<seq>`` for what is stored, None for deltas and progress; ``data`` holds JSON values.
    """

    type: str
    data: dict[str, Any]
    at: datetime
    id: str | None = None
