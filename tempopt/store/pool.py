"""The pool in the store: what studies want, which agents there are, what users have used and may use.

Functions of a connection in a transaction; :mod:`tempopt.scheduling` decides what follows from these rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Integer, case, delete, func, insert, select, update
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from tempopt.errors import StudyNotFound
from tempopt.records.pool import Demand, PoolAgent, Quota, Usage
from tempopt.records.rows import OVER
from tempopt.store.clock import Clock
from tempopt.store.database import Database
from tempopt.store.models import POOL_AGENT, QUOTA, STUDY, TICKET, USAGE
from tempopt.store.reading import counted, moved
from tempopt.store.taking import storable
from tempopt.store.upsert import upsert

SILENT_SECONDS = 60.0
"""An agent of the pool that was not heard of for so long is taken to be gone."""
_AGENT = [f.name for f in fields(PoolAgent)]
_SETS = ("queues", "labels")
_BY_ID = ("unable", "idle_at")


class Hour(FunctionElement[int]):
    """Hours since 1970 of a moment in UTC."""

    type = Integer()
    inherit_cache = True


@compiles(Hour, "sqlite")
def _sqlite(element: Hour, compiler: SQLCompiler, **options: Any) -> str:
    return f"(CAST(strftime('%s', {compiler.process(element.clauses, **options)}) AS INTEGER) / 3600)"


@compiles(Hour, "postgresql")
def _postgresql(element: Hour, compiler: SQLCompiler, **options: Any) -> str:
    moment = compiler.process(element.clauses, **options)
    return f"CAST(floor(extract(epoch FROM {moment}) / 3600) AS INTEGER)"


@compiles(Hour, "mysql")
def _mysql(element: Hour, compiler: SQLCompiler, **options: Any) -> str:
    return f"CAST(UNIX_TIMESTAMP({compiler.process(element.clauses, **options)}) DIV 3600 AS SIGNED)"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRows:
    """Everything that the pool is decided from, read in one transaction.

    Args:
        now: Epoch seconds of the database's clock.
        demands: Studies that are running.
        agents: Agents that were heard of lately.
        quotas: What was set.
    """

    now: float
    demands: tuple[Demand, ...]
    agents: tuple[PoolAgent, ...]
    quotas: tuple[Quota, ...]


# ---- studies


def read(connection: Connection) -> PoolRows:
    """Return what studies want, with the agents and the quotas that there are."""
    now = connection.scalars(select(Clock())).one()
    studies = _running(connection)
    agents = tuple(_within_its_part(each, studies) for each in _agents(connection, now))
    return PoolRows(
        now=now,
        demands=demands(studies, _counts(connection), agents),
        agents=agents,
        quotas=tuple(quotas(connection)),
    )


class Counts(NamedTuple):
    """The tickets of a study.

    Args:
        waiting: Those that wait to be taken, those that are lost among them.
        running: Those whose lease is not over.
        over: Those that are done, have failed or were withdrawn.
        lost: Those that are running, and whose lease is over.
        attempts: How often they were taken, all together.
    """

    waiting: int = 0
    running: int = 0
    over: int = 0
    lost: int = 0
    attempts: int = 0


def _running(connection: Connection) -> Sequence[Any]:
    columns = ("id", "name", "owner", "queue", "priority", "labels", "parallel", "gpus", "on_cpu", "version")
    running = STUDY.c.state == "running"
    return connection.execute(
        select(*(STUDY.c[n] for n in columns)).where(running).order_by(STUDY.c.id)
    ).all()


def _within_its_part(agent: PoolAgent, studies: Sequence[Any]) -> PoolAgent:
    """Return an agent without what it says of studies that its token may not see: they would want none."""
    if not agent.studies:
        return agent
    hidden = {each.id for each in studies if not each.name.startswith(agent.studies)}
    return replace(
        agent,
        study_id=None if agent.study_id in hidden else agent.study_id,
        unable={id: why for id, why in agent.unable.items() if id not in hidden},
        idle_at={id: mark for id, mark in agent.idle_at.items() if id not in hidden},
    )


def demands(
    studies: Iterable[Any], counts: Mapping[int, Counts], agents: Collection[PoolAgent]
) -> tuple[Demand, ...]:
    """Return what studies that are running want.

    Args:
        studies: Their rows, or as many of the columns as this needs.
        counts: Their tickets, by the study's id; missing: none.
        agents: The agents that were heard of lately.
    """
    serving: dict[int, int] = defaultdict(int)
    idle: dict[int, set[str]] = defaultdict(set)
    for each in agents:
        if each.study_id is not None and not each.leaving:
            serving[each.study_id] += 1
        for id, mark in each.idle_at.items():
            idle[id].add(mark)
    return tuple(
        _demand(study, counts.get(study.id, Counts()), serving[study.id], idle[study.id]) for study in studies
    )


def _demand(study: Any, tickets: Counts, serving: int, idle: Collection[str]) -> Demand:
    # attempts only grow: a run that was taken and given back leaves another mark than there was before
    mark = f"{study.version}.{tickets.waiting}.{tickets.running}.{tickets.over}.{tickets.attempts}"
    # what is over for all, and has not ended, has a stage to be opened
    runs = min(study.parallel, tickets.waiting + tickets.running) or 1
    per_agent = int(1 / study.gpus + 1e-9) if 0 < study.gpus < 1 else 1
    elsewhere = max(0, tickets.running - serving * per_agent)
    wanted = serving
    if mark not in idle or tickets.lost:
        # who found nothing to begin will find nothing; but of what is lost a server that was away for a while
        # does not know whether it is. Who serves it and finds nothing leaves by itself, and is there if the
        # next stage is opened before.
        wanted = max(wanted, -(-max(0, runs - elsewhere) // per_agent))
    return Demand(
        study_id=study.id,
        name=study.name,
        owner=study.owner,
        queue=study.queue,
        priority=study.priority,
        labels=frozenset(study.labels or ()),
        wanted=wanted,
        gpus=study.gpus,
        on_cpu=study.on_cpu,
        mark=mark,
    )


def _counts(connection: Connection) -> dict[int, Counts]:
    running = TICKET.c.state == "running"
    held = running & (TICKET.c.lease > Clock())
    columns = [
        func.sum(case((TICKET.c.state.in_(OVER), 0), (held, 0), else_=1)),
        func.sum(case((held, 1), else_=0)),
        func.sum(case((TICKET.c.state.in_(OVER), 1), else_=0)),
        func.sum(case((held, 0), (running, 1), else_=0)),
        func.sum(TICKET.c.attempt),
    ]
    query = (
        select(TICKET.c.study_id, *columns)
        .join(STUDY, STUDY.c.id == TICKET.c.study_id)
        .where(STUDY.c.state == "running")
        .group_by(TICKET.c.study_id)
    )
    return {row[0]: Counts(*map(int, row[1:])) for row in connection.execute(query)}


def place(
    connection: Connection, name: str, *, queue: str | None, priority: int | None, shown: str
) -> tuple[str, int]:
    """Move a study to another queue, or give it another priority; return both as they are then."""
    values: dict[str, Any] = {}
    if queue is not None:
        values["queue"] = queue
    if priority is not None:
        values["priority"] = priority
    if queue is not None:
        _leave_usage(connection, name, queue)
    if values:
        connection.execute(update(STUDY).where(STUDY.c.name == name).values(values))
    row = connection.execute(
        select(STUDY.c.queue, STUDY.c.priority).where(STUDY.c.name == name)
    ).one_or_none()
    if row is None:
        raise StudyNotFound(f'There is no study "{name}" in {shown}.')
    return row.queue, row.priority


# ---- agents


def _agents(connection: Connection, now: float) -> tuple[PoolAgent, ...]:
    columns = (POOL_AGENT.c[name] for name in _AGENT)
    alive = POOL_AGENT.c.seen > now - SILENT_SECONDS
    rows = connection.execute(select(*columns).where(alive).order_by(POOL_AGENT.c.name))
    return tuple(_agent(row._mapping) for row in rows)


def _agent(row: Any) -> PoolAgent:
    plain = dict(row)
    for name in _SETS:
        plain[name] = frozenset(plain[name])
    for name in _BY_ID:
        plain[name] = {int(id): text for id, text in plain[name].items()}
    return PoolAgent(**plain)


def hear(connection: Connection, agent: PoolAgent) -> None:
    """Write how an agent of the pool stands; ``since`` is kept while it serves the same study."""
    now = connection.scalars(select(Clock())).one()
    columns = (POOL_AGENT.c.study_id, POOL_AGENT.c.since)
    before = connection.execute(select(*columns).where(POOL_AGENT.c.name == agent.name)).one_or_none()
    same = before is not None and before.study_id == agent.study_id
    row: dict[str, Any] = {name: getattr(agent, name) for name in _AGENT}
    row |= {name: sorted(row[name]) for name in _SETS}
    row |= {name: {str(id): storable(text) for id, text in row[name].items()} for name in _BY_ID}
    row |= {"since": before.since if same and before is not None else now, "seen": now}
    upsert(connection, POOL_AGENT, [row], key=["name"], replace=[n for n in _AGENT if n != "name"])
    connection.execute(delete(POOL_AGENT).where(POOL_AGENT.c.seen < now - 10 * SILENT_SECONDS))


def assign(connection: Connection, agent: str, study_id: int | None) -> None:
    """Write what an agent of the pool is to serve, before it says so itself: others decide meanwhile."""
    values = {"study_id": study_id, "since": Clock(), "leaving": False}
    connection.execute(update(POOL_AGENT).where(POOL_AGENT.c.name == agent).values(values))


def forget(connection: Connection, agent: str) -> None:
    """Forget an agent of the pool that has left."""
    connection.execute(delete(POOL_AGENT).where(POOL_AGENT.c.name == agent))


# ---- usage and quotas


def usage(connection: Connection) -> list[Usage]:
    """Return what users have used, by queue and hour: of runs that have ended, are running, were deleted."""
    found: dict[tuple[str, str, int], float] = defaultdict(float)
    for row in connection.execute(_used().group_by(STUDY.c.owner, STUDY.c.queue, _HOUR)):
        found[row[0], row[1], int(row[2])] += float(row[3])
    for user, queue, hour, seconds in _in_progress(connection):
        found[user, queue, hour] += seconds
    columns = (USAGE.c.user, USAGE.c.queue, USAGE.c.hour, func.sum(moved(USAGE.c.seconds)))
    for row in connection.execute(select(*columns).group_by(USAGE.c.user, USAGE.c.queue, USAGE.c.hour)):
        found[row[0], row[1], int(row[2])] += float(row[3])
    return [
        # what was left in another queue cancels but for rounding
        Usage(user=user, queue=queue, hour=hour, seconds=max(0.0, seconds))
        for (user, queue, hour), seconds in sorted(found.items())
    ]


_HOUR = Hour(func.coalesce(TICKET.c.finished, TICKET.c.started))


def _used() -> Any:
    spent = case((TICKET.c.gpu_seconds > 0, TICKET.c.gpu_seconds), else_=TICKET.c.seconds)
    return (
        select(STUDY.c.owner, STUDY.c.queue, _HOUR, func.sum(counted(spent)))
        .join(TICKET, TICKET.c.study_id == STUDY.c.id)
        .where(TICKET.c.started.is_not(None), TICKET.c.seconds > 0)
    )


def _in_progress(connection: Connection) -> list[tuple[str, str, int, float]]:
    """Return what runs have used since they were taken."""
    now = connection.scalars(select(Clock())).one()
    query = (
        select(STUDY.c.owner, STUDY.c.queue, STUDY.c.gpus, TICKET.c.started)
        .join(TICKET, TICKET.c.study_id == STUDY.c.id)
        .where(TICKET.c.state == "running", TICKET.c.started.is_not(None), TICKET.c.lease > Clock())
    )
    rows = connection.execute(query)
    return [
        # two machines' clocks may differ by a little
        (owner, queue, int(now // 3600), max(0.0, now - started.timestamp()) * (gpus or 1.0))
        for owner, queue, gpus, started in rows
    ]


def keep_usage(connection: Connection, study_id: int) -> None:
    """Write what a study has used that is to be deleted: nobody gets their share back by deleting."""
    rows = _usage_of(connection, STUDY.c.id == study_id)
    if rows:
        connection.execute(insert(USAGE), rows)


def _leave_usage(connection: Connection, name: str, queue: str) -> None:
    """Keep what a study has used with the queue that it leaves."""
    rows = _usage_of(connection, STUDY.c.name == name)
    there = [{**row, "queue": queue, "seconds": -row["seconds"]} for row in rows if row["queue"] != queue]
    if there:
        connection.execute(insert(USAGE), [*rows, *there])


def _usage_of(connection: Connection, which: ColumnElement[bool]) -> list[dict[str, Any]]:
    query = _used().where(which).group_by(STUDY.c.owner, STUDY.c.queue, _HOUR)
    return [
        {"user": row[0], "queue": row[1], "hour": int(row[2]), "seconds": float(row[3])}
        for row in connection.execute(query)
    ]


def quotas(connection: Connection) -> list[Quota]:
    """Return what was set, by queue and user."""
    columns = (QUOTA.c[f.name] for f in fields(Quota))
    rows = connection.execute(select(*columns).order_by(QUOTA.c.queue, QUOTA.c.user))
    return [Quota(**row._mapping) for row in rows]


def set_quota(connection: Connection, quota: Quota) -> None:
    """Write a quota in place of the one that there is of its queue and user."""
    row = {f.name: getattr(quota, f.name) for f in fields(Quota)}
    upsert(
        connection,
        QUOTA,
        [row],
        key=["queue", "user"],
        replace=[n for n in row if n not in ("queue", "user")],
    )


def remove_quota(connection: Connection, queue: str, user: str) -> bool:
    """Remove a quota, and return whether there was one."""
    which = (QUOTA.c.queue == queue, QUOTA.c.user == user)
    return bool(connection.execute(delete(QUOTA).where(*which)).rowcount)


class Pool:
    """The pool of one database; every method is one transaction. Threads may share it.

    Args:
        database: The database.
        shown: Its URL for people to see.
    """

    def __init__(self, database: Database, shown: str) -> None:
        self._database = database
        self._shown = shown

    def read(self) -> PoolRows:
        """Return what studies want, with the agents and the quotas that there are."""
        return self._database.read(read)

    def usage(self) -> list[Usage]:
        """Return what users have used, by queue and hour, runs in progress included."""
        return self._database.read(usage)

    def hear(self, agent: PoolAgent) -> None:
        """Write how an agent of the pool stands, as it says itself."""
        self._database.write(lambda c: hear(c, agent))

    def assign(self, agent: str, study_id: int | None) -> None:
        """Write what an agent of the pool is to serve, before it says so itself."""
        self._database.write(lambda c: assign(c, agent, study_id))

    def forget(self, agent: str) -> None:
        """Forget an agent of the pool that has left."""
        self._database.write(lambda c: forget(c, agent))

    def place(self, study: str, *, queue: str | None = None, priority: int | None = None) -> tuple[str, int]:
        """Move a study to another queue, or give it another priority; return both as they are then.

        Raises:
            StudyNotFound: There is no study of that name.
        """
        return self._database.write(
            lambda c: place(c, study, queue=queue, priority=priority, shown=self._shown)
        )

    def quotas(self) -> list[Quota]:
        """Return what was set, by queue and user."""
        return self._database.read(quotas)

    def set_quota(self, quota: Quota) -> None:
        """Write a quota in place of the one that there is of its queue and user."""
        self._database.write(lambda c: set_quota(c, quota))

    def remove_quota(self, queue: str, user: str) -> bool:
        """Remove a quota, and return whether there was one."""
        return self._database.write(lambda c: remove_quota(c, queue, user))
