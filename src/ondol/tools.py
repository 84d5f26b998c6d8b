"""What is a tool, and what may it be told and asked?"""

from __future__ import annotations

import builtins
import contextlib
import functools
import inspect
import json
import threading
import typing
import warnings
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    NamedTuple,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypeGuard,
    TypeVar,
    cast,
    overload,
)

from ondol import effects, ids, pins, schemas, values
from ondol.errors import InvalidInput, NotDone
from ondol.events import EffectClass
from ondol.model import ToolSpec
from ondol.questions import Question
from ondol.secret import redact

if TYPE_CHECKING:
    import typing_extensions

    Deps = typing_extensions.TypeVar("Deps", default=Any)
else:
    Deps = TypeVar("Deps")
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

DEFAULT_TIMEOUT = timedelta(seconds=60)
LONGEST = timedelta(days=365)  # of what can be waited for
DEFAULT_KEY_TTL = timedelta(hours=24)  # what most payment and mail services keep an idempotency key for


class Cancelled:
    """Has this call been asked to stop, by a cancel or because its time is over? Safe to read from a thread."""

    def __init__(self) -> None:
        self._is_set = False
        self._waited_for: dict[str, threading.Event] = {}  # made for the first who waits: few do

    def __bool__(self) -> bool:
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        """For tools in threads: block until asked to stop, at most ``timeout`` seconds."""
        event = self._waited_for.setdefault("set", threading.Event())  # one, whoever comes at the same time
        return self._is_set or event.wait(timeout)  # (it is set in the other order, below)

    def set(self) -> None:
        self._is_set = True
        if event := self._waited_for.get("set"):
            event.set()


class SessionState(MutableMapping[str, Any]):
    """The session's state as a tool sees it. What it sets, takes out, and changes inside of a value, is a patch,
    committed with the turn.

    It takes whatever it is given: by then the tool may have acted, so this is no time to refuse. Its values are of its
    own: nothing that is done to them is seen by another call before the patch is recorded.
    """

    def __init__(self, stored: Mapping[str, Any]) -> None:
        """``stored`` is written as ``values.encode_object`` does."""
        self._stored = stored
        self._set: dict[str, Any] = {}
        self._taken: dict[str, None] = {}  # keys that are there no more
        self._handed: set[str] = set()  # keys of values that can be changed where they are

    @functools.cached_property
    def _seen(self) -> dict[str, Any]:
        return values.decode_object(dict(self._stored))

    def patch(self, lost: list[str]) -> dict[str, Any]:
        """As ``values.patched`` takes it. ``lost`` is what ``values.encode`` says of it."""
        changed = dict(self._set)
        if self._handed - changed.keys():
            before = values.decode_object(dict(self._stored))
            for key in self._handed - changed.keys():
                if values.encode(self._seen[key]) != values.encode(before[key]):
                    changed[key] = self._seen[key]
        patch = values.encode_object(changed, lost) if changed else {}
        return patch | dict.fromkeys(values.encode_object(self._taken), values.GONE) if self._taken else patch

    def __getitem__(self, key: str) -> Any:
        value = self._seen[key]
        if isinstance(value, list | dict | set):
            self._handed.add(key)
        return value

    def __setitem__(self, key: str, value: Any) -> None:
        self._seen[key] = self._set[key] = value
        self._taken.pop(key, None)

    def __delitem__(self, key: str) -> None:
        del self._seen[key]
        self._set.pop(key, None)
        self._handed.discard(key)
        self._taken[key] = None

    def __iter__(self) -> Iterator[str]:
        return iter(self._seen)

    def __len__(self) -> int:
        return len(self._seen)


@dataclass(frozen=True, slots=True)
class StepCall:
    """A tool of steps wants this call to be made."""

    tool: Tool[..., Any]
    arguments: Mapping[str, Any]


class Steps(Protocol):
    """What stands behind ``ctx.call`` and ``ctx.ask``. Only the body of a tool of steps has it."""

    def step(self, wanted: StepCall | Question) -> Awaitable[Any]:
        """The recorded outcome, once there is one. Raises CallFailed, InvalidInput; Suspended to unwind the body."""
        ...


