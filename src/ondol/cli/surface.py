"""How does a line that somebody typed become a call? The options that every command takes, and what it works with."""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import shlex
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, Literal, ParamSpec, TypeAlias, TypeVar, cast

import typer
import typer.core

from ondol import cancellation
from ondol.cli import codes
from ondol.cli.log import show_log
from ondol.cli.output import Output, say, say_failed
from ondol.errors import InvalidInput, NotFound, OndolError, ReadOnly
from ondol.ids import DEFAULT_TENANT

if TYPE_CHECKING:
    from ondol.imported import ImportedRun
    from ondol.runtime import Runtime
    from ondol.store import Store

P = ParamSpec("P")
T = TypeVar("T")
Format: TypeAlias = Literal["table", "json", "jsonl", "ids"]
Verb: TypeAlias = Callable[Concatenate["Cli", P], Coroutine[Any, Any, int | None]]

DEFAULT_DB = "sqlite:///ondol.db"


def one_id(id: str) -> str:
    """The id that was given, or in the place of ``-`` the one on standard input."""
    if id != "-":
        return id
    named = typed().split()
    if len(named) != 1:
        raise InvalidInput(f"this command takes one id, and there are {len(named)} on standard input: give one")
    return named[0]


DbOption = Annotated[str | None, typer.Option("--db", metavar="URL", help="The store. [env: ONDOL_DB]")]
UrlOption = Annotated[
    str | None, typer.Option("--url", metavar="URL", help="A server instead of a store. [env: ONDOL_URL, ONDOL_TOKEN]")
]
FormatOption = Annotated[Format | None, typer.Option("-o", "--output", help="What to print.")]
LogJsonOption = Annotated[bool, typer.Option("--log-json", help="Log what happens, as JSON. [env: ONDOL_LOG]")]
NoColorOption = Annotated[bool, typer.Option("--no-color", help="Print without colour.")]
By = Annotated[str | None, typer.Option("--by", metavar="NAME", help="Who does this. [default: you]")]
IDS = "'-' reads ids from standard input."
Ids = Annotated[list[str], typer.Argument(metavar="ID...", help=IDS)]
ONE_ID = "'-' reads it from standard input."
Id = Annotated[str, typer.Argument(metavar="ID", help=ONE_ID, callback=one_id)]
SessionId = Annotated[str, typer.Argument(metavar="SESSION", help=ONE_ID, callback=one_id)]
OfSession = Annotated[str | None, typer.Option("--session", metavar="S", help="Only of this session.")]
OfUser = Annotated[str | None, typer.Option("--user", metavar="U", help="Only of this user.")]
After = Annotated[str | None, typer.Option("--after", metavar="ID", help="Only what follows this one.")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many.")]


@dataclass(frozen=True, slots=True)
class Options:
    """The global options, as far as they were given."""

    db: str | None = None
    format: Format | None = None
    no_color: bool = False
    log_json: bool = False
    url: str | None = None

    def with_given(
        self, db: str | None, format: Format | None, no_color: bool, log_json: bool, url: str | None = None
    ) -> Options:
        """Raises InvalidInput for an empty one, which would mean the store of the folder where one stands."""
        for name, value in (("--db", db), ("--url", url)):
            if value == "":
                raise InvalidInput(f"{name} names nothing: is the variable set that it comes from?")
        return Options(
            db or self.db, format or self.format, no_color or self.no_color, log_json or self.log_json, url or self.url
        )


class Cli:
    """What a command works with: the store that was named, and where its answer goes."""

    def __init__(self, options: Options, environment: str | None) -> None:
        if options.db and options.url:
            raise InvalidInput("--db names a store and --url a server: say one of them")
        self.options = options
        self.named_db = options.db or environment or None
        # In commands that are shown; not what the environment says anyway, and no password.
        self._shown_db = options.db and _without_password(options.db)
        named_url = None if options.db else os.environ.get("ONDOL_URL")  # what was typed counts more
        self.server = options.url or named_url or None
        self.out = Output(options.format or "table", no_color=options.no_color)
        self.code = codes.OK

    @property
    def url(self) -> str:
        return self.named_db or DEFAULT_DB

    @property
    def place(self) -> str:
        """What the command looks at, the server or the store, to be shown."""
        return _without_password(self.server or self.url)

    @property
    def is_file(self) -> bool:
        """Is the store a file? Else it is a database on a server, which a command never makes by looking."""
        return not self.url.startswith(("postgresql://", "postgres://"))

    @property
    def path(self) -> Path:
        """The file of the store. Raises InvalidInput for a URL that names none."""
        if not self.is_file:
            raise InvalidInput("this command works on a file, and the store is a database: name one (sqlite:///FILE)")
        if not self.url.startswith("sqlite:///") or self.url == "sqlite:///":
            named = re.sub(r"//[^/@]*@", "//…@", self.url)
            raise InvalidInput(f"{named!r} names no store: say --db sqlite:///FILE or postgresql://USER@HOST/DATABASE")
        return Path(self.url.removeprefix("sqlite:///"))

    def needs_store(self) -> None:
        """Raises InvalidInput where a server is named: the command is about the store itself, and this machine."""
        if self.server is not None:
            raise _on_a_store()

    def works_on(self, store: Store) -> None:
        """The app named a store of its own: commands that are shown name it too."""
        path = getattr(store, "path", None)
        if self.named_db is None and isinstance(path, Path) and path != self.path.absolute():
            self.named_db = self._shown_db = f"sqlite:///{path}"

    def command(self, *words: str) -> str:
        """A command that works on the same store, to be shown and copied."""
        url = self.options.url and _without_password(self.options.url)
        db = ["--db", self._shown_db] if self._shown_db else ["--url", url] if url else []
        return shlex.join(["ondol", *db, *words])

    @asynccontextmanager
    async def runtime(self, *, acts: bool = False, makes: bool = False) -> AsyncIterator[Runtime]:
        """A runtime without agents. One that ``acts`` may take the place of a driver that is gone, for a moment,
        so that what it does takes effect; any other never stands in a driver's way. ``makes``: also the store.

        Raises:
            NoDatabase: there is no such store, and looking does not make one.
        """
        if self.server is not None:
            from ondol import AsyncClient

            async with AsyncClient(self.server) as there:
                try:
                    yield cast("Runtime", there)  # it has the methods that most commands use
                except AttributeError as error:
                    if error.obj is not there:
                        raise
                    raise _on_a_store() from error
            return
        from ondol.cli.bystander import bystander
        from ondol.runtime import Runtime

        if not makes:
            await self._is_there()
        async with Runtime(self.url if acts else bystander(self.url), door="cli") as rt:
            yield rt

    async def _is_there(self) -> None:
        if self.is_file:
            if not self.path.exists():
                raise codes.NoDatabase(f"there is no database {self.path}: name it with --db, or 'ondol run' makes it")
            return
        from ondol.stores import open_store

        open_store(self.url)  # raises where it takes an extra
        from ondol.stores import postgres_admin
        from ondol.stores.postgres_place import Place

        if not await asyncio.to_thread(postgres_admin.is_there, self.url):
            name = Place.of(self.url).name
            raise codes.NoDatabase(f"there is no store in {name}: name another with --db, or 'ondol run' makes one")

    async def found(self, look: Callable[[Runtime], Awaitable[list[T]]]) -> list[T]:
        """What a list command lists: nothing where there is no store, which is said; looking makes none."""
        try:
            async with self.runtime() as rt:
                return await look(rt)
        except codes.NoDatabase as missing:
            say(f"({missing})")
            return []

    async def for_each(
        self, ids: Iterable[str], do: Callable[[Runtime, str], Awaitable[tuple[str, Any]]], *, acts: bool = False
    ) -> None:
        """Do something with each id that was given. ``do`` tells people by itself what came of it, and returns an id
        and a body for programs. If it fails, that is said, and the next one has its turn.
        """
        done: list[tuple[str, Any]] = []
        named = self.each(ids)
        async with self.runtime(acts=acts) as rt:
            for one in named:
                try:
                    done.append(await do(rt, one))
                except NotFound as missing:
                    self.failed(await why_not(rt, one, missing) if acts else missing)
                except OndolError as error:
                    self.failed(error)
        if not self.out.for_people:
            self.out.bodies(done, one=True)

    def failed(self, error: OndolError) -> None:
        """Say what went wrong and go on with the next id; the first failure is the exit code."""
        say_failed(error)
        self.ends_with(codes.of_error(error))

    def ends_with(self, code: int) -> None:
        self.code = self.code or code

    def each(self, ids: Iterable[str]) -> list[str]:
        """The ids that were given, with ``-`` replaced by those on standard input."""
        named: list[str] = []
        for id in ids:
            named.extend(typed().split() if id == "-" else [id])
        return list(dict.fromkeys(named))


def _on_a_store() -> InvalidInput:
    return InvalidInput("this command works on a store, not on a server: name it with --db")


def typed() -> str:
    """Standard input, to its end. Ctrl-C ends it: the event loop hears of that only when somebody lets it go on."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return sys.stdin.read()
    finally:
        signal.signal(signal.SIGINT, before)


def _without_password(url: str) -> str:
    url = re.sub(r"(//[^:/@]*):[^/@]*@", r"\1@", url)
    return re.sub(r"(?<=[?&])(ssl)?password=[^&]*&?", "", url).rstrip("?&")


async def imported_instead(rt: Runtime, run: str, missing: NotFound) -> ImportedRun:
    """The imported run of that id, where the store has no run of its own. Raises ``missing`` if there is none."""
    if not hasattr(rt, "imported"):  # no server has them
        raise missing
    try:
        return await rt.imported(run)
    except NotFound:
        raise missing from None


async def why_not(rt: Runtime, id: str, missing: NotFound) -> OndolError:
    """Nothing can be done with an imported run, though it is there."""
    try:
        await imported_instead(rt, id, missing)
    except NotFound:
        return missing
    return ReadOnly(id)


class Noun(typer.core.TyperGroup):
    """A group whose bare name lists: ``ondol runs`` is ``ondol runs ls``, whatever options follow."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        bare = next((v for v in ("ls", "tour") if v in self.commands), None)
        has_verb = any(a in self.commands or a in ("--help", "-h") for a in args)
        if bare is not None and not has_verb and (not args or args[0].startswith("-")):
            args = [bare, *args]
        return super().parse_args(ctx, args)


def noun(help: str) -> typer.Typer:
    """A word with verbs."""
    app = typer.Typer(cls=Noun, help=help, rich_markup_mode=None, add_completion=False)

    @app.callback()
    def take(
        ctx: typer.Context,
        db: DbOption = None,
        output: FormatOption = None,
        no_color: NoColorOption = False,
        log_json: LogJsonOption = False,
        url: UrlOption = None,
    ) -> None:
        given(ctx, db, output, no_color, log_json, url)

    return app


def given(
    ctx: typer.Context, db: str | None, output: Format | None, no_color: bool, log_json: bool, url: str | None = None
) -> Options:
    """Take up what was given at this place of the line. Options may stand before the noun, after it, and at the end."""
    before = ctx.obj if isinstance(ctx.obj, Options) else Options()
    ctx.obj = options = before.with_given(db, output, no_color, log_json, url)
    if options.log_json:
        show_log("json")
    return options


def verb(app: typer.Typer, name: str) -> Callable[[Verb[P]], Verb[P]]:
    """Register an async function whose first parameter is the ``Cli``. It returns an exit code, or None for 0."""

    def register(function: Verb[P]) -> Verb[P]:
        def run(
            ctx: typer.Context,
            db: DbOption,
            output: FormatOption,
            no_color: NoColorOption,
            log_json: LogJsonOption,
            url: UrlOption,
            **own: Any,
        ) -> None:
            cli = Cli(given(ctx, db, output, no_color, log_json, url), os.environ.get("ONDOL_DB"))

            if cli.server is not None and own.get("tenant", DEFAULT_TENANT) != DEFAULT_TENANT:
                raise InvalidInput("on a server the token says whose it is: leave --tenant out")

            async def answer() -> int:
                code = await function(cli, **own)  # type: ignore[call-arg]
                return code or cli.code

            raise typer.Exit(cancellation.run(answer()))

        own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
        shared = list(inspect.signature(run, eval_str=True).parameters.values())[:-1]
        flags = ("no_color", "log_json")
        shared = [shared[0], *(p.replace(default=False if p.name in flags else None) for p in shared[1:])]
        all = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in (shared[0], *own, *shared[1:])]
        run.__signature__ = inspect.Signature(all)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in all}
        app.command(name, help=inspect.getdoc(function))(run)
        return function

    return register
