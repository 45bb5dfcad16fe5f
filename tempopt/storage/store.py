"""Store: the one door to studies, tickets and measurements. It knows no Optuna and trains nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from tempopt.storage import (
    apply_changes,
    claims,
    import_study,
    jobs,
    optuna_calls,
    optuna_tables,
    queries,
    studies,
    totals,
)
from tempopt.storage.changes import Change, ClaimRequest, StudyDelta, WriteResult
from tempopt.storage.import_study import StudyDump
from tempopt.storage.models import ATTENTION_MAP, LOG, MEASUREMENT, TICKET
from tempopt.storage.rows import (
    JobRow,
    Kind,
    LogRow,
    Measurement,
    NewTicket,
    OpenStudy,
    RunRow,
    StudyRow,
    StudyState,
    StudySummary,
    StudyTotals,
    TicketRow,
    TrialParam,
)
from tempopt.storage.token_repository import TokenRepository


class Store(TokenRepository):
    """The studies in one database. Use :meth:`open`; close it, or use it as a context manager.

    Every method is one transaction. What is written about a run carries the attempt that it belongs to,
    and is refused when the ticket has been given to another agent or has ended. Every method raises
    StoreUnreachable when the database cannot be reached (what was to be written is written or not: say it
    again) and another StorageError when it fails. Threads may share a store; processes may not: each opens
    its own.
    """

    @property
    def url(self) -> str:
        """The URL to connect with, driver named, SQLite paths absolute, password and all: never print it."""
        return self._database.address.url.render_as_string(hide_password=False)

    @property
    def masked_url(self) -> str:
        """The URL with its password masked, for people to see."""
        return self._database.address.masked

    def __repr__(self) -> str:
        return f"Store({self.masked_url!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection; the store cannot fail in this."""
        optuna_calls.close(self._database.engine)
        self._database.close()

    # ---- studies

    def set_recommendation(self, name: str, recommendation: Mapping[str, Any]) -> None:
        """Write what a study recommends into the attributes of Optuna's study.

        Args:
            name: Name of the study.
            recommendation: Plain data.
        """
        optuna_calls.optuna_writer_for(self._database.engine).set_recommendation(name, recommendation)

    def create_study(
        self,
        name: str,
        spec: dict[str, Any],
        spec_hash: str,
        *,
        warm_start: Sequence[Any] = (),
        owner: str = "",
        priority: int = 0,
        parallel: int = 1,
    ) -> StudyRow:
        """Write a new study, running, and return it; StorageError if there is one of that name.

        Args:
            warm_start: What it keeps of earlier studies, as plain JSON data.
            owner: The user who begins it.
            priority: As ``study.priority``.
            parallel: As ``study.parallel``.
        """
        prior_runs = list(warm_start) or None
        columns = {"owner": owner, "priority": priority, "parallel": parallel}
        return self._database.write(
            lambda c: studies.create(
                c, name, spec, spec_hash, prior_runs, columns=columns, url_shown=self.masked_url
            )
        )

    def warm_start(self, study_id: int) -> list[Any]:
        """Return what a study keeps of earlier ones; StudyNotFound if it has been deleted."""
        return self._database.read(lambda c: studies.warm_start(c, study_id))

    def load_study(self, name: str) -> StudyRow:
        """Return the study of that name; StudyNotFound, with the names that there are, if there is none."""
        return self._database.read(lambda c: studies.load(c, name, url_shown=self.masked_url))

    def list_studies(self) -> list[StudySummary]:
        """Return every study, oldest first, with its numbers of tickets and the agents at work."""
        return self._database.read(studies.summaries)

    def open_studies(self) -> list[OpenStudy]:
        """Return the unfinished studies, those of the highest priority first, of the same the oldest."""
        return self._database.read(studies.open_studies)

    def totals(self) -> dict[int, StudyTotals]:
        """Return the totals of all runs of each study, by id of the study."""
        return self._database.read(totals.read)

    def set_state(self, study_id: int, state: StudyState, *, version: int | None = None) -> bool:
        """Set the state of a study, and return whether it was set; StudyNotFound if it has been deleted.

        Args:
            version: Set it only while the tickets are of this version; None: of any.
        """
        return self._database.write(lambda c: studies.set_state(c, study_id, state, version))

    def set_priority(self, study_id: int, priority: int) -> None:
        """Write another priority of a study; StudyNotFound if it has been deleted."""
        self._set_study(study_id, priority=priority)

    def set_spec(self, study_id: int, spec: dict[str, Any], spec_hash: str) -> None:
        """Write another spec of a study; StudyNotFound if it has been deleted."""
        self._set_study(study_id, spec=spec, spec_hash=spec_hash)

    def set_checkpoints(self, study_id: int, url: str) -> None:
        """Write where the runs of a study keep their checkpoints; StudyNotFound if it has been deleted."""
        self._set_study(study_id, checkpoints=url)

    def _set_study(self, study_id: int, **values: Any) -> None:
        self._database.write(lambda c: studies.change(c, study_id, **values))

    def delete_study(self, name: str) -> None:
        """Delete a study with all that hangs on it, Optuna's study of that name included.

        An Optuna study that holds trials which no ticket owns, and that tempopt did not make, stays.

        Raises:
            StudyNotFound: There is no study of that name.
        """
        self._database.write(lambda c: studies.remove(c, name, url_shown=self.masked_url))

    def find_colliding_param_names(self, names: Sequence[str]) -> tuple[str, str] | None:
        """Return two names of parameters that Optuna's tables here take for one, None if there are none."""
        return self._database.read(lambda c: optuna_tables.find_colliding_param_names(c, names))

    def import_study(self, whole_study: StudyDump) -> int:
        """Write a whole study in one transaction, and return its id; Optuna's study of its name is there.

        Raises:
            StorageError: There is a study of that name.
        """
        return self._database.write(lambda c: import_study.write(c, whole_study, url_shown=self.masked_url))

    # ---- jobs

    def add_jobs(self, name: str, launcher: str, options: Mapping[str, str], ids: Sequence[str]) -> None:
        """Write the jobs by which a launcher has started agents for a study, which need not be there yet.

        Args:
            options: What the launcher was given; no secrets.
            ids: What it calls the jobs; those that are written already stay as they are.
        """
        self._database.write(lambda c: jobs.add(c, name, launcher, options, ids))

    def jobs(self, name: str) -> list[JobRow]:
        """Return the jobs of a study, those first that were started first."""
        return self._database.read(lambda c: jobs.list_jobs(c, name))

    def forget_jobs(self, name: str, ids: Collection[str]) -> None:
        """Delete jobs of a study by their ids."""
        self._database.write(lambda c: jobs.forget(c, name, ids))

    # ---- tickets

    def add_tickets(
        self,
        study_id: int,
        tickets: Sequence[NewTicket],
        *,
        version: int | None = None,
        resume: bool = False,
    ) -> bool:
        """Write waiting tickets, leaving alone those that are there, and return whether that was done.

        Args:
            version: Write them only while the tickets that they follow from are of this version.
            resume: Whether the study is running from then on, whatever it was, if any ticket is new.

        Raises:
            StudyNotFound: The study has been deleted.
        """
        return self._database.write(
            lambda c: studies.add_tickets(c, study_id, tickets, version=version, resume=resume)
        )

    def retry(
        self, study_id: int, failed: Collection[int], tickets: Sequence[NewTicket], *, version: int
    ) -> bool:
        """Let failed tickets wait again with all of their attempts, and return whether that was done.

        The study is running from then on, if anything is to be done.

        Args:
            failed: Ids of the tickets; those that have not failed stay as they are.
            tickets: New ones that are written with it.
            version: Do so only while the tickets are of this version.

        Raises:
            StudyNotFound: The study has been deleted.
        """
        return self._database.write(lambda c: studies.retry(c, study_id, failed, tickets, version))

    def withdraw(self, study_id: int, kinds: Iterable[Kind]) -> int:
        """Withdraw the waiting tickets of these kinds, so that they are not begun; return how many.

        Trials of those that were begun before, and then returned or lost, are closed as failed.

        Args:
            study_id: Id of the study.
            kinds: The kinds.
        """
        kind_names = tuple(kinds)
        return self._database.write(lambda c: studies.withdraw(c, study_id, kind_names))

    def withdraw_from(self, ticket: TicketRow, *, version: int) -> int | None:
        """Withdraw a ticket that was taken and not begun, and those of its kind after it that wait.

        Args:
            ticket: As it was taken; it stays as it is if it is another's by now.
            version: That of the tickets that the decision was made on.

        Returns:
            How many were withdrawn; None, and none were, if tickets have been added or withdrawn since.
        """
        return self._database.write(lambda c: studies.end_before(c, ticket, version))

    def take_ticket(self, study_id: int, agent: str, request: ClaimRequest) -> TicketRow | None:
        """Take the next waiting ticket for an agent; None if there is none, or the study is not running.

        Before that, running tickets of others whose lease is over, or whose agent is dead, lose their
        attempt: they wait again, or have failed for good. Running tickets of this agent that it does not
        know of (the answer to their taking was lost) wait again too, and no failure is counted; those that
        it knows of stay its own.

        Args:
            agent: Name of the agent, unique among those at work, 1 to 255 characters.
            request: Which it may take.
        """
        return self._database.write(lambda c: claims.claim_ticket(c, study_id, agent, request))

    def release(self, study_id: int, agents: Collection[str]) -> int:
        """Give back the running tickets of these agents, no failure counted; return how many."""
        return self._database.write(lambda c: claims.release(c, study_id, agents))

    # ---- runs

    def begin(
        self,
        ticket_id: int,
        attempt: int,
        parameters: Mapping[str, Any],
        sampled: Mapping[str, Any],
        trial: Sequence[TrialParam] | None,
        *,
        space: int = 0,
    ) -> int | None:
        """Write what a ticket trains and make its Optuna trial; return the trial's number.

        Args:
            trial: Parameters of the trial, which a ticket that has one already keeps as it is, whatever is
                given; None: the ticket is not Optuna's business.

        Raises:
            StaleAttempt: The ticket is another's by now.
            StorageError: Optuna's study of that name has been deleted.
        """
        number = self._database.write(
            lambda c: claims.begin(c, ticket_id, attempt, parameters, sampled, trial)
        )
        return self._project(ticket_id, trial) if number is None and trial is not None else number

    def _project(self, ticket_id: int, trial: Sequence[TrialParam]) -> int | None:
        """Make a trial with Optuna's calls, whose tables are not known; None if Optuna refuses."""
        name = self._database.read(lambda c: studies.name_of(c, ticket_id))
        trial_ids = optuna_calls.optuna_writer_for(self._database.engine).begin_trial(
            name, (optuna_tables.TICKET, ticket_id), trial
        )
        if trial_ids is None:
            return None
        self._database.write(lambda c: claims.link_optuna_trial(c, ticket_id, *trial_ids))
        return trial_ids[1]

    def write(
        self,
        study_id: int,
        changes: Sequence[Change],
        *,
        agent: str,
        renew: Mapping[int, int] | None = None,
        steps: Mapping[int, int] | None = None,
        lease: float,
        allow_readoption: bool = True,
        take: ClaimRequest | None = None,
        version: int | None = None,
    ) -> WriteResult:
        """Write all that happened to runs and renew leases; see ``refused`` for what was not written.

        Changes that were written before, and come again because the answer was lost, are accepted. A ticket
        that others took from this agent for its silence, and that have not been begun since, is its own again
        and runs on, its lease renewed and that failure taken back; unless the changes end in Lost or
        Returned: then it waits as it is, and they are accepted and not written. A ticket is taken after all
        that, in the same transaction, unless anything was refused.

        Args:
            changes: In the order in which they happened.
            agent: Whose runs these are, as it was named in :meth:`take_ticket`.
            renew: Attempt by id of the tickets whose runs have made a step since the last time.
            steps: Optimizer steps that those have done, by id, as far as they are known.
            lease: Seconds that these get from now on.
            allow_readoption: Whether tickets may become this agent's again; False for a dead agent's changes.
            take: The ticket to take; None: none.
            version: Take it only while the study is running and its tickets are of this version.

        Raises:
            StudyNotFound: The study has been deleted.
        """
        return self._database.write(
            lambda c: apply_changes.write(
                c,
                study_id,
                changes,
                agent=agent,
                renew=renew or {},
                steps=steps or {},
                lease=lease,
                allow_readoption=allow_readoption,
                take=take,
                version=version,
            )
        )

    # ---- reading

    def tickets(self, study_id: int, kinds: Iterable[Kind] | None = None) -> list[TicketRow]:
        """Return the tickets of a study in their order of work."""
        condition = queries.of_kinds(kinds)
        return self._database.read(lambda c: queries.tickets(c, TICKET.c.study_id == study_id, condition))

    def ticket(self, study_id: int, kind: Kind, number: int) -> TicketRow | None:
        """Return the ticket of that kind and number, None if there is none."""
        where = (TICKET.c.study_id == study_id, TICKET.c.kind == kind, TICKET.c.number == number)
        return next(iter(self._database.read(lambda c: queries.tickets(c, *where))), None)

    def run(self, ticket_id: int) -> RunRow | None:
        """Return one ticket with its study and its reports, None if there is none of that id."""
        return self._database.read(lambda c: queries.run(c, ticket_id))

    def news(self, study_id: int, since: Mapping[Kind, int]) -> StudyDelta:
        """Return what became of the tickets of these kinds from these numbers on; or StudyNotFound.

        Its version is read last: it may be newer than the tickets, never older.
        """
        return self._database.read(lambda c: studies.news(c, study_id, since))

    def measurements(
        self,
        study_id: int,
        ticket_ids: Iterable[int] | None = None,
        names: Iterable[str] | None = None,
        *,
        prefixes: Iterable[str] = (),
    ) -> list[Measurement]:
        """Return measurements by ticket, name and step.

        Args:
            ticket_ids: Only of these tickets; None: of all.
            names: Only of these names; None: of all.
            prefixes: Only of names that begin so; none: of all.
        """
        where = (
            TICKET.c.study_id == study_id,
            queries.in_clause(MEASUREMENT.c.ticket_id, ticket_ids),
            queries.in_clause(MEASUREMENT.c.name, names),
            queries.prefix_clause(MEASUREMENT.c.name, prefixes),
        )
        return self._database.read(lambda c: queries.measurements(c, *where))

    def logs(self, study_id: int, ticket_ids: Iterable[int] | None = None) -> list[LogRow]:
        """Return the ends of what runs printed, by ticket and attempt; None: of all tickets."""
        where = (TICKET.c.study_id == study_id, queries.in_clause(LOG.c.ticket_id, ticket_ids))
        return self._database.read(lambda c: queries.logs(c, *where))

    def attention_maps(self, study_id: int, ticket_ids: Iterable[int]) -> dict[int, Any]:
        """Return what heads attend to, by ticket, of those of these tickets that were looked at."""
        where = (TICKET.c.study_id == study_id, queries.in_clause(ATTENTION_MAP.c.ticket_id, ticket_ids))
        return self._database.read(lambda c: queries.attention_maps(c, *where))
