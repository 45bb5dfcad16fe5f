"""Database servers for tests: one that answers on the standard port, or a private one in a temporary folder.

A private server keeps its promises to the disk (durability is what is tested), trusts everybody who reaches
its address, and can be killed and started again. From a test or a conftest::

    from tests.servers import find_or_start, PostgresServer

    server, why_not = find_or_start("postgresql")   # server is None: pytest.skip(why_not)
    url = server.create_database("mine"); ...; server.drop_database("mine")

``tests`` is a namespace package: pytest's ``pythonpath = ["."]`` makes it importable, and there must be no
``tests/__init__.py``.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.exc import OperationalError

# A recovery after SIGKILL on a slow, busy machine is still far from this.
PATIENCE = 180.0
LOOPBACK = "127.0.0.1"


def descendants(pid: int) -> list[int]:
    """Return the processes that a process started, and those that they started (Linux only)."""
    return [child for child, _ in _family(pid)]


def _family(pid: int) -> list[tuple[int, int]]:
    """Return the descendants of a process, with the parent of each."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            # the name in brackets may hold spaces; state and parent follow it
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):
            continue
    family = [(pid, 0)]
    for ancestor, _ in family:
        family += [(child, parent) for child, parent in parents.items() if parent == ancestor]
    return family[1:]


def worker_pids(agent: int) -> list[int]:
    """Return the process ids of the workers of an agent, which may be one of this process (Linux only)."""
    pids = []
    lineage = set()
    for pid, parent in _family(agent):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
            # a forked worker has the command line of its fork server, which is its parent
            if b"tempopt.training.fork_server" in words:
                lineage.add(pid)
            is_forked = pid in lineage and parent in lineage
            # what a worker has started is of its group
            if (is_forked or b"tempopt.training.worker" in words) and os.getpgid(pid) == pid:
                pids.append(pid)
    return pids


def strike(pid: int, blow: signal.Signals) -> bool:
    """Send a signal; return whether the process was there to take it."""
    try:
        os.kill(pid, blow)
    except ProcessLookupError:
        return False
    return True


class Server:
    """A server that answers: databases are made and dropped on it.

    Args:
        base: URL of a database that is there, as an administrator.
    """

    def __init__(self, base: str) -> None:
        self.base = base

    def url(self, database: str) -> str:
        """Return the URL of a database on this server."""
        return make_url(self.base).set(database=database).render_as_string(hide_password=False)

    def execute(self, statement: str) -> None:
        """Carry out one statement as an administrator."""
        engine = create_engine(self.base, isolation_level="AUTOCOMMIT", connect_args={"connect_timeout": 10})
        try:
            with engine.connect() as connection:
                connection.execute(text(statement))
        finally:
            engine.dispose()

    def create_database(self, name: str, options: str = "") -> str:
        """Make an empty database and return its URL."""
        self.execute(f"CREATE DATABASE {name} {options}")
        return self.url(name)

    def drop_database(self, name: str) -> None:
        """Remove a database, with any connections to it."""
        force = " WITH (FORCE)" if self.base.startswith("postgresql") else ""
        self.execute(f"DROP DATABASE {name}{force}")


