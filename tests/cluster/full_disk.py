"""A disk that is full, read-only or closed under each file that a search writes, and freed meanwhile.

``python -m tests.cluster.full_disk [DATABASE ...] [TROUBLE ...]`` prints as a table what each of them did to
a study, beside the same study undisturbed. As root on Linux: the disks are small mounted file systems.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import make_url
from sqlalchemy.exc import OperationalError

from tempopt.storage.checkpoints import run_name
from tempopt.storage.rows import KINDS
from tempopt.training.messages import LOG
from tests import servers
from tests.cluster import small_disk, studies
from tests.cluster.chaos import BACKENDS
from tests.cluster.crew import wait_until
from tests.cluster.one import Site
from tests.cluster.small_disk import Disk, run
from tests.cluster.studies import NAME, Record
from tests.servers import PrivateServer, start_private

TICKETS = 6
# What a server has of its own in the beginning, and some room.
_SERVER_MEGABYTES = 160
# Seconds: the store is asked again after at most half of them.
_LASTS = 4.0
_SERVERS = BACKENDS[1:]
# Root may read and write whatever a folder's mode says, unless it has given these up.
_CLOSED_TO_ROOT = (
    "setpriv",
    "--inh-caps=-dac_override,-dac_read_search",
    "--bounding-set=-dac_override,-dac_read_search",
)
_STORE_AWAY = "results are kept on disk until the store can be reached again"
_SERVER_FULL = "Free some space on the disk of the database"


def why_not(backend: str) -> str:
    """Return why this cannot be carried out here with a database, the empty text if it can."""
    return small_disk.why_not() or ("" if backend == "sqlite" else servers.why_not(backend))


@dataclass
class DiskScene:
    """Where a study keeps what, and what can be done to it.

    Args:
        folder: Where the command is given, on a disk that never fills.
        backend: The study's database.
    """

    folder: Path
    backend: str
    disks: dict[str, Disk] = field(default_factory=dict)
    database: Path = Path()
    runs: Path = Path()
    server: PrivateServer | None = None
    url: str = ""

    def __post_init__(self) -> None:
        self.database, self.runs = self.folder / "tempopt.db", self.folder / "runs"

    def disk(self, name: str) -> Disk:
        """Return a disk of that name."""
        return self.disks.setdefault(name, Disk(self.folder / name))

    def server_disk(self) -> Disk:
        """Return a disk for a server, where its account can go."""
        mount_point = Path(tempfile.mkdtemp(prefix="tempopt-disk-", dir="/tmp"))
        self.disks["server-disk"] = Disk(mount_point, megabytes=_SERVER_MEGABYTES)
        return self.disks["server-disk"]

    def start(self) -> None:
        """Have a database, unless there is one already."""
        if self.backend == "sqlite":
            self.url = f"sqlite:///{self.database}"
        elif not self.url:
            self.server = self.server or start_private(self.backend)
            self.url = self.server.create_database("disk")

    @contextlib.contextmanager
    def site(self, lay_out: LayOut, prefix: tuple[str, ...] = ()) -> Iterator[Site]:
        """Yield where commands are given, with files on disks and a database; take all away afterwards."""
        site = Site(self.folder / "here", "", prefix)
        try:
            lay_out(self, site)
            self.start()
            site.url = self.url
            yield site
        finally:
            site.close()
            self.close()

    def close(self) -> None:
        """End the server and take the disks away."""
        if self.server is not None:
            self.server.remove()
        for disk in self.disks.values():
            disk.unmount()
            if disk.folder.parent != self.folder:
                disk.folder.rmdir()


Trouble = Callable[[DiskScene, Site, str], contextlib.AbstractContextManager[None]]
"""What goes on for a while, with the message that the terminal prints about it."""
LayOut = Callable[[DiskScene, Site], None]


@dataclass(frozen=True)
class DiskCase:
    """One thing that happens to the disk.

    Args:
        lay_out: Puts the study's files on disks, before it begins.
        trouble: What goes on for a while.
        notice: Message that the terminal prints about it; empty if it has no effect.
        prefix: Words before the command.
        backends: The databases that it can happen with.
    """

    lay_out: LayOut
    trouble: Trouble
    notice: str
    prefix: tuple[str, ...] = ()
    backends: tuple[str, ...] = BACKENDS


def _count_done(site: Site) -> int:
    return sum(row.state == "done" for row in studies.read_tickets(site.url))


def _goes_on(site: Site, message: str) -> None:
    """Wait until a trouble was told and felt by more than one run."""
    num_done = _count_done(site)
    site.set_pace(0.03)
    wait_until(lambda: _is_over(site) or _count_done(site) >= num_done + 2, "two more runs")
    wait_until(lambda: _is_over(site) or message in site.log_text(), f"the words {message!r}")


def _is_told(site: Site, message: str) -> None:
    """Wait until a trouble was told, and lasts for some tries more."""
    wait_until(lambda: _is_over(site) or message in site.log_text(), f"the words {message!r}")
    time.sleep(_LASTS)


def _is_over(site: Site) -> bool:
    return all(process.poll() is not None for process in site.processes)


@contextlib.contextmanager
def _fill_disks(scene: DiskScene, *names: str) -> Iterator[None]:
    for name in names:
        scene.disks[name].fill()
    try:
        yield
    finally:
        for name in names:
            scene.disks[name].free()


def _full(disk: str, wait: Callable[[Site, str], None]) -> Trouble:
    """Return the trouble of a full disk, under which the study goes on or which is only told."""

    @contextlib.contextmanager
    def trouble(scene: DiskScene, site: Site, notice: str) -> Iterator[None]:
        with _fill_disks(scene, disk):
            wait(site, notice)
            yield

    return trouble


# ---- what is on which disk


def _nothing_on_a_disk(scene: DiskScene, site: Site) -> None:
    pass


def _checkpoints_on_a_disk(scene: DiskScene, site: Site) -> None:
    scene.runs = scene.disk("runs-disk").folder / "runs"


def _logs_on_a_disk(scene: DiskScene, site: Site) -> None:
    # a log lies beside the checkpoints of its run, which are to have room
    disk = scene.disk("log-disk").folder
    for run_folder in (run_name(kind, number) for kind in KINDS for number in range(TICKETS)):
        (scene.runs / NAME / run_folder).mkdir(parents=True)
        (scene.runs / NAME / run_folder / LOG).symlink_to(disk / run_folder)


def _database_on_a_disk(scene: DiskScene, site: Site) -> None:
    scene.database = scene.disk("db-disk").folder / "tempopt.db"


def _both_on_disks(scene: DiskScene, site: Site) -> None:
    _checkpoints_on_a_disk(scene, site)
    if scene.backend == "sqlite":
        _database_on_a_disk(scene, site)


def _all_on_a_disk(scene: DiskScene, site: Site) -> None:
    disk = scene.disk("disk").folder
    scene.database, scene.runs = disk / "tempopt.db", disk / "runs"


def _tables_on_a_disk(scene: DiskScene, site: Site) -> None:
    # what is written ahead has room: a server refuses what needs more, and lives
    disk, scene.server = scene.server_disk().folder, start_private(scene.backend)
    shutil.chown(disk, scene.server.folder.owner(), scene.server.folder.group())
    scene.server.execute(f"CREATE TABLESPACE small LOCATION '{disk}'")
    scene.url = scene.server.create_database("disk", "TABLESPACE small")


def _server_on_a_disk(scene: DiskScene, site: Site) -> None:
    scene.server = start_private(scene.backend, disk=scene.server_disk().folder)


def _server_of_its_own(scene: DiskScene, site: Site) -> None:
    scene.server = start_private(scene.backend)
    scene.url = scene.server.create_database("disk")
    if scene.backend == "mariadb":
        # an administrator writes to a server that is read-only
        scene.server.execute("CREATE USER agent@'%'")
        scene.server.execute("GRANT ALL ON disk.* TO agent@'%'")
        scene.url = str(make_url(scene.url).set(username="agent"))


def _scratch_on_a_disk(scene: DiskScene, site: Site) -> None:
    (site.folder / "trace").symlink_to(scene.disk("scratch").folder / "trace")


# ---- what goes on for a while


@contextlib.contextmanager
def _store_away(scene: DiskScene) -> Iterator[None]:
    if scene.server is None:
        with _fill_disks(scene, "db-disk"):
            yield
        return
    scene.server.kill()
    yield
    scene.server.start()


@contextlib.contextmanager
def _outbox_full(scene: DiskScene, site: Site, notice: str) -> Iterator[None]:
    with _fill_disks(scene, "runs-disk"), _store_away(scene):
        _is_told(site, notice)
        # the half of a line that was written before must not spoil those that are written now
        scene.disks["runs-disk"].free()
        wait_until(
            lambda: _is_over(site) or any(path.stat().st_size for path in scene.runs.rglob("undelivered-*")),
            "what could not be told, on disk",
        )
        yield


@contextlib.contextmanager
def _server_log_full(scene: DiskScene, site: Site, notice: str) -> Iterator[None]:
    assert scene.server is not None
    with _fill_disks(scene, "server-disk"):
        # a segment of the write-ahead log that cannot be made ends every process of the server
        while notice not in site.log_text() and not _is_over(site):
            with contextlib.suppress(OperationalError):
                scene.server.execute("SELECT pg_create_restore_point('full')")
                scene.server.execute("SELECT pg_switch_wal()")
        _is_told(site, notice)
    if scene.server.has_ended:
        scene.server.restart()
    yield


@contextlib.contextmanager
def _scratch_full(scene: DiskScene, site: Site, notice: str) -> Iterator[None]:
    # the last block of the module's own file has room for some lines more
    with _fill_disks(scene, "scratch"):
        with (site.folder / "trace").open("ab", buffering=0) as trace, contextlib.suppress(OSError):
            while trace.write(b"\n" * 512):
                pass
        _is_told(site, notice)
        yield


@contextlib.contextmanager
def _read_only(scene: DiskScene, site: Site, notice: str) -> Iterator[None]:
    # files that are open now stay open to writing, or it would be refused
    runs_folder = str(scene.runs)
    run("mount", "--bind", runs_folder, runs_folder)
    run("mount", "-o", "remount,bind,ro", runs_folder)
    try:
        _goes_on(site, notice)
        yield
    finally:
        run("umount", "--lazy", runs_folder)


@contextlib.contextmanager
def _freeze_database(scene: DiskScene, site: Site, notice: str) -> Iterator[None]:
    # writes to files that are open are refused, too; SQLite maps the third file, -shm, into memory
    files = [str(scene.database), f"{scene.database}-wal"]
    run("chattr", "+i", *files)
    try:
        _is_told(site, notice)
    finally:
        run("chattr", "-i", *files)
    yield


@contextlib.contextmanager
def _close_database(scene: DiskScene, site: Site, notice: str) -> Iterator[None]:
    # a database that is open stays open to writing
    scene.database.chmod(0o444)
    scene.database.parent.chmod(0o555)
    try:
        _goes_on(site, notice)
    finally:
        scene.database.parent.chmod(0o755)
        scene.database.chmod(0o644)
    yield


@contextlib.contextmanager
def _server_refuses_writes(scene: DiskScene, site: Site, notice: str) -> Iterator[None]:
    assert scene.server is not None
    if scene.backend == "postgresql":
        on, off = "ALTER SYSTEM SET default_transaction_read_only = on", "ALTER SYSTEM RESET ALL"
        reload = ["SELECT pg_reload_conf()"]
    else:
        on, off, reload = "SET GLOBAL read_only = 1", "SET GLOBAL read_only = 0", []
    for statement in (on, *reload):
        scene.server.execute(statement)
    try:
        _is_told(site, notice)
    finally:
        for statement in (off, *reload):
            scene.server.execute(statement)
    yield


@contextlib.contextmanager
def _close_folder(scene: DiskScene, site: Site, notice: str) -> Iterator[None]:
    scene.runs.chmod(0)
    try:
        _goes_on(site, notice)
        yield
    finally:
        scene.runs.chmod(0o755)


_NO_SPACE, _NO_SPACE_IN_SQLITE = "No space left on device", "database or disk is full"
_ON_SERVER_DISK = _full("server-disk", _is_told)
CASES = {
    "checkpoints": DiskCase(_checkpoints_on_a_disk, _full("runs-disk", _goes_on), _NO_SPACE),
    "logs": DiskCase(_logs_on_a_disk, _full("log-disk", _goes_on), _NO_SPACE),
    "database": DiskCase(
        _database_on_a_disk, _full("db-disk", _is_told), _NO_SPACE_IN_SQLITE, backends=("sqlite",)
    ),
    "outbox": DiskCase(_both_on_disks, _outbox_full, "cannot be written to"),
    "all in one folder": DiskCase(
        _all_on_a_disk, _full("disk", _is_told), _NO_SPACE_IN_SQLITE, backends=("sqlite",)
    ),
    "the server's tables": DiskCase(
        _tables_on_a_disk, _ON_SERVER_DISK, _SERVER_FULL, backends=("postgresql",)
    ),
    "the server's disk": DiskCase(_server_on_a_disk, _ON_SERVER_DISK, _SERVER_FULL, backends=_SERVERS),
    "the server's write-ahead log": DiskCase(
        _server_on_a_disk, _server_log_full, _STORE_AWAY, backends=("postgresql",)
    ),
    "the database's files read-only": DiskCase(
        _nothing_on_a_disk, _freeze_database, "disk I/O error", backends=("sqlite",)
    ),
    "the database without permission": DiskCase(
        _nothing_on_a_disk, _close_database, "", _CLOSED_TO_ROOT, backends=("sqlite",)
    ),
    "the server read-only": DiskCase(
        _server_of_its_own, _server_refuses_writes, "accepts no writes now", backends=_SERVERS
    ),
    "the module's own files": DiskCase(_scratch_on_a_disk, _scratch_full, _NO_SPACE),
    "checkpoints read-only": DiskCase(_nothing_on_a_disk, _read_only, "Read-only file system"),
    "checkpoints without permission": DiskCase(
        _nothing_on_a_disk, _close_folder, "Permission denied", _CLOSED_TO_ROOT
    ),
}


@dataclass(frozen=True)
class Outcome:
    """What became of a study.

    Args:
        code: Exit code of the search.
        resumed: Whether it had to be resumed.
        done: Tickets that are done, of all.
        failures: Attempts that were counted as failures.
        differences: Where it is another study than the undisturbed one.
        output: Output of the terminal.
    """

    code: int
    resumed: bool
    done: str
    failures: int
    differences: list[str]
    output: str


BEGINNINGS = {"checkpoints": "runs-disk", "database": "db-disk", "the server's disk": "server-disk"}
"""Which disk is full before a search begins, by the case that has it."""


def begin(backend: str, name: str, folder: Path, undisturbed: Record) -> Outcome:
    """Begin a search on a full disk and again once there is space; return how that ended, and what was left.

    The exit code and what was said are those of the first search.
    """
    scene = DiskScene(folder, backend)
    with scene.site(CASES[name].lay_out) as site:
        with _fill_disks(scene, BEGINNINGS[name]):
            code = site.end(_search(site, scene))
            output = site.log_text()
        if scene.server is not None:
            # one that a full disk ended does not come back of itself
            scene.server.restart()
        site.end(_search(site, scene))
        return _outcome(site, undisturbed, code=code, output=output)


def _search(site: Site, scene: DiskScene) -> subprocess.Popen[bytes]:
    spec = studies.spec(TICKETS, lease=60, max_attempts=3)
    return site.start("search", studies.write_spec(scene.folder, spec), "--checkpoints", str(scene.runs))


def _outcome(site: Site, undisturbed: Record, *, code: int, output: str, is_resumed: bool = False) -> Outcome:
    rows = studies.tickets(site.url)
    try:
        differences = studies.read(site.url, TICKETS).differences(undisturbed)
    except AssertionError as error:
        differences = [str(error).partition("\n")[0]]
    return Outcome(
        code=code,
        resumed=is_resumed,
        done=f"{sum(row.state == 'done' for row in rows)}/{len(rows)}",
        failures=sum(row.failures for row in rows),
        differences=differences,
        output=output,
    )


def carry_out(backend: str, name: str, folder: Path, undisturbed: Record) -> Outcome:
    """Search while one of :data:`CASES` happens, resume if need be, and return what became of it."""
    case, scene = CASES[name], DiskScene(folder, backend)
    with scene.site(case.lay_out, case.prefix) as site:
        site.hold()
        agent = _search(site, scene)
        site.catch()
        site.set_pace(0.1)
        with case.trouble(scene, site, case.notice):
            site.set_pace(0.03)
        code = site.end(agent)
        if is_resumed := code != 0:
            site.end(site.start("resume", NAME, "--checkpoints", str(scene.runs)))
        return _outcome(site, undisturbed, code=code, output=site.log_text(), is_resumed=is_resumed)


def main(words: list[str]) -> None:
    """Print a line for each case."""
    if reason := small_disk.why_not():
        raise SystemExit(reason)
    backends = [word for word in BACKENDS if word in words] or BACKENDS
    names = [word for word in CASES if word in words] or CASES
    with tempfile.TemporaryDirectory() as folder:
        peace = Path(folder, "peace")
        peace.mkdir()
        undisturbed = studies.run_undisturbed(peace, studies.spec(TICKETS), workers=1)
        print("| database | trouble | exit code | tickets done | failures | equal to undisturbed |")
        print("|---|---|---|---|---|---|")
        for backend in backends:
            if reason := why_not(backend):
                print(reason)
                continue
            for name in (word for word in names if backend in CASES[word].backends):
                _print(backend, name, carry_out(backend, name, Path(folder, backend, name), undisturbed))
                if name in BEGINNINGS:
                    outcome = begin(backend, name, Path(folder, backend, name, "begin"), undisturbed)
                    _print(backend, f"{name}, from the beginning", outcome)


def _print(backend: str, name: str, outcome: Outcome) -> None:
    code = f"{outcome.code}, resumed" if outcome.resumed else str(outcome.code)
    equal = "no" if outcome.differences else "yes"
    print(f"| {backend} | {name} | {code} | {outcome.done} | {outcome.failures} | {equal} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
