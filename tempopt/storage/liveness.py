"""What an agent is called, and whether one of that name still lives, as far as this machine can tell."""

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
    """Return what people call this machine."""
    return socket.gethostname()


def user() -> str:
    """Return the name of the person whose process this is; empty if the system knows none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # a container's user may have a number alone
        return ""


@cache
def machine_id() -> str:
    """Return what tells this machine, and this container on it, from all others: 8 hexadecimal digits."""
    # host names repeat among containers; a kernel's boot and its table of processes do not
    parts = [host()]
    try:
        parts.append((_PROC / "sys/kernel/random/boot_id").read_text().strip())
        parts.append(str((_PROC / "self/ns/pid").readlink()))
    except OSError:
        pass
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=4).hexdigest()


def agent_name() -> str:
    """Return a name for one more agent in this process: ``host:pid:machine:start.N``, unique for ever."""
    pid = os.getpid()
    return f"{host()}:{pid}:{machine_id()}:{_process_start_time(pid) or 0}.{next(_count)}"


def short_agent_name(agent: str) -> str:
    """Return as much of an agent's name as a person wants to see: ``host:pid``."""
    return ":".join(agent.split(":")[:2])


def mark_agent_left(agent: str) -> None:
    """Record that an agent of this process has ended, though the process lives on."""
    _departed_agents.add(agent)


def is_dead(agent: str) -> bool:
    """Return whether an agent is known to be gone; False for what may run on another machine."""
    if agent in _departed_agents:
        return True
    parts = agent.split(":")
    if len(parts) != 4 or parts[2] != machine_id() or not parts[1].isdecimal():
        return False
    started = _process_start_time(int(parts[1]))
    return started is not None and started != parts[3].partition(".")[0]


def active_agents(tickets: Iterable[TicketRow]) -> list[str]:
    """Return the agents that hold a lease which is not over, as ``host:pid``; not those known to be dead."""
    agents = {t.agent for t in tickets if t.state == "running" and t.agent and (t.lease or 0.0) > 0}
    return sorted(short_agent_name(agent) for agent in agents if not is_dead(agent))


def _process_start_time(pid: int) -> str | None:
    """Return the start time of a process in clock ticks; empty: no such process; None: it is hidden."""
    try:
        state = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        # no /proc, or one that hides the processes of other people
        return None if _exists(pid) else ""
    # the name of the program, in parentheses, may hold spaces
    fields = state.rpartition(")")[2].split()
    return "" if fields[0] in "ZX" else fields[19]


def _exists(pid: int) -> bool:
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
    """Return how a study stands, given what it was told and the number of agents at work on it."""
    if state == "done":
        return "done"
    if agents:
        return "running"
    return "paused" if state == "paused" else "waiting"
