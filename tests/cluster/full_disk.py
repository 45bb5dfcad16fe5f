"""A disk that is full, read-only or closed under each thing that a search writes, and given back meanwhile.

``python -m tests.cluster.full_disk [NAME ...]`` prints as a table what each of them did to a study, beside
the same study undisturbed. As root on Linux: the disks are small file systems that are mounted for it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tempopt.records.rows import KINDS
from tempopt.store.checkpoints import run_name
from tempopt.workers.messages import LOG
from tests.cluster import studies
from tests.cluster.crew import wait_until
from tests.cluster.one import Place
from tests.cluster.studies import NAME, Record

TICKETS = 6
_SIZE = "24m"
# Seconds: the store is asked again after at most half of them.
_LASTS = 4.0
_BLOCK = bytes(16 * 1024)
# Root may read and write whatever a folder's mode says, unless it has given these up.
_CLOSED_TO_ROOT = (
    "setpriv",
    "--inh-caps=-dac_override,-dac_read_search",
    "--bounding-set=-dac_override,-dac_read_search",
)


def why_not() -> str:
    """Return why no file system can be mounted here, the empty text if one can."""
    lacking = [each for each in ("mount", "umount", "setpriv") if shutil.which(each) is None]
    if sys.platform != "linux" or os.geteuid() != 0 or lacking:
        return "NOT TESTED: full disks. This needs root on Linux with mount and setpriv (util-linux)."
    with tempfile.TemporaryDirectory() as folder:
        try:
            Disk(Path(folder)).unmount()
        except subprocess.CalledProcessError as error:
            return f"NOT TESTED: full disks. A tmpfs cannot be mounted here: {error.stderr.decode().strip()}"
    return ""


class Disk:
    """A file system of a few megabytes, which something else fills for a while.

    Args:
        folder: Where it is mounted; made if it is not there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        folder.mkdir(parents=True, exist_ok=True)
        _run("mount", "-t", "tmpfs", "-o", f"size={_SIZE}", "tmpfs", str(folder))

    def fill(self) -> None:
        """Take all space, and what is freed meanwhile."""
        self._thread = threading.Thread(target=self._take, daemon=True)
        self._thread.start()
        wait_until(lambda: shutil.disk_usage(self.folder).free == 0, "a full disk")

    def free(self) -> None:
        """Give the space back."""
        if self._thread is not None:
            self._stop.set()
            self._thread.join()
            (self.folder / "filler").unlink()
            self._thread = None

    def _take(self) -> None:
        with (self.folder / "filler").open("wb", buffering=0) as file:
            while not self._stop.wait(0.002):
                with contextlib.suppress(OSError):
                    while file.write(_BLOCK) == len(_BLOCK):
                        pass

    def unmount(self) -> None:
        """Take it away."""
        self.free()
        _run("umount", "--lazy", str(self.folder))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


@dataclass
class Scene:
    """Where a study keeps what, and what can be done to it.

    Args:
        folder: Where the command is given, on a disk that never fills.
    """

    folder: Path
    disks: dict[str, Disk] = field(default_factory=dict)
    database: Path = Path()
    runs: Path = Path()

    def __post_init__(self) -> None:
        self.database, self.runs = self.folder / "tempopt.db", self.folder / "runs"

    def disk(self, name: str) -> Disk:
        """Return a disk of that name."""
        return self.disks.setdefault(name, Disk(self.folder / name))

    @property
    def url(self) -> str:
        return f"sqlite:///{self.database}"


Trouble = Callable[[Scene, Place], contextlib.AbstractContextManager[None]]


@dataclass(frozen=True)
class Case:
    """One thing that happens to the disk.

    Args:
        lay_out: Puts the study's files on disks, before it begins.
        trouble: What goes on for a while.
        told: What the terminal says of it.
        prefix: Words before the command.
    """

    lay_out: Callable[[Scene, Place], None]
    trouble: Trouble
    told: str
    prefix: tuple[str, ...] = ()


def _done(place: Place) -> int:
    return sum(row.state == "done" for row in studies.seen(place.url))


