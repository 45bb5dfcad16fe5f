"""Studies, and the jobs of launchers that run agents for them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

from pydantic import ValidationError
from sqlalchemy import Connection, and_, case, delete, func, insert, select
from sqlalchemy.exc import IntegrityError

from tempopt.errors import StorageError, StudyNotFound, unknown
from tempopt.storage import import_study, optuna_tables, queries
from tempopt.storage.claims import now
from tempopt.storage.clock import Clock
from tempopt.storage.damage import adapter, first_fault, read_rows, report_damage
from tempopt.storage.database import Repository, read_transaction, write_transaction
from tempopt.storage.import_study import StudyDump
from tempopt.storage.models import ATTENTION_MAP, JOB, LOG, MAX_NAME, MEASUREMENT, STUDY, TICKET
from tempopt.storage.optuna_tables import MAX_IDS
from tempopt.storage.rows import (
    TICKET_STATES,
    JobRow,
    Kind,
    OpenStudy,
    PriorRuns,
    StudyRow,
    StudyState,
    StudySummary,
    StudyTotals,
    TicketState,
)
from tempopt.storage.upsert import insert_row


class StudyRepository(Repository):
    """The methods of :class:`tempopt.storage.Store` for studies and jobs."""

    @property
    def masked_url(self) -> str:
        """The URL with its password masked, for display."""
        return self._database.address.masked

    @write_transaction
    def create_study(
        self,
        connection: Connection,
        name: str,
        spec: dict[str, Any],
        spec_hash: str,
        *,
        warm_start: Sequence[Any] = (),
        owner: str = "",
        priority: int = 0,
        parallel: int = 1,
    ) -> StudyRow:
        """Write a new running study, and return it; raise StorageError if the name is taken.

        Args:
            warm_start: Its warm-start runs of earlier studies, as plain JSON data.
            owner: The user who creates it.
            priority: As ``study.priority``.
            parallel: As ``study.parallel``.
        """
        if not name.strip() or name != name.strip() or len(name) > MAX_NAME:
            raise StorageError(
                f'The study name "{name}" cannot be stored: 1 to {MAX_NAME} characters are allowed, '
                "with no space at either end."
            )
        values: dict[str, Any] = {
            "name": name,
            "spec": spec,
            "spec_hash": spec_hash,
            "state": "running",
            # by the clock from which the study's age is computed: the clocks of two machines differ
            "created": datetime.fromtimestamp(connection.scalars(select(Clock())).one(), UTC),
            "version": 0,
            "owner": owner,
            "priority": priority,
            "parallel": parallel,
        }
        try:
            id = insert_row(connection, STUDY, {**values, "warm_start": list(warm_start) or None})
        except IntegrityError:
            raise StorageError(
                f'The store {self.masked_url} already has a study "{name}". Continue it '
                f"(tempopt resume {name}), or choose another name."
            ) from None
        return StudyRow(id=id, **values)

    @read_transaction
    def warm_start(self, connection: Connection, study_id: int) -> list[Any]:
        """Return the warm-start runs of a study; raise StudyNotFound if it has been deleted."""
        row = connection.execute(select(STUDY.c.warm_start).where(STUDY.c.id == study_id)).one_or_none()
        if row is None:
            raise queries.study_deleted_error(study_id)
        try:
            prior_runs: list[Any] = adapter(PriorRuns).validate_python(row.warm_start or [])
        except ValidationError as error:
            report_damage(f"The runs of earlier studies are damaged in the database: {first_fault(error)}.")
            return []
        return prior_runs

    @read_transaction
    def load_study(self, connection: Connection, name: str) -> StudyRow:
        """Return the study of that name; raise StudyNotFound, with the existing names, if there is none."""
        return self._load(connection, name)

    def _load(self, connection: Connection, name: str) -> StudyRow:
        row = connection.execute(select(*queries.STUDY_COLUMNS).where(STUDY.c.name == name)).one_or_none()
        if row is None:
            names = connection.scalars(select(STUDY.c.name).order_by(STUDY.c.id)).all()
            remedy = f"This database is {self.masked_url}. To list another one: tempopt list --storage URL"
            raise StudyNotFound(unknown("study", name, names or ["none yet"], remedy))
        return queries.study_row(row)

    @read_transaction
    def list_studies(self, connection: Connection) -> list[StudySummary]:
        """Return every study, oldest first, with its numbers of tickets and the agents at work."""
        studies = connection.execute(select(*queries.STUDY_COLUMNS).order_by(STUDY.c.id)).all()
        counts: dict[int, dict[Kind, dict[TicketState, int]]] = {row.id: {} for row in studies}
        for row in connection.execute(
            select(TICKET.c.study_id, TICKET.c.stage, TICKET.c.state, func.count())
            .group_by(TICKET.c.study_id, TICKET.c.stage, TICKET.c.state)
            .order_by(TICKET.c.study_id, TICKET.c.stage, TICKET.c.state)
        ):
            # A study that was created between the two statements is left out.
            if row.study_id not in counts:
                continue
            if row.stage not in queries.KIND_BY_STAGE:
                report_damage(f"Tickets are left out: in the database their stage is damaged: {row.stage!r}.")
                continue
            state: TicketState = row.state if row.state in TICKET_STATES else "failed"
            by_state = counts[row.study_id].setdefault(queries.KIND_BY_STAGE[row.stage], {})
            by_state[state] = by_state.get(state, 0) + row[3]
        at_work: dict[int, set[str]] = {row.id: set() for row in studies}
        query = select(TICKET.c.study_id, TICKET.c.agent).where(
            TICKET.c.state == "running", TICKET.c.lease > Clock()
        )
        for study_id, agent in connection.execute(query.distinct()):
            if study_id in at_work:
                at_work[study_id].add(agent)
        summaries = []
        for row in studies:
            try:
                study = queries.study_row(row)
            except StorageError as error:
                report_damage(str(error))
                continue
            agents = tuple(sorted(map(str, at_work[row.id])))
            summaries.append(StudySummary(study=study, tickets=counts[row.id], agents=agents))
        return summaries

    @read_transaction
    def open_studies(self, connection: Connection) -> list[OpenStudy]:
        """Return the unfinished studies, highest priority first, then oldest first."""
        rows = connection.execute(
            select(STUDY.c.id, STUDY.c.name, STUDY.c.priority, STUDY.c.parallel)
            .where(STUDY.c.state == "running")
            .order_by(STUDY.c.priority.desc(), STUDY.c.id)
        ).all()
        is_held = (TICKET.c.state == "running") & (TICKET.c.lease > Clock())
        is_free = TICKET.c.state.in_(("waiting", "running")) & ~is_held
        counts = connection.execute(
            select(
                TICKET.c.study_id,
                func.sum(case((is_held, 1), else_=0)),
                func.sum(case((is_free, 1), else_=0)),
            )
            .join(STUDY, STUDY.c.id == TICKET.c.study_id)
            .where(STUDY.c.state == "running")
            .group_by(TICKET.c.study_id)
        )
        held_and_free_by_study = {
            study_id: (int(num_held), int(num_free)) for study_id, num_held, num_free in counts
        }
        return [
            OpenStudy(
                id=row.id,
                name=row.name,
                priority=row.priority,
                needs_agent=_needs_agent(*held_and_free_by_study.get(row.id, (0, 0)), parallel=row.parallel),
            )
            for row in rows
        ]

    @read_transaction
    def totals(self, connection: Connection) -> dict[int, StudyTotals]:
        """Return the totals of all runs by id of the study, without studies that have no tickets."""
        counts = and_(TICKET.c.kind == "search", TICKET.c.state == "done", TICKET.c.outcome == "complete")
        value = case((counts, TICKET.c.value))
        rows = connection.execute(
            select(
                TICKET.c.study_id,
                func.min(value).label("lowest"),
                func.max(value).label("highest"),
                func.sum(TICKET.c.seconds).label("seconds"),
                func.sum(TICKET.c.gpu_seconds).label("gpu_seconds"),
            ).group_by(TICKET.c.study_id)
        )
        return {
            row.study_id: StudyTotals(
                lowest=row.lowest,
                highest=row.highest,
                seconds=float(row.seconds),
                gpu_seconds=float(row.gpu_seconds),
            )
            for row in rows
        }

    @write_transaction
    def set_state(
        self, connection: Connection, study_id: int, state: StudyState, *, version: int | None = None
    ) -> bool:
        """Set the state of a study, and return whether it was set; StudyNotFound if it has been deleted.

        Args:
            version: Set it only if the tickets have this version; None: in any case.
        """
        if version is not None and queries.lock_study(connection, study_id) != version:
            return False
        queries.change_study(connection, study_id, state=state)
        return True

    @write_transaction
    def set_priority(self, connection: Connection, study_id: int, priority: int) -> None:
        """Set the priority of a study; raise StudyNotFound if it has been deleted."""
        queries.change_study(connection, study_id, priority=priority)

    @write_transaction
    def set_spec(self, connection: Connection, study_id: int, spec: dict[str, Any], spec_hash: str) -> None:
        """Set the spec of a study; raise StudyNotFound if it has been deleted."""
        queries.change_study(connection, study_id, spec=spec, spec_hash=spec_hash)

    @write_transaction
    def set_checkpoints(self, connection: Connection, study_id: int, url: str) -> None:
        """Set the URL of a study's checkpoints; raise StudyNotFound if it has been deleted."""
        queries.change_study(connection, study_id, checkpoints=url)

    @write_transaction
    def set_recommendation(
        self, connection: Connection, name: str, recommendation: Mapping[str, Any]
    ) -> None:
        """Write the recommendation of a study, as plain data, into the attributes of its Optuna study."""
        optuna_tables.set_recommendation(connection, name, recommendation)

    @write_transaction
    def delete_study(self, connection: Connection, name: str, *, id: int | None = None) -> None:
        """Delete a study with all its rows, including Optuna's study of that name.

        An Optuna study that tempopt did not create, and that has trials of no ticket, is not deleted.

        Args:
            id: Delete it only if it has this id; None: in any case.

        Raises:
            StudyNotFound: There is no study of that name, or a different one by now.
        """
        study = self._load(connection, name)
        if id not in (None, study.id):
            raise StudyNotFound(f"Study {id} has been deleted.")
        queries.lock_study(connection, study.id)
        rows = connection.execute(
            select(TICKET.c.id, TICKET.c.trial_id).where(TICKET.c.study_id == study.id).order_by(TICKET.c.id)
        ).all()
        for start in range(0, len(rows), MAX_IDS):
            ids = [row.id for row in rows[start : start + MAX_IDS]]
            # The tickets first, in the order of id in which all writers lock them.
            connection.execute(select(TICKET.c.id).where(TICKET.c.id.in_(ids)).with_for_update()).all()
            for table in (MEASUREMENT, LOG, ATTENTION_MAP):
                connection.execute(delete(table).where(table.c.ticket_id.in_(ids)))
            connection.execute(delete(TICKET).where(TICKET.c.id.in_(ids)))
        connection.execute(delete(JOB).where(JOB.c.study == name))
        connection.execute(delete(STUDY).where(STUDY.c.id == study.id))
        optuna_tables.delete_study(connection, name, {row.trial_id for row in rows})

    @write_transaction
    def delete_optuna_study(self, connection: Connection, name: str) -> None:
        """Delete Optuna's study of a name, if it has no trials."""
        optuna_tables.delete_study(connection, name, None)

    @read_transaction
    def find_colliding_param_names(
        self, connection: Connection, names: Sequence[str]
    ) -> tuple[str, str] | None:
        """Return two parameter names that are equal in Optuna's tables, None if there are none."""
        return optuna_tables.find_colliding_param_names(connection, names)

    @write_transaction
    def import_study(self, connection: Connection, whole_study: StudyDump) -> int:
        """Write a complete study in one transaction, and return its id; its Optuna study must exist.

        Raises:
            StorageError: There is a study of that name.
        """
        return import_study.write(connection, whole_study, masked_url=self.masked_url)

    # ---- jobs

    @write_transaction
    def add_jobs(
        self,
        connection: Connection,
        name: str,
        launcher: str,
        options: Mapping[str, str],
        ids: Sequence[str],
    ) -> None:
        """Write the jobs of a launcher that run agents for a study, which need not exist yet.

        Args:
            options: Options of the launcher, without secrets.
            ids: The launcher's names of the jobs; jobs that are already stored are not changed.
        """
        of_launcher = (JOB.c.study == name, JOB.c.launcher == launcher)
        existing_ids = set(connection.scalars(select(JOB.c.id).where(*of_launcher)))
        common_columns = {"study": name, "launcher": launcher, "options": dict(options), "created": now()}
        new_rows = [{"id": id, **common_columns} for id in dict.fromkeys(ids) if id not in existing_ids]
        if new_rows:
            connection.execute(insert(JOB), new_rows)

    @read_transaction
    def jobs(self, connection: Connection, name: str) -> list[JobRow]:
        """Return the jobs of a study, in the order of their start."""
        columns = (JOB.c[f.name] for f in fields(JobRow))
        query = select(*columns).where(JOB.c.study == name).order_by(JOB.c.number)
        return read_rows(JobRow, connection.execute(query), "jobs")

    @write_transaction
    def forget_jobs(self, connection: Connection, name: str, ids: Collection[str]) -> None:
        """Delete jobs of a study by their ids."""
        connection.execute(delete(JOB).where(JOB.c.study == name, JOB.c.id.in_(list(ids))))


def _needs_agent(num_held: int, num_free: int, *, parallel: int) -> bool:
    # with no run in progress and no waiting one, an agent has to open the next stage
    return not num_held or (num_free > 0 and num_held < parallel)