class Found(NamedTuple):
    """What a search found. ``locator`` says where: a message of a run, a line of a file, an address. ``found_by``:
    ``words``, ``vectors`` or ``both``, empty where nobody says."""

    text: str
    locator: str
    title: str = ""
    found_by: str = ""


class Remembered(NamedTuple):
    """A fact as an agent is told it. ``untrusted``: it comes from a run that saw content from outside.

    ``by`` says what found it: ``words``, ``vectors`` or ``both``.
    """

    id: str
    text: str
    since: datetime
    untrusted: bool
    by: str = "words"


class Remembers(Protocol):
    """What stands behind the tools of a memory: that of the run's own tenant, agent and user, and of nobody else."""

    async def recall(self, query: str, limit: int) -> Sequence[Remembered]:
        """The facts that fit best, the best first."""
        ...

    def remember(self, fact: str) -> str:
        """Returns the id that the fact will have. It is kept by the run's commit, and by nothing else."""
        ...

    async def forget(self, fact: str) -> bool:
        """Is there such a fact? It is removed by the run's commit."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Context(Generic[Deps]):
    """What a tool may know about the call it serves.

    ``idempotency_key`` is the same for every attempt of this call and for no other call: hand it to downstream.
    ``cancelled`` turns true when somebody asked to stop. ``state`` is the session's state.
    """

    deps: Deps
    idempotency_key: str
    operation_id: str
    run_id: str
    session: str
    user: str | None
    tenant: str
    attempt: int
    time_zone: str | None
    state: SessionState
    cancelled: Cancelled
    _now: Callable[[], datetime] = field(repr=False)
    _progress: Callable[[float | None, str], None] = field(repr=False)
    _kept: Callable[[str], Awaitable[tuple[str, int]]] = field(repr=False)  # see ``outputs``
    _steps: Steps | None = field(default=None, repr=False)
    _find: Callable[[str, str, str, int], Awaitable[Sequence[Found]]] = field(default=cast(Any, None), repr=False)
    _memory: Remembers | None = field(default=None, repr=False)
    _pins: list[str] = field(default_factory=list, repr=False)
    _check_pins: Callable[[Sequence[str]], None] | None = field(default=None, repr=False)

    def now(self) -> datetime:
        """The current instant, in UTC. In a tool of steps that of its last step, the same whenever it is entered."""
        return self._now()

    def progress(self, fraction: float | None = None, note: str = "") -> None:
        """Tell watchers how far the call is. Nothing of it is stored."""
        self._progress(fraction, note)

    def pin(self, text: str) -> None:
        """Pin a text: from the next model call on every request of the session holds it, word for word.

        It is recorded with the outcome of this call and kept with the turn, as changes of ``state`` are. Raises
        InvalidInput for what is no text or too long, and where the session has no room for one more: pins may take half
        of the agent's budget.
        """
        text = pins.checked(text)
        if self._check_pins is not None:
            self._check_pins([*self._pins, text])
        self._pins.append(text)

    @overload
    def call(
        self, tool: Callable[Concatenate[Context[Any], P], Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Awaitable[T]: ...
    @overload
    def call(
        self, tool: Callable[Concatenate[Context[Any], P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Awaitable[T]: ...
    @overload
    def call(self, tool: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[T]: ...
    @overload
    def call(self, tool: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[T]: ...
    def call(self, tool: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Awaitable[Any]:
        """In a tool of steps: make a call of another tool, once. A plain function is a ``once`` tool.

        It is recorded: when the body is entered again, the recorded outcome is given without doing anything. The
        result comes back as the type that the tool says it returns. Calls are made one after the other.

        Raises:
            CallFailed: it did not succeed, or a person refused it.
            InvalidInput: this is no tool of steps, or the arguments do not fit. Nothing was done.
        """
        steps = self._only_in_steps("call")
        called = as_tool(tool)
        return steps.step(StepCall(called, called.named(args, kwargs)))

    @overload
    def ask(self, question: str, *, expires: timedelta | None = None) -> Awaitable[str]: ...
    @overload
    def ask(
        self, question: str, *, schema: type[T], default: T = ..., expires: timedelta | None = None
    ) -> Awaitable[T]: ...
    @overload
    def ask(
        self, question: str, *, schema: Any, default: Any = ..., expires: timedelta | None = None
    ) -> Awaitable[Any]: ...
    def ask(
        self, question: str, *, schema: Any = str, default: Any = ..., expires: timedelta | None = None
    ) -> Awaitable[Any]:
        """In a tool of steps: ask a person, once. The answer is a value of the type ``schema``.

        It is recorded: when the body is entered again, the recorded answer is given. When nobody answers within
        ``expires``, ``default`` is the answer; without a default the run ends ``expired``.

        Raises:
            InvalidInput: this is no tool of steps, or it cannot be asked like this, and nothing was asked. Or a
                validator of the type refuses the answer: the body may ask again.
        """
        return self._only_in_steps("ask").step(Question(question, schema, default, expires))

    def _only_in_steps(self, verb: str) -> Steps:
        if self._steps is None:
            raise InvalidInput(
                f'ctx.{verb} is for tools of steps: declare this one with @tool(effect="steps"), and give what it does '
                "itself to tools of its own"
            )
        return self._steps


@dataclass(frozen=True, slots=True)
class Happened:
    """A ``check`` found that it did happen; ``result`` is what the model is told."""

    result: Any = "done"


@dataclass(frozen=True, slots=True)
class NotHappened:
    """A ``check`` found that it certainly did not happen."""


@dataclass(frozen=True, slots=True)
class CannotTell:
    """A ``check`` could not find out."""

    reason: str = ""


CheckAnswer: TypeAlias = Happened | NotHappened | CannotTell
Approve: TypeAlias = bool | Callable[..., bool]


class Tool(Generic[P, R]):
    """A function that a model may call, with what its operator declared about it.

    Calling a ``Tool`` calls the function itself, outside any run.
    """

    def __init__(
        self,
        function: Callable[P, R],
        *,
        effect: EffectClass = "once",
        name: str | None = None,
        description: str | None = None,
        key_ttl: timedelta = DEFAULT_KEY_TTL,
        timeout: timedelta = DEFAULT_TIMEOUT,
        approve: Approve = False,
        approve_expires: timedelta | None = None,
        check: Callable[..., Any] | None = None,
        not_done: tuple[type[BaseException], ...] = (),
    ) -> None:
        if not callable(function) or not hasattr(function, "__name__"):
            raise InvalidInput(f"{function!r} is no tool: write a function that calls it")
        if (inner := _tool_inside(function)) is not None:  # its class and its approval would be lost
            raise InvalidInput(f"tool {inner.name!r} is inside of a decorator: write @tool above all the others, once")
        self.function = function
        self.name: str = function.__name__ if name is None else name
        self.effect: EffectClass = effect
        self.description = description if description is not None else inspect.cleandoc(function.__doc__ or "")
        self.key_ttl, self.timeout = key_ttl, timeout
        self.approve, self.approve_expires = approve, approve_expires
        if not isinstance(not_done, tuple) or not all(
            isinstance(e, type) and issubclass(e, BaseException) for e in not_done
        ):
            raise InvalidInput(f"tool {self.name!r}: not_done must be a tuple of exception classes, got {not_done!r}")
        self.check = check
        self.not_done: tuple[type[BaseException], ...] = (NotDone, *not_done)
        self._refuse_nonsense()
        functools.update_wrapper(cast(Any, self), function)

    def _refuse_nonsense(self) -> None:
        if not isinstance(self.name, str) or not ids.is_tool_name(self.name):
            raise InvalidInput(
                f"a tool cannot be named {self.name!r}: providers take letters, digits, _ and -, at most 64 (name=...)"
            )
        if not isinstance(self.description, str):
            raise InvalidInput(f"tool {self.name!r}: the description must be a text")
        if self.effect not in typing.get_args(EffectClass):
            raise InvalidInput(
                f"tool {self.name!r}: effect {self.effect!r} is unknown: say read, idempotent, once or steps"
            )
        for what, given in (
            ("timeout", self.timeout),
            ("key_ttl", self.key_ttl),
            ("approve_expires", self.approve_expires),
        ):
            if not isinstance(given, timedelta) and not (given is None and what == "approve_expires"):
                raise InvalidInput(f"tool {self.name!r}: {what} must be a timedelta, got {given!r}")
        if not callable(self.approve) and not isinstance(self.approve, bool):
            raise InvalidInput(f"tool {self.name!r}: approve must be True, False or a function, got {self.approve!r}")
        if inspect.iscoroutinefunction(self.approve):
            raise InvalidInput(f"tool {self.name!r}: approve must be an ordinary function: nobody would await this one")
        if self.check is not None and not callable(self.check):
            raise InvalidInput(f"tool {self.name!r}: check must be a function, got {self.check!r}")
        if inspect.isgeneratorfunction(self.function) or inspect.isasyncgenfunction(self.function):
            raise InvalidInput(
                f"tool {self.name!r} is a generator: nobody would run it. Return a list instead of yield"
            )
        if self.timeout <= timedelta(0) or self.key_ttl <= timedelta(0):
            raise InvalidInput(f"tool {self.name!r}: timeout and key_ttl must be longer than nothing")
        if self.timeout > LONGEST:
            raise InvalidInput(
                f"tool {self.name!r}: a timeout of {self.timeout} is never over, and after a crash the next attempt "
                f"would wait for it: say how long one attempt can take, at most {LONGEST.days} days"
            )
        if self.approve_expires is not None and self.approve_expires <= timedelta(0):
            raise InvalidInput(
                f"tool {self.name!r}: approve_expires must be longer than nothing: nobody could approve it"
            )
        if self.approve_expires is not None and self.approve_expires > LONGEST:
            raise InvalidInput(f"tool {self.name!r}: leave approve_expires out, then an approval does not expire")
        if self.check is not None and self.effect != "once":
            raise InvalidInput(f"tool {self.name!r}: check= is for once tools; a {self.effect} tool is simply repeated")
        if self.effect == "steps" and not (self.is_async and self._context_parameter):
            raise InvalidInput(
                f"tool {self.name!r}: a tool of steps makes its calls by its context: write 'async def "
                f"{self.name}(ctx: Context, ...)'"
            )
        try:
            parameters = inspect.signature(self.function).parameters.values()
        except (ValueError, TypeError):  # some of what is built into Python
            raise InvalidInput(f"{self.function!r} is no tool: write a function that calls it") from None
        for parameter in parameters:
            if parameter.name in ("self", "cls"):  # a model would be asked to give it
                raise InvalidInput(
                    f"tool {self.name!r} is a method without its object: give the bound one, as in "
                    f"tool(effect=...)(desk.{self.name})"
                )
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
                raise InvalidInput(
                    f"tool {self.name!r}: parameter {parameter.name!r} has no name that a model could use: "
                    "make it an ordinary parameter"
                )
            if parameter.name == self._context_parameter and _is_plain(parameter.annotation):
                raise InvalidInput(
                    f"tool {self.name!r}: parameter {parameter.name!r} is the context: annotate it with Context, "
                    "or call it otherwise"
                )
            if parameter.name != self._context_parameter and _takes_context(self.function, parameter):
                raise InvalidInput(
                    f"tool {self.name!r}: the context is the first parameter: write '{self.name}(ctx: Context, ...)'"
                )

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"Tool({self.name!r}, effect={self.effect!r})"

    @property
    def rules(self) -> effects.Rules:
        """What the rules of repeating look at."""
        ttl = self.key_ttl if self.effect == "idempotent" else None
        return effects.Rules(effect=self.effect, has_check=self.check is not None, key_ttl=ttl)

    @functools.cached_property
    def spec(self) -> ToolSpec:
        from pydantic import PydanticUserError

        try:
            schema = self._arguments.model_json_schema(schema_generator=schemas.generator())
        except PydanticUserError as error:
            raise InvalidInput(
                f"tool {self.name!r}: a model cannot be told what its parameters take: {error.message}"
            ) from error
        schema.pop("title", None)
        for described in schema.get("properties", {}).values():
            described.pop("title", None)
        return ToolSpec(name=self.name, description=self.description, parameters=schema)

    def parse(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments as the function takes them, validated strictly.

        Raises:
            InvalidInput: they do not fit; the message says which and why, for the model to read.
        """
        try:
            parsed = self._validated(arguments)
        except BaseException as error:  # a validator is the user's code, and may raise anything
            raise InvalidInput(
                redact(f"the arguments of {self.name} do not fit: {schemas.mismatch(error, 'arguments')}")
            ) from error
        return {name: getattr(parsed, name) for name in self._names}

    def takes(self, given: Mapping[str, Any], sent: Mapping[str, Any]) -> None:
        """Raises InvalidInput where what is sent for the arguments given does not fit, or is read as something else."""
        for name, read in self.parse(sent).items():
            schemas.is_read_as_it_is(given.get(self._sent_as.get(name, name)), read)

    @functools.cached_property
    def _names(self) -> tuple[str, ...]:
        return tuple(self._arguments.model_fields)

    def _validated(self, arguments: Mapping[str, Any]) -> Any:
        try:
            written = json.dumps(arguments)
        except TypeError:  # bytes of a tool of steps, or of a person, see ``as_sent``: a model sends JSON
            return self._arguments.model_validate(arguments)
        try:
            return self._arguments.model_validate_json(written, strict=True)
        except ValueError as error:
            from pydantic import ValidationError

            if not isinstance(error, ValidationError):
                raise
            if not any(e["type"] == "int_type" for e in error.errors(include_url=False)):
                raise
            whole = schemas.with_whole_numbers(arguments)  # to JSON 3.0 is an integer, and some models write it so
            return self._arguments.model_validate_json(json.dumps(whole), strict=True)

    def named(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments as somebody wrote them, by their names. Raises InvalidInput for one too many, or given twice."""
        names = [n for n in inspect.signature(self.function).parameters if n != self._context_parameter]
        given = [*zip(names, args, strict=False), *kwargs.items()]
        named = {self._sent_as.get(name, name): value for name, value in given}
        if len(args) > len(names) or len(named) < len(given):
            raise InvalidInput(f"{self.name} takes {', '.join(names) or 'no arguments'}, each once")
        return named

    @functools.cached_property
    def _sent_as(self) -> dict[str, str]:
        """The name by which a model knows a parameter, where that is another one (``Field(alias="from")``)."""
        known = {name: field.validation_alias for name, field in self._arguments.model_fields.items()}
        return {name: alias for name, alias in known.items() if isinstance(alias, str)}

    def read_back(self, recorded: Any) -> Any:
        """A recorded result as the type that the function says it returns, where it fits that; else as it is."""
        if self._returned is None:
            return recorded
        for extra in (None, "ignore"):  # what a model computes is recorded too, and may be nothing that it takes
            with contextlib.suppress(BaseException):  # a validator is the user's code, and may raise anything
                return self._returned.validate_python(recorded, extra=extra, by_alias=True, by_name=True)  # (by name)
        return recorded

    @functools.cached_property
    def _returned(self) -> Any:
        from pydantic import TypeAdapter

        try:
            return TypeAdapter(_hints(self.function).get("return", Any))
        except BaseException:  # no type, or its own hooks raised: nothing that could be read back as such
            return None

    @functools.cached_property
    def _arguments(self) -> Any:
        from pydantic import ConfigDict, create_model

        fields: dict[str, Any] = {}
        hints = _hints(self.function)
        for name, parameter in inspect.signature(self.function).parameters.items():
            if name == self._context_parameter:
                continue
            default = ... if parameter.default is parameter.empty else parameter.default
            fields[name] = (hints.get(name, Any), default)
        config = ConfigDict(extra="forbid", arbitrary_types_allowed=True, protected_namespaces=())
        try:
            with warnings.catch_warnings():  # a parameter may well be called "json" or "schema"
                warnings.filterwarnings("ignore", "Field name .* shadows an attribute in parent")
                made = create_model(f"{self.name}_arguments", __config__=config, **fields)
        except Exception as error:
            raise InvalidInput(f"tool {self.name!r}: its parameters have no schema: {error}") from error
        if untaken := [name for name in fields if name not in made.model_fields]:
            raise InvalidInput(
                f"tool {self.name!r}: a model could not give parameter {untaken[0]!r}: call it otherwise"
            )
        return made

    @functools.cached_property
    def _context_parameter(self) -> str | None:
        return _context_parameter(self.function)

    @functools.cached_property
    def is_async(self) -> bool:
        return is_awaited(self.function)

    def call(self, context: Context[Any], arguments: Mapping[str, Any]) -> R:
        """Call the function with what ``parse`` returned. For an async function this makes the awaitable."""
        return cast(R, _call(self.function, self._context_parameter, context, arguments))

    def needs_approval(self, context: Callable[[], Context[Any]], arguments: Mapping[str, Any]) -> str | None:
        """Why a person must be asked first, or None. A predicate that raises means ask.

        It is given values of its own: nothing that it does to them reaches the tool.
        """
        if isinstance(self.approve, bool):
            return "every call asks" if self.approve else None
        try:
            taken = _taken_by(self.approve, self.parse(arguments))
            asks = _call(self.approve, _context_parameter(self.approve), context(), taken)
        except BaseException as error:  # an exit-type exception too: it would end the event loop
            return f"its approve predicate raised {type(error).__name__}"
        return "its approve predicate says so" if asks else None

    @functools.cached_property
    def check_is_async(self) -> bool:
        return self.check is not None and is_awaited(self.check)

    def check_called(self, context: Context[Any], arguments: Mapping[str, Any]) -> Any:
        """What the operator's ``check`` knows about an attempt whose outcome was lost, or what is to be awaited for
        that with ``check_answered``. Neither raises."""
        try:
            answer = self._call_check(context, arguments)
            return answer if is_awaitable(answer) else _checked(answer)
        except BaseException as error:  # what leaves a thread is lost, and somebody waits for its answer
            return self._check_raised(error)

    async def check_answered(self, answer: Awaitable[Any]) -> CheckAnswer:
        try:
            return _checked(await answer)
        except BaseException as error:  # an exit-type exception too: it would end the event loop
            return self._check_raised(error)

    @staticmethod
    def _check_raised(error: BaseException) -> CannotTell:
        return CannotTell(redact(f"check raised {values.error_text(error)}"))

    def _call_check(self, context: Context[Any], arguments: Mapping[str, Any]) -> Any:
        assert self.check is not None
        return _call(self.check, _context_parameter(self.check), context, _taken_by(self.check, arguments))


def _checked(known: Any) -> CheckAnswer:
    if isinstance(known, Happened | NotHappened | CannotTell):
        if not isinstance(known, CannotTell):
            return known
        return CannotTell(redact(values.plain_text(values.encode(known.reason))))
    return CannotTell(f"check answered {type(known).__name__}, not Happened, NotHappened or CannotTell")


@overload
def tool(function: Callable[P, R], /) -> Tool[P, R]: ...
@overload
def tool(
    *,
    effect: EffectClass = ...,
    name: str | None = ...,
    description: str | None = ...,
    key_ttl: timedelta = ...,
    timeout: timedelta = ...,
    approve: Approve = ...,
    approve_expires: timedelta | None = ...,
    check: Callable[..., Awaitable[CheckAnswer] | CheckAnswer] | None = ...,
    not_done: tuple[type[BaseException], ...] = ...,
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...
def tool(function: Any = None, /, **declared: Any) -> Any:
    """Declare a function as a tool.

    ``effect``: ``read`` (repeat freely), ``idempotent`` (repeat only with the same key, within ``key_ttl`` of its
    first start), ``once`` (the default: never repeated blindly), ``steps`` (made of recorded ``ctx.call``s).
    ``timeout`` bounds one attempt (60 s); of a tool of steps, what it computes itself.
    ``approve``: True, or a predicate over the arguments; a person decides first. ``approve_expires``: after that the
    answer is a refusal. ``check`` says after a crash whether a ``once`` call happened. ``not_done``: exceptions that
    prove that nothing happened in this attempt; ``raise NotDone(...)`` says the same.
    """
    if function is not None:
        return Tool(function, **declared)
    return lambda function: Tool(function, **declared)


def as_tool(given: Tool[..., Any] | Callable[..., Any]) -> Tool[..., Any]:
    """A plain function is a ``once`` tool."""
    if isinstance(given, Tool):
        return given
    if not callable(given):
        raise InvalidInput(f"{given!r} is not a tool: give a function or what @tool made")
    return Tool(given)


def _tool_inside(function: Any) -> Tool[..., Any] | None:
    """What a decorator wrapped, if that is a tool."""
    inner = inspect.unwrap(function, stop=lambda f: isinstance(f, Tool))
    return inner if isinstance(inner, Tool) else None


def is_awaited(function: Callable[..., Any]) -> bool:
    """Does a call of it give an awaitable? A decorator may give an ``async`` function for one that is not, or a plain
    one that hands on what the ``async`` function gave."""
    return inspect.iscoroutinefunction(inspect.unwrap(function, stop=inspect.iscoroutinefunction))


def is_awaitable(given: Any) -> TypeGuard[Awaitable[Any]]:
    return hasattr(type(given), "__await__")


def as_sent(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments that somebody gave as Python values, as a model would have sent them: in JSON.

    Bytes that are no text have no form in it. With such among them all are as they can be recorded.

    Raises:
        InvalidInput: a value has neither form, or the form of another value.
    """
    try:
        sent: dict[str, Any] = schemas.in_json(dict(arguments))
    except InvalidInput:
        lost: list[str] = []
        encoded = values.encode_object(arguments, lost)
        if lost:
            raise
        schemas.is_written_as_it_is(arguments)
        sent = values.decode_object(encoded)
    return sent


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        hints = typing.get_type_hints(function, localns=_closure(function), include_extras=True)
        return {name: schemas.at_once(hint) for name, hint in hints.items()}
    except NameError as error:
        raise InvalidInput(f"tool {function.__name__!r}: {error}: make the type importable in its module") from error
    except Exception as error:  # a text that is no type, or an object that is called and is no function
        why = values.error_text(error)
        raise InvalidInput(f"tool {function.__name__!r}: its annotations cannot be read: {why}") from error


def _closure(function: Callable[..., Any]) -> dict[str, Any]:
    """The variables around it that have a value by now: a tool may well name its runtime, which is made later."""
    inner: Any = inspect.unwrap(function)
    names = inner.__code__.co_freevars if hasattr(inner, "__code__") else ()
    known = {}
    for name, cell in zip(names, getattr(inner, "__closure__", None) or (), strict=True):
        with contextlib.suppress(ValueError):
            known[name] = cell.cell_contents
    return known


def _context_parameter(function: Callable[..., Any]) -> str | None:
    """The name of a first parameter that is annotated with ``Context``, or is called ``ctx``."""
    first = next(iter(inspect.signature(function).parameters.values()), None)
    return None if first is None or not _takes_context(function, first) else first.name


def _takes_context(function: Callable[..., Any], parameter: inspect.Parameter) -> bool:
    annotation = parameter.annotation
    if isinstance(annotation, str):  # whoever has a class of that name means it
        name = annotation.split("[")[0].split(".")[-1]
        meant = getattr(inspect.unwrap(function), "__globals__", {}).get(name)
        annotation = Context if meant is None and name == Context.__name__ else meant
    return annotation is Context or typing.get_origin(annotation) is Context or parameter.name == "ctx"


def _is_plain(annotation: Any) -> bool:
    """Is it a type of values that a model gives, such as ``str`` or ``list[int]``?"""
    if isinstance(annotation, str):
        annotation = vars(builtins).get(annotation.split("[")[0])
    kind = typing.get_origin(annotation) or annotation
    return kind is not object and getattr(kind, "__module__", None) == "builtins"


def _call(
    function: Callable[..., Any], context_parameter: str | None, context: Context[Any], arguments: Mapping[str, Any]
) -> Any:
    if context_parameter is None:
        return function(**arguments)
    return function(**{context_parameter: context}, **arguments)


def _taken_by(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Those of the arguments that the function has a parameter for."""
    parameters = inspect.signature(function).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return arguments
    return {name: value for name, value in arguments.items() if name in parameters}