def _goes_on(place: Place, told: str) -> None:
    """Wait until a trouble was told and felt by more than one run."""
    already = _done(place)
    place.set_pace(0.03)
    wait_until(lambda: _is_over(place) or _done(place) >= already + 2, "two more runs")
    wait_until(lambda: _is_over(place) or told in place.said(), f"the words {told!r}")


def _is_over(place: Place) -> bool:
    return all(process.poll() is not None for process in place.processes)


@contextlib.contextmanager
def _filled(scene: Scene, place: Place, *names: str) -> Iterator[None]:
    for name in names:
        scene.disks[name].fill()
    try:
        yield
    finally:
        for name in names:
            scene.disks[name].free()


def _checkpoints_on_a_disk(scene: Scene, place: Place) -> None:
    scene.runs = scene.disk("runs-disk").folder / "runs"


@contextlib.contextmanager
def _runs_full(scene: Scene, place: Place) -> Iterator[None]:
    with _filled(scene, place, "runs-disk"):
        _goes_on(place, CASES["checkpoints"].told)
        yield


def _nothing(scene: Scene, place: Place) -> None:
    pass


def _logs_on_a_disk(scene: Scene, place: Place) -> None:
    # a log lies beside the checkpoints of its run, which are to have room
    disk = scene.disk("log-disk").folder
    for run in (run_name(kind, number) for kind in KINDS for number in range(TICKETS)):
        (scene.runs / NAME / run).mkdir(parents=True)
        (scene.runs / NAME / run / LOG).symlink_to(disk / run)


@contextlib.contextmanager
def _logs_full(scene: Scene, place: Place) -> Iterator[None]:
    with _filled(scene, place, "log-disk"):
        _goes_on(place, CASES["logs"].told)
        yield


def _database_on_a_disk(scene: Scene, place: Place) -> None:
    scene.database = scene.disk("db-disk").folder / "tempopt.db"


def _is_told(place: Place, told: str) -> None:
    """Wait until a trouble was told, and lasts for some tries more."""
    wait_until(lambda: _is_over(place) or told in place.said(), f"the words {told!r}")
    time.sleep(_LASTS)


@contextlib.contextmanager
def _database_full(scene: Scene, place: Place) -> Iterator[None]:
    with _filled(scene, place, "db-disk"):
        _is_told(place, CASES["database"].told)
        yield


def _both_on_disks(scene: Scene, place: Place) -> None:
    _checkpoints_on_a_disk(scene, place)
    _database_on_a_disk(scene, place)


@contextlib.contextmanager
def _outbox_full(scene: Scene, place: Place) -> Iterator[None]:
    with _filled(scene, place, "runs-disk", "db-disk"):
        _is_told(place, CASES["outbox"].told)
        # the half of a line that was written before must not spoil those that are written now
        scene.disks["runs-disk"].free()
        wait_until(
            lambda: _is_over(place) or any(each.stat().st_size for each in scene.runs.rglob("undelivered-*")),
            "what could not be told, on disk",
        )
        yield


def _all_on_a_disk(scene: Scene, place: Place) -> None:
    disk = scene.disk("disk").folder
    scene.database, scene.runs = disk / "tempopt.db", disk / "runs"


@contextlib.contextmanager
def _all_full(scene: Scene, place: Place) -> Iterator[None]:
    with _filled(scene, place, "disk"):
        _is_told(place, CASES["all in one folder"].told)
        yield


def _scratch_on_a_disk(scene: Scene, place: Place) -> None:
    (place.folder / "trace").symlink_to(scene.disk("scratch").folder / "trace")


@contextlib.contextmanager
def _scratch_full(scene: Scene, place: Place) -> Iterator[None]:
    # the last block of the module's own file has room for some lines more
    with _filled(scene, place, "scratch"):
        with (place.folder / "trace").open("ab", buffering=0) as trace, contextlib.suppress(OSError):
            while trace.write(b"\n" * 512):
                pass
        _is_told(place, CASES["the module's own files"].told)
        yield


