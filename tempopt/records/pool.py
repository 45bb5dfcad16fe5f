"""The pool: studies that want agents, agents that serve any of them, what users have used and may use."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from tempopt.records.changes import counted_seconds
from tempopt.records.rows import DEFAULT_QUEUE


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """One study that is not over, and how many agents it could keep busy.

    Args:
        study_id: Id of the study.
        name: Its name.
        owner: The user who began it.
        queue: The queue that it is in.
        priority: Studies with a higher one are served first, and preempt others.
        labels: Labels that an agent must have, all of them, to serve it.
        wanted: Agents that it could keep busy now, those that serve it included, >= 0.
        gpus: GPUs of one run where there are some: a share of one, or a whole number; 0: it trains on the
            CPU.
        on_cpu: Whether it may be trained where there is no GPU.
        mark: Changes whenever more of its runs may be begun than before.
    """

    study_id: int
    name: str
    owner: str
    queue: str = DEFAULT_QUEUE
    priority: int = 0
    labels: frozenset[str] = frozenset()
    wanted: int = 0
    gpus: float = 0.0
    on_cpu: bool = True
    mark: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolAgent:
    """One agent of the pool, which serves one study at a time.

    Args:
        name: Its name, unique for ever.
        machine: Where it runs, for people.
        started_by: Name of the token that it shows; empty for one that works on the database itself.
        launch: Key that it shares with all agents that one command keeps started; empty: a person began it.
        queues: Queues that it serves; empty: every one.
        labels: Its labels: it serves studies whose labels are all among them.
        studies: It may serve studies whose names begin so; the empty text: all.
        gpus: Its GPUs; 0: it trains on the CPU.
        study_id: The study that it serves; None: none.
        since: Since when, in epoch seconds of the database's clock.
        leaving: Whether it has been told to leave its study.
        unable: Why it cannot serve a study, by the study's id.
        idle_at: The mark of a study at which it found no run to begin, by the study's id.
        seen: When it was heard of last, in epoch seconds of the database's clock.
    """

    name: str
    machine: str = ""
    started_by: str = ""
    launch: str = ""
    queues: frozenset[str] = frozenset()
    labels: frozenset[str] = frozenset()
    studies: str = ""
    gpus: int = 0
    study_id: int | None = None
    since: float = 0.0
    leaving: bool = False
    unable: dict[int, str] = field(default_factory=dict)
    idle_at: dict[int, str] = field(default_factory=dict)
    seen: float = 0.0

    def may_serve(self, demand: Demand) -> bool:
        """Return whether a study is one that it can serve."""
        return (
            (not self.queues or demand.queue in self.queues)
            and demand.labels <= self.labels
            and demand.name.startswith(self.studies)
            and demand.study_id not in self.unable
            and (demand.gpus <= self.gpus or (demand.on_cpu and not self.gpus))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a user's studies of one queue have used in one hour.

    Args:
        user: The user.
        queue: The queue.
        hour: Hours since the epoch, by UTC.
        seconds: GPU-seconds of training; of runs that trained on no GPU, their seconds. They count as
            :func:`~tempopt.records.changes.counted_seconds` says.
    """

    user: str
    queue: str
    hour: int
    seconds: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "seconds", counted_seconds(self.seconds))


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """What a user, or a queue, is to get of the pool, and may use of it at most.

    Args:
        queue: The queue; the empty text: every queue together.
        user: The user; the empty text: the queue as a whole.
        weight: Share relative to the other users of a queue, or to the other queues, > 0.
        gpu_hours: At most so many GPU-hours in the last ``days``; None: no limit.
        days: Days that ``gpu_hours`` is for; None: for ever.
        agents: At most so many agents at a time; None: no limit.
        priority: Highest priority that the user may give to a study; None: 0 for a user's.
    """

    queue: str = ""
    user: str = ""
    weight: float = 1.0
    gpu_hours: float | None = None
    days: float | None = None
    agents: int | None = None
    priority: int | None = None


Order = Literal["serve", "finish", "preempt"]
"""What an agent is to do: serve its study, leave it when its runs have ended, or save them and leave."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What one agent of the pool is to do.

    Args:
        agent: Its name.
        study_id: The study that it is to serve once it has left the one that it serves; None: none.
        order: What becomes of the study that it serves now.
    """

    agent: str
    study_id: int | None
    order: Order = "serve"


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """What every agent of the pool is to do, and why studies have fewer agents than they want.

    Args:
        assignments: One for each agent.
        waiting: Why a study has fewer agents than it wants, by its id, in one sentence.
        order: Ids of the studies, in the order in which they get the next agent.
    """

    assignments: tuple[Assignment, ...]
    waiting: dict[int, str] = field(default_factory=dict)
    order: tuple[int, ...] = ()
