"""The clock of a machine jumps by hours, forward and back: nothing is lost, and durations stay true."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster import studies
from tests.cluster.crew import wait_until
from tests.cluster.one import Site
from tests.cluster.studies import NAME, Record
from tests.servers import empty_database

pytestmark = [pytest.mark.long, pytest.mark.nightly]

TICKETS = 8
JUMPS = (7200, -7200, 0)
"""Seconds between the clock and the true time, one after the other."""


# libfaketime lets time.sleep of Python 3.11 fail when only the true monotonic clock is to be seen.
_LIBRARY = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static long offset(void) {
    long seconds = 0;
    FILE *file = fopen(getenv("CLOCK_OFFSET_FILE"), "r");
    if (file) {
        if (fscanf(file, "%ld", &seconds) != 1) seconds = 0;
        fclose(file);
    }
    return seconds;
}

int clock_gettime(clockid_t id, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(id, now);
    if (!result && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) now->tv_sec += offset();
    return result;
}

int gettimeofday(struct timeval *now, void *zone) {
    struct timespec precise;
    int result = clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return result;
}

time_t time(time_t *result) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (result) *result = now.tv_sec;
    return now.tv_sec;
}
"""


class Clock:
    """The clock of some processes; their monotonic clock is the true one.

    Args:
        folder: Empty folder, for the file with its offset and the library that adds it.
    """

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("cc")
        if sys.platform != "linux" or compiler is None:
            pytest.skip("NOT TESTED: clocks that jump. This needs Linux and a C compiler: apt install gcc")
        folder.mkdir()
        self._file, self._library = folder / "offset", folder / "clock.so"
        (folder / "clock.c").write_text(_LIBRARY)
        options = ["-shared", "-fPIC", "-O1", "-o", str(self._library), "-ldl"]
        subprocess.run([compiler, str(folder / "clock.c"), *options], check=True)
        self.set(0)

    def set(self, offset: int) -> None:
        """Set the seconds that are added to the true time."""
        temporary = self._file.with_suffix(".new")
        temporary.write_text(str(offset))
        temporary.replace(self._file)

    def variables(self) -> dict[str, str]:
        """Return the environment variables of processes that have this clock."""
        return {"LD_PRELOAD": str(self._library), "CLOCK_OFFSET_FILE": str(self._file)}

    def read(self) -> float:
        """Return the time that a process with this clock sees."""
        code = "import time; print(time.time())"
        env_vars = {**os.environ, **self.variables()}
        return float(subprocess.check_output([sys.executable, "-c", code], env=env_vars))


@pytest.mark.parametrize("backend", ["sqlite", "postgresql", "mariadb"])
def test_a_study_whose_clocks_jump_ends_as_an_undisturbed_one(
    backend: str, tmp_path: Path, undisturbed_record: Callable[[int], Record]
) -> None:
    clock = Clock(tmp_path / "clock")
    with empty_database(backend, tmp_path, "clock") as url:
        jumping, second = Site(tmp_path / "a", url), Site(tmp_path / "b", url)
        jumping.variables = {**jumping.variables, **clock.variables()}
        if backend == "sqlite":
            # one machine, one clock; a server has a clock of its own
            second.variables = {**second.variables, **clock.variables()}
        start_time = time.monotonic()
        try:
            agents = [jumping.search(studies.spec(TICKETS, lease=60, max_attempts=10))]
            jumping.catch()
            jumping.set_pace(0.1)
            second.set_pace(0.1)
            agents.append(second.start("agent", NAME))
            for offset in JUMPS:
                num_done = _count_done(url)
                wait_until(lambda: _num_running(url) == 2 or _is_over(url), "both agents at work")
                clock.set(offset)
                assert abs(clock.read() - time.time() - offset) < 60
                wait_until(lambda: _count_done(url) >= num_done + 2 or _is_over(url), "two more runs")  # noqa: B023
            assert not _is_over(url), "the study was over before all jumps"
            for site in (jumping, second):
                site.set_pace(0)
            codes = [site.end(agent) for site, agent in zip((jumping, second), agents, strict=True)]
            assert codes == [0, 0], jumping.log_text() + second.log_text()
        finally:
            jumping.close()
            second.close()
        rows = studies.tickets(url)
        assert not studies.read(url, TICKETS).differences(undisturbed_record(TICKETS))
    elapsed = time.monotonic() - start_time
    assert all(0 <= row.checkpoint_seconds <= row.seconds <= elapsed for row in rows)
    # by the clock of a server nothing has expired; otherwise each jump forward expires all leases
    num_failures = sum(row.failures for row in rows)
    assert num_failures <= (4 if backend == "sqlite" else 0), jumping.log_text() + second.log_text()


def _count_done(url: str) -> int:
    return sum(row.state == "done" for row in studies.read_tickets(url))


def _num_running(url: str) -> int:
    return sum(row.state == "running" for row in studies.read_tickets(url))


def _is_over(url: str) -> bool:
    return studies.state(url) == "done"