@contextlib.contextmanager
def _read_only(scene: Scene, place: Place) -> Iterator[None]:
    # files that are open now stay open to writing, or it would be refused
    where = str(scene.runs)
    _run("mount", "--bind", where, where)
    _run("mount", "-o", "remount,bind,ro", where)
    try:
        _goes_on(place, CASES["checkpoints read-only"].told)
        yield
    finally:
        _run("umount", "--lazy", where)


@contextlib.contextmanager
def _closed(scene: Scene, place: Place) -> Iterator[None]:
    scene.runs.chmod(0)
    try:
        _goes_on(place, CASES["checkpoints without permission"].told)
        yield
    finally:
        scene.runs.chmod(0o755)


CASES = {
    "checkpoints": Case(_checkpoints_on_a_disk, _runs_full, "No space left on device"),
    "logs": Case(_logs_on_a_disk, _logs_full, "No space left on device"),
    "database": Case(_database_on_a_disk, _database_full, "database or disk is full"),
    "outbox": Case(_both_on_disks, _outbox_full, "cannot be kept on disk"),
    "all in one folder": Case(_all_on_a_disk, _all_full, "database or disk is full"),
    "the module's own files": Case(_scratch_on_a_disk, _scratch_full, "No space left on device"),
    "checkpoints read-only": Case(_nothing, _read_only, "Read-only file system"),
    "checkpoints without permission": Case(_nothing, _closed, "Permission denied", _CLOSED_TO_ROOT),
}


@dataclass(frozen=True)
class Found:
    """What became of a study.

    Args:
        code: Exit code of the search.
        resumed: Whether it had to be resumed.
        done: Tickets that are done, of all.
        failures: Attempts that were counted as failures.
        differences: Where it is another study than the undisturbed one.
        said: What the terminal said.
    """

    code: int
    resumed: bool
    done: str
    failures: int
    differences: list[str]
    said: str


def carry_out(name: str, folder: Path, undisturbed: Record) -> Found:
    """Search while one of :data:`CASES` happens, resume if need be, and return what became of it."""
    case, scene = CASES[name], Scene(folder)
    place = Place(folder / "here", "", case.prefix)
    try:
        case.lay_out(scene, place)
        place.url = scene.url
        place.set_pace(0.03)
        spec = studies.spec(TICKETS, lease=60, max_attempts=3)
        where = ("--checkpoints", str(scene.runs))
        agent = place.start("search", studies.written(folder, spec), *where)
        place.catch(0.1)
        with case.trouble(scene, place):
            place.set_pace(0.03)
        code = place.end(agent)
        if resumed := code != 0:
            place.end(place.start("resume", NAME, *where))
        rows = studies.tickets(place.url)
        try:
            differences = studies.read(place.url, TICKETS).differences(undisturbed)
        except AssertionError as error:
            differences = [str(error).partition("\n")[0]]
        return Found(
            code=code,
            resumed=resumed,
            done=f"{sum(row.state == 'done' for row in rows)}/{len(rows)}",
            failures=sum(row.failures for row in rows),
            differences=differences,
            said=place.said(),
        )
    finally:
        place.close()
        for disk in scene.disks.values():
            disk.unmount()


def main(names: list[str]) -> None:
    """Print a line for each case, and what the terminal said of it."""
    if reason := why_not():
        raise SystemExit(reason)
    with tempfile.TemporaryDirectory() as folder:
        peace = Path(folder, "peace")
        peace.mkdir()
        undisturbed = studies.undisturbed(peace, studies.spec(TICKETS), workers=1)
        print("| trouble | exit code | tickets done | failures | equal to undisturbed |")
        print("|---|---|---|---|---|")
        for number, name in enumerate(names or CASES):
            found = carry_out(name, Path(folder, str(number)), undisturbed)
            code = f"{found.code}, resumed" if found.resumed else str(found.code)
            equal = "no" if found.differences else "yes"
            print(f"| {name} | {code} | {found.done} | {found.failures} | {equal} |", flush=True)
            if kept := os.environ.get("SAID"):
                Path(kept, f"{name}.txt").write_text(found.said)


if __name__ == "__main__":
    main(sys.argv[1:])
