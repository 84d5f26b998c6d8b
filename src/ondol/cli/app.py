"""Which commands are there, and how does one of them end?"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from typing import Any

import typer
import typer.core

from ondol.cli import (
    asks,
    audit,
    chat,
    codes,
    context,
    db,
    demo,
    doctor,
    effects,
    explain,
    index,
    init,
    memory,
    openapi,
    outbox,
    replays,
    runfiles,
    runs,
    serve,
    sessions,
    tokens,
    usage,
)
from ondol.cli import run as run_command
from ondol.cli.log import show_log
from ondol.cli.output import say_error, say_failed
from ondol.cli.surface import DbOption, FormatOption, LogJsonOption, NoColorOption, UrlOption, given
from ondol.errors import OndolError

_HELP = """Run AI agents so that a crash neither forgets nor repeats.

Exit codes: 0 ok, 1 run failed, cancelled or expired, 2 usage, 3 auth, 4 not found, 5 conflict, 6 waiting for a
person, 7 unknown effect, 130 Ctrl-C."""


_ORDER = (
    "demo",
    "init",
    "dev",
    "serve",
    "run",
    "chat",
    "runs",
    "asks",
    "effects",
    "sessions",
    "context",
    "audit",
    "memory",
    "outbox",
    "index",
    "usage",
    "tokens",
    "db",
    "doctor",
    "openapi",
    "explain",
)


class _InOrder(typer.core.TyperGroup):
    """Lists its commands from the first that a newcomer needs to the last."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(_ORDER)


app = typer.Typer(
    cls=_InOrder, help=_HELP, rich_markup_mode=None, add_completion=False, invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)  # fmt: skip


@app.callback()
def _take(
    ctx: typer.Context,
    db: DbOption = None,
    output: FormatOption = None,
    no_color: NoColorOption = False,
    log_json: LogJsonOption = False,
    url: UrlOption = None,
    version: bool = typer.Option(False, "--version", help="Print the version."),
) -> None:
    given(ctx, db, output, no_color, log_json, url)
    if version:
        from ondol import __version__

        sys.stdout.write(f"ondol {__version__}\n")
        raise typer.Exit
    if ctx.invoked_subcommand is None:
        sys.stdout.write(ctx.get_help() + "\n")


app.add_typer(demo.app, name="demo")
run_command.add_to(app)
chat.add_to(app)
replays.add_to(runs.app)
app.add_typer(runs.app, name="runs")
runfiles.add_to(runs.app)
app.add_typer(asks.app, name="asks")
app.add_typer(effects.app, name="effects")
app.add_typer(sessions.app, name="sessions")
context.add_to(app)
app.add_typer(memory.app, name="memory")
app.add_typer(outbox.app, name="outbox")
index.add_to(app)
audit.add_to(app)
usage.add_to(app)
doctor.add_to(app)
serve.add_to(app)
openapi.add_to(app)
app.add_typer(tokens.app, name="tokens")
app.add_typer(db.app, name="db")
explain.add_to(app)
init.add_to(app)


def run(arguments: Sequence[str] | None) -> int:
    """Run one command line; returns the exit code. Every error is one line on standard error."""
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that cannot show a character is no reason to fail
            stream.reconfigure(errors="backslashreplace")
    try:
        show_log(os.environ.get("ONDOL_LOG"))
        code = app(args=None if arguments is None else list(arguments), prog_name="ondol", standalone_mode=False)
    except typer.TyperException as error:
        return _usage(error)
    except OndolError as error:
        say_failed(error)
        return codes.of_error(error)
    except typer.Abort:
        return codes.INTERRUPTED
    except Exception as error:
        if os.environ.get("ONDOL_DEBUG"):
            raise
        if isinstance(error, OSError) and error.strerror:  # of the machine, and no fault of ours
            named, fix = error.filename, "look at its folder and its permissions"
            if named is None and isinstance(error, FileNotFoundError):
                named, fix = "the current folder", "it was removed, go to one that is there"
            elif named is None:
                named, fix = "standard output", "free some space, or send it elsewhere"
            say_error("error", f"{named} cannot be used ({error.strerror}): {fix}")
            return codes.FAILED
        say_error("internal", f"{type(error).__name__}: {error}: a bug in Ondol, ONDOL_DEBUG=1 shows where")
        return codes.FAILED
    return code if isinstance(code, int) else codes.OK


def _open_closed_streams() -> None:
    """Whoever starts a command may have closed them. The next file that is opened would have the number of one."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - for as long as the process lives


def _usage(error: typer.TyperException) -> int:
    ctx = getattr(error, "ctx", None)
    where = f": see '{ctx.command_path} --help'" if ctx is not None else ""
    said = error.format_message().rstrip(".").replace(": Value error, ", ": ")
    if said.startswith("No such option") and "(" not in said:  # nothing like it
        said += " (a value that begins with - stands behind '--', as in: ondol asks answer ID -- -5)"
    say_error("usage", said + where)
    return error.exit_code