class PrivateServer(Server, ABC):
    """A server of the tests' own, with its data in a temporary folder; started when it is made.

    Args:
        host: Address that it listens on.
        disk: A small disk for its data, in files as small as it allows; None: where there is room.

    Raises:
        RuntimeError: The programs are not installed, or the server does not start.
    """

    account: ClassVar[str]
    end: ClassVar[signal.Signals]
    programs: ClassVar[tuple[str, str]]
    """The program that makes its data, and the server itself."""
    folders: ClassVar[tuple[str, ...]]
    driver: ClassVar[str]
    package: ClassVar[str]

    def __init__(self, host: str = LOOPBACK, disk: Path | None = None) -> None:
        if not self.is_installed():
            raise RuntimeError(f"The programs of {type(self).__name__} are not installed.")
        self._process: subprocess.Popen[bytes] | None = None
        self._user = self._unprivileged()
        self._is_small = disk is not None
        # not where root alone may go
        parent_folder = disk or ("/tmp" if self._user else None)
        self.folder = Path(tempfile.mkdtemp(prefix="tempopt-server-", dir=parent_folder))
        if self._user:
            shutil.chown(self.folder, self._user["user"], self._user["group"])
        self.host, self.port = host, free_port(host)
        super().__init__(self._base())
        atexit.register(self.remove)
        self._initialise()
        self.start()

    @classmethod
    def is_installed(cls) -> bool:
        """Return whether the server's programs are on this machine."""
        return all(map(cls._program, cls.programs))

    @classmethod
    def _program(cls, name: str) -> str | None:
        """Return the path of a program, looked for where distributions put those that are not in PATH."""
        places = sorted({str(path) for pattern in cls.folders for path in Path("/").glob(pattern)})
        return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *reversed(places)]))

    @abstractmethod
    def _base(self) -> str: ...

    @abstractmethod
    def _initialise(self) -> None: ...

    @abstractmethod
    def _options(self) -> list[str]:
        """Return what its server is started with."""

    def _command(self, name: str, *options: str) -> list[str]:
        program = self._program(name)
        assert program is not None
        return [program, *options]

    def _unprivileged(self) -> dict[str, Any]:
        """Return whom to run as: servers refuse to be run by root."""
        if os.geteuid() != 0:
            return {}
        users = {entry.pw_name: entry for entry in pwd.getpwall()}
        entry = users.get(self.account) or users["nobody"]
        return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}

    def _run(self, *command: str) -> None:
        words = self._command(*command)
        process = subprocess.run(words, cwd=self.folder, capture_output=True, text=True, **self._user)
        if process.returncode != 0:
            raise RuntimeError(f"{command[0]} failed:\n{process.stdout}{process.stderr}")

    def start(self) -> None:
        """Start the server and wait until it answers."""
        assert self._process is None, "the server is running already"
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command(self.programs[1], *self._options()),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Ctrl-C in the terminal is for the tests, which then end their servers
                start_new_session=True,
                **self._user,
            )
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return self.execute("SELECT 1")
            except OperationalError as error:
                if self._process.poll() is None and time.monotonic() < deadline:
                    time.sleep(0.1)
                    continue
                log_text = (self.folder / "server.log").read_text(errors="replace")[-3000:]
                raise RuntimeError(f"{self.programs[1]} does not answer: {error}\n{log_text}") from error

    @property
    def has_ended(self) -> bool:
        """Whether it has ended of itself."""
        return self._process is not None and self._process.poll() is not None

    def kill(self) -> None:
        """End every process of the server at once (SIGKILL), as a power cut would."""
        if self._process is not None:
            children = descendants(self._process.pid)
            self._process.kill()
            for child in children:
                strike(child, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """End the server in good order, with any connections to it."""
        if self._process is not None:
            self._process.send_signal(self.end)
            try:
                self._process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                self.kill()
            self._process = None

    def restart(self) -> None:
        """Stop the server and start it again."""
        self.stop()
        self.start()

    def remove(self) -> None:
        """End the server and delete its data."""
        atexit.unregister(self.remove)
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


class PostgresServer(PrivateServer):
    """PostgreSQL in a folder of its own."""

    account = "postgres"
    # "fast": sessions are ended, unlike with SIGTERM, which waits for them
    end = signal.SIGINT
    programs = ("initdb", "postgres")
    folders = (
        "usr/lib/postgresql/*/bin",
        "usr/pgsql-*/bin",
        "usr/local/pgsql/bin",
        "usr/libexec/postgresql*",
    )
    driver, package = "psycopg", "postgresql"

    def _base(self) -> str:
        return f"postgresql+psycopg://postgres@{self.host}:{self.port}/postgres"

    def _initialise(self) -> None:
        # --no-sync is about this one command: the server itself syncs all it commits
        options = ("--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync")
        self._run(
            self.programs[0], "--pgdata=data", *options, *(["--wal-segsize=1"] if self._is_small else [])
        )
        with (self.folder / "data" / "pg_hba.conf").open("a") as rules:
            rules.write("host all all 0.0.0.0/0 trust\n")

    def _options(self) -> list[str]:
        settings = {
            "listen_addresses": self.host,
            "port": self.port,
            "unix_socket_directories": "",
            "shared_buffers": "16MB",
            "max_connections": 100,
            **({"min_wal_size": "2MB", "max_wal_size": "4MB"} if self._is_small else {}),
        }
        return ["-D", "data", *(f"--{name}={value}" for name, value in settings.items())]


class MariaServer(PrivateServer):
    """MariaDB in a folder of its own."""

    account = "mysql"
    end = signal.SIGTERM
    programs = ("mariadb-install-db", "mariadbd")
    folders = ("usr/sbin", "usr/local/sbin", "usr/libexec", "usr/local/mysql/bin")
    driver, package = "pymysql", "mariadb-server"

    def _base(self) -> str:
        return f"mysql+pymysql://root@{self.host}:{self.port}/mysql"

    def _initialise(self) -> None:
        options = ("--auth-root-authentication-method=normal", "--skip-test-db")
        self._run(self.programs[0], "--no-defaults", f"--datadir={self.folder / 'data'}", *options)
        grants = "CREATE USER IF NOT EXISTS root@'%';\nGRANT ALL ON *.* TO root@'%' WITH GRANT OPTION;\n"
        (self.folder / "init.sql").write_text(grants)
        (self.folder / "init.sql").chmod(0o644)

    def _options(self) -> list[str]:
        settings = {
            "datadir": self.folder / "data",
            "socket": self.folder / "socket",
            "pid-file": self.folder / "pid",
            "init-file": self.folder / "init.sql",
            "bind-address": self.host,
            "port": self.port,
            "innodb-buffer-pool-size": "16M",
            "performance-schema": "OFF",
            **({"innodb-log-file-size": "4M"} if self._is_small else {}),
        }
        options = [f"--{name}={value}" for name, value in settings.items()]
        return ["--no-defaults", "--skip-name-resolve", *options]


_PRIVATE: dict[str, type[PrivateServer]] = {"postgresql": PostgresServer, "mariadb": MariaServer}
_STANDARD = {
    "postgresql": f"postgresql+psycopg://postgres@{LOOPBACK}:5432/postgres",
    "mariadb": f"mysql+pymysql://root@{LOOPBACK}:3306/mysql",
}


def free_port(host: str = LOOPBACK) -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def why_not(backend: str) -> str:
    """Return why no private server of a backend can be had here, and how to get it; empty if one can."""
    kind = _PRIVATE[backend]
    remedy = ""
    if importlib.util.find_spec(kind.driver) is None:
        remedy = f"its driver {kind.driver}. Run: pip install tempopt[postgresql,mysql]"
    elif not kind.is_installed():
        remedy = f"its server programs, which the tests start (on Debian: apt-get install {kind.package})."
    return f"NOT TESTED on {backend}: install {remedy}" if remedy else ""


def start_private(backend: str, host: str = LOOPBACK, disk: Path | None = None) -> PrivateServer:
    """Return a new private server of a backend, running; the caller removes it."""
    return _PRIVATE[backend](host, disk)


@functools.cache
def find_or_start(backend: str) -> tuple[Server | None, str]:
    """Return a server for this process, ended with it if it is private, or None and the reason.

    Args:
        backend: ``postgresql`` or ``mariadb``.

    Returns:
        The server that answers on the standard port of this machine, else a private one, and an empty
        text; or None, and a text "NOT TESTED on ..." that says how to have it tested.
    """
    standard = Server(_STANDARD[backend])
    try:
        standard.execute("SELECT 1")
        return standard, ""
    except (ImportError, OperationalError):
        reason = why_not(backend)
    return (None, reason) if reason else (start_private(backend), "")


@contextlib.contextmanager
def empty_database(backend: str, folder: Path, purpose: str) -> Iterator[str]:
    """Yield the URL of an empty database that only this test uses; skip where there is no such server.

    Args:
        backend: ``sqlite``, ``postgresql`` or ``mariadb``.
        folder: Where that of SQLite lies.
        purpose: Part of its name.
    """
    if backend == "sqlite":
        yield f"sqlite:///{folder / f'{purpose}.db'}"
        return
    server, why_not = find_or_start(backend)
    if server is None:
        pytest.skip(why_not)
    name = f"tempopt_{purpose}_{os.getpid()}"
    try:
        yield server.create_database(name)
    finally:
        server.drop_database(name)
