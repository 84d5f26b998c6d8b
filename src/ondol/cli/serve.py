"""``ondol serve`` and ``ondol dev``: the HTTP door of an app."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import webbrowser
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from ondol.cli.loading import load_runtime
from ondol.cli.output import say
from ondol.cli.surface import Cli, verb
from ondol.errors import InvalidInput

Host = Annotated[str, typer.Option("--host", metavar="H", help="The address to listen on.")]
Port = Annotated[
    int,
    typer.Option("--port", metavar="P", min=0, max=65535, envvar="ONDOL_PORT", help="The port; 0: any that is free."),
]
AllowHost = Annotated[
    list[str] | None, typer.Option("--allow-host", metavar="NAME", help="A name by which the server is known.")
]
AllowOrigin = Annotated[
    list[str] | None, typer.Option("--allow-origin", metavar="URL", help="Pages from there may use it (CORS).")
]
_LOOKED_AT = 0.3  # seconds between two looks at the files
_SKIPPED = frozenset({"__pycache__", "node_modules", ".git", ".venv", "venv"})


def add_to(app: typer.Typer) -> None:
    verb(app, "serve")(serve)
    verb(app, "dev")(dev)


async def serve(
    cli: Cli,
    app: Annotated[str, typer.Argument(metavar="APP", help="MODULE:NAME or FILE.py:NAME, a Runtime or an Agent.")],
    host: Host = "127.0.0.1",
    port: Port = 8000,
    allow_host: AllowHost = None,
    allow_origin: AllowOrigin = None,
    fd: Annotated[int | None, typer.Option("--fd", hidden=True)] = None,
) -> None:
    """Serve an app over HTTP, and drive its runs. An address for others needs a token: 'ondol tokens create'."""
    runtime = load_runtime(app, cli.named_db)
    cli.works_on(runtime._store)
    serving = _serving()
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # (nohup) a terminal that is closed asks to stop, too
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, signal.raise_signal, signal.SIGTERM)

    def ready(address: str) -> None:
        print(f"serving {', '.join(runtime.agents) or 'no agent'} on {address}", flush=True)

    await serving(
        runtime, host=host, port=port, fd=fd, hosts=allow_host or [], origins=allow_origin or [], ready=ready
    )  # fmt: skip


async def dev(
    cli: Cli,
    app: Annotated[str, typer.Argument(metavar="APP", help="FILE.py, FILE.py:NAME or MODULE:NAME.")],
    host: Host = "127.0.0.1",
    port: Port = 8000,
    open: Annotated[bool, typer.Option("--open", help="Open the console in a browser.")] = False,
) -> int:
    """Serve an app and start it again whenever one of its files is saved. Runs go on where they were."""
    _serving()
    from ondol.http.serving import listen

    listening = listen(host, port)
    with listening:
        listening.set_inheritable(True)
        at = listening.getsockname()[1]
        if open:
            threading.Timer(1.0, webbrowser.open, [f"http://{host}:{at}/"]).start()
        db = ["--db", cli.named_db] if cli.named_db else []
        command = [
            sys.executable, "-m", "ondol", *db, "serve", app, "--host", host, "--port", str(at),
            "--fd", str(listening.fileno()),
        ]  # fmt: skip
        return _restart_on_save(command, listening.fileno(), _folder(app))


def _serving() -> Callable[..., Awaitable[None]]:
    try:
        from ondol.http.serving import serve as serving
    except ModuleNotFoundError as error:
        raise InvalidInput(f"{error.name} is missing: pip install 'ondol[server]'") from error
    return serving


def _folder(app: str) -> Path:
    place = app.partition(":")[0] if not app.endswith(".py") else app
    return Path(place).resolve().parent if place.endswith(".py") else Path.cwd()


def _restart_on_save(command: list[str], fd: int, folder: Path) -> int:
    """The child is asked to stop, which brings its runs to a boundary; the next one goes on with them. The socket
    stays open meanwhile, so that nobody is refused."""
    stopping = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda *_: stopping.set())
    before = dict(_saved(folder))
    child = subprocess.Popen(command, pass_fds=[fd])
    code = 0
    while not stopping.wait(_LOOKED_AT):
        now = dict(_saved(folder))
        if now != before:
            changed = {p for p in now.keys() | before.keys() if now.get(p) != before.get(p)}
            before = now
            say(f"{min(changed).name} was saved: starting again")
            _stop(child)
            child = subprocess.Popen(command, pass_fds=[fd])
        elif child.poll() is not None and code != child.returncode:
            code = child.returncode
            say("it ended: save a file to start it again")
    _stop(child)
    return 130


def _stop(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        child.terminate()
        child.wait()


def _saved(folder: Path) -> Iterator[tuple[Path, int]]:
    """Python files below the folder, and when each was saved."""
    for where, folders, files in os.walk(folder):
        folders[:] = [f for f in folders if f not in _SKIPPED and not f.startswith(".")]
        for name in files:
            if name.endswith(".py"):
                try:
                    yield Path(where, name), os.stat(Path(where, name)).st_mtime_ns
                except OSError:
                    continue
