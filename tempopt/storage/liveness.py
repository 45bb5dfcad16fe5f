"""Names of agents, and whether an agent still lives, as far as this machine can know."""

from __future__ import annotations

import getpass
import hashlib
import itertools
import os
import socket
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from tempopt.storage.rows import StudyStanding, StudyState, StudySummary, TicketRow

_PROC = Path("/proc")
_departed_agents: set[str] = set()
_count = itertools.count(1)


def host() -> str:
    """Return the host name of this machine."""
    return socket.gethostname()


def user() -> str:
    """Return the name of this process's user; empty if the system knows none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # a user of a container may have only a number
        return ""


@cache
def machine_id() -> str:
    """Return an id of this machine, and of this container on it: 8 hexadecimal digits."""
    # host names repeat among containers; the kernel's boot id and the process namespace do not
    parts = [host()]
    try:
        parts.append((_PROC / "sys/kernel/random/boot_id").read_text().strip())
        parts.append(str((_PROC / "self/ns/pid").readlink()))
    except OSError:
        pass
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=4).hexdigest()


def agent_name() -> str:
    """Return a new, unique name for an agent in this process: ``host:pid:machine:start.N``."""
    pid = os.getpid()
    return f"{host()}:{pid}:{machine_id()}:{_read_process_start(pid) or 0}.{next(_count)}"


def short_agent_name(agent: str) -> str:
    """Return the short form of an agent's name for display: ``host:pid``."""
    return ":".join(agent.split(":")[:2])


def mark_agent_left(agent: str) -> None:
    """Record that an agent of this process has ended while the process continues."""
    _departed_agents.add(agent)


def is_dead(agent: str) -> bool:
    """Return whether an agent is known to have ended; False for agents of other machines."""
    if agent in _departed_agents:
        return True
    parts = agent.split(":")
    if len(parts) != 4 or parts[2] != machine_id() or not parts[1].isdecimal():
        return False
    started = _read_process_start(int(parts[1]))
    return started is not None and started != parts[3].partition(".")[0]


def active_agents(tickets: Iterable[TicketRow]) -> list[str]:
    """Return the agents with a valid lease as ``host:pid``, without those known to be dead."""
    agents = {t.agent for t in tickets if t.state == "running" and t.agent and (t.lease or 0.0) > 0}
    return sorted(short_agent_name(agent) for agent in agents if not is_dead(agent))


def _read_process_start(pid: int) -> str | None:
    """Return the start time of a process in clock ticks; empty: no such process; None: it is hidden."""
    try:
        state = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        # there is no /proc, or it hides the processes of other users
        return None if _process_exists(pid) else ""
    # the name of the program, in parentheses, may contain spaces
    fields = state.rpartition(")")[2].split()
    return "" if fields[0] in "ZX" else fields[19]


def _process_exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


def summary_state(summary: StudySummary) -> tuple[StudyStanding, int]:
    """Return how a study stands, and the number of agents at work on it."""
    num_agents = sum(not is_dead(agent) for agent in summary.agents)
    return display_state(summary.study.state, num_agents), num_agents


def display_state(state: StudyState, agents: int) -> StudyStanding:
    """Return the state of a study for display, given its stored state and its number of agents at work."""
    if state == "done":
        return "done"
    if agents:
        return "running"
    return "paused" if state == "paused" else "waiting"
