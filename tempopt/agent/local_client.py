"""An agent's client of a database: claims tickets, reports changes, opens stages.

Uses no worker. Requests raise StoreUnavailableError while the store cannot be reached, and can be repeated.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import threading
import time
from collections.abc import Collection, Mapping, Sequence

from tempopt.agent.observer import Observer, Snapshot, WorkerView
from tempopt.agent.stop_conditions import find_convergence_reason, find_stop_reason
from tempopt.agent.store_connection import StoreRetryPolicy, StoreUnavailableError
from tempopt.agent.study_cache import StudyCache
from tempopt.agent.study_client import THOROUGH_SECONDS, RunFolders, StudyClient
from tempopt.agent.ticket_transitions import build_trial_user_attrs
from tempopt.agent.worker_slot import initial_lease_seconds
from tempopt.agent.write_queue import WriteQueue
from tempopt.errors import StaleAttempt, StorageError, StudyFailed, StudyNotFound
from tempopt.report.decision import decide
from tempopt.report.study_result import load
from tempopt.sampling.arms import guard_values_by_ticket, reports_by_ticket
from tempopt.spec.program import AnyProgram, Program
from tempopt.storage import checkpoints
from tempopt.storage.changes import AttemptLost, AttemptReleased, Change, ClaimRequest, RunEnded, RunStarted
from tempopt.storage.liveness import agent_name, mark_agent_left
from tempopt.storage.rows import SEARCH_KINDS, Checkpoint, StudyState, TicketRow
from tempopt.storage.ticket_queries import arms_of, is_terminal
from tempopt.training.messages import (
    NUM_PROGRAM_SEEDS,
    AnyRequest,
    CheckpointRef,
    ProgramRequest,
    RunLabel,
    RunRequest,
)
from tempopt.verdict.run_evaluations import OBSERVED, evaluations, metric_name_for_kind
from tempopt.verdict.stages import next_tickets

# Seconds that an agent that ends waits for an object store, twice.
_LAST_DELETION_SECONDS = 5.0
# The run renews no lease while it waits for an object store.
_CHECKPOINT_SHARE_OF_LEASE = 0.75


class LocalStudyClient(StudyClient):
    """A study in a database, for one agent.

    Args:
        cache: The study's tickets, and their store; in a server, several agents share it.
        folders: Where runs are written.
        workers: Number of the agent's workers.
        observer: Receives notes for the user.
        outbox: Changes on their way to the store, under the agent's name; None: a new queue of this process,
            which keeps on disk what it cannot deliver.

    Attributes:
        claim_number: Number of the next claim, as in ClaimRequest; set by a server.
    """

    claim_number: int | None = None

    def __init__(
        self,
        *,
        cache: StudyCache,
        folders: RunFolders,
        workers: int,
        observer: Observer,
        outbox: WriteQueue | None = None,
    ) -> None:
        spec, study = cache.spec, cache.study
        has_own_outbox = outbox is None
        if outbox is None:
            outbox = WriteQueue(
                store=cache.store,
                agent=agent_name(),
                connection=StoreRetryPolicy(timeout=spec.study.store_timeout, note=observer.note),
                study_id=study.id,
                lease=spec.study.lease,
                folder=folders.logs,
            )
        super().__init__(spec=spec, study=study, folders=folders, observer=observer, outbox=outbox)
        self.cache = cache
        self._store = cache.store
        self._workers = workers
        self._last_claim_at = -math.inf
        self._last_observed_at = -math.inf
        self._other_views: list[WorkerView] = []
        self._needless_checkpoints: list[tuple[TicketRow, str]] = []
        self._needless_urls: list[str] = []
        self._deletion: threading.Thread | None = None
        if has_own_outbox and self._deliver_for_dead_agents():
            cache.read()

    @property
    def state(self) -> StudyState:
        """State of the study when it was last read."""
        return self.cache.state

    @property
    def codes(self) -> set[str]:
        """Identities of the code that is known to have trained runs of the study."""
        return self.cache.codes

    def _deliver_as(self, agent: str, changes: Sequence[Change]) -> None:
        self._store.write(
            self._study.id, changes, agent=agent, lease=self._spec.study.lease, allow_readoption=False
        )

    # ---- changes to report

    def report_run_started(self, change: RunStarted, history: Mapping[int, float]) -> None:
        """Report that a run has begun to train; ``history`` is already in the store."""
        self.outbox.add(change)
        hardware: dict[str, object] = {"machine": change.machine, "device": change.device}
        self.cache.patch_ticket(change.ticket_id, total_steps=change.total_steps, **hardware)

    def report_metric(
        self,
        ticket: TicketRow,
        step: int,
        reports: Mapping[int, float],
        *,
        total_steps: int | None,
        trained_seconds: float,
    ) -> bool:
        """Report a value of the metric, and return whether the pruner ends the run at it."""
        super().report_metric(ticket, step, reports, total_steps=total_steps, trained_seconds=trained_seconds)
        return step != total_steps and self.cache.arms.prune(ticket, reports)

    def was_pruned_earlier(self, ticket: TicketRow, reports: Mapping[int, float]) -> bool:
        """Return whether the pruner ends a run by the reports of earlier attempts."""
        # an agent that died between a pruning decision and its record made the same decision
        return self.find_pruning_step(ticket, reports, ticket.total_steps) is not None

    def find_pruning_step(
        self, ticket: TicketRow, reports: Mapping[int, float], total_steps: int | None, *, after: int = -1
    ) -> int | None:
        """Return the step of the first report at which the pruner ends a run, None if it continues.

        Args:
            after: Step up to which the run is known to continue.
        """
        partial_reports: dict[int, float] = {}
        for step in sorted(reports):
            partial_reports[step] = reports[step]
            if step > after and step != total_steps and self.cache.arms.prune(ticket, partial_reports):
                return step
        return None

    def record_checkpoint(
        self, ticket: TicketRow, checkpoint: Checkpoint, *, trained_seconds: float
    ) -> TicketRow:
        """Record a checkpoint, delete those that are no longer needed, and return the ticket with it."""
        new_row = super().record_checkpoint(ticket, checkpoint, trained_seconds=trained_seconds)
        needed_urls = {needed.url for needed in new_row.checkpoints}
        self._needless_checkpoints += [
            (ticket, earlier.url) for earlier in ticket.checkpoints if earlier.url not in needed_urls
        ]
        self.cache.patch_ticket(ticket.id, checkpoints=new_row.checkpoints)
        return new_row

    def report_run_ended(
        self, change: RunEnded, before: TicketRow, row: TicketRow, reports: Mapping[int, float]
    ) -> None:
        """Report the end of a run, with the values that depend on the whole study."""
        outcomes = change.outcomes
        gain = self.cache.gain(outcomes.value) if outcomes.outcome == "complete" else None
        attributes = build_trial_user_attrs(before, outcomes.seconds, gain, outcomes.measurements)
        guards = guard_values_by_ticket(outcomes.measurements, self._spec).get(row.id)
        constraints = self.cache.constraints(guards or {}) if before.trial_number is not None else {}
        outcomes = dataclasses.replace(outcomes, attributes=attributes, constraints=constraints)
        self.outbox.add(dataclasses.replace(change, outcomes=outcomes))
        self._end_ticket(before, row, reports, guards)

    def report_attempt_lost(
        self, change: AttemptLost, before: TicketRow, row: TicketRow, reports: Mapping[int, float]
    ) -> None:
        """Report that an attempt was lost."""
        self.outbox.add(change)
        if row.state == "waiting":
            self.cache.apply_ticket(row, {})
        else:
            self._end_ticket(before, row, reports)

    def _end_ticket(
        self,
        before: TicketRow,
        row: TicketRow,
        reports: Mapping[int, float],
        guards: Mapping[str, float] | None = None,
    ) -> None:
        self._needless_checkpoints += [(before, checkpoint.url) for checkpoint in before.checkpoints]
        self.cache.apply_ticket(row, reports, guards)

    def report_attempt_released(self, change: AttemptReleased) -> None:
        """Report that an attempt was released."""
        self.outbox.add(change)
        self.cache.patch_ticket(change.ticket_id, state="waiting", agent=None)

    def _deliver(self, take: ClaimRequest | None = None) -> TicketRow | None:
        """Deliver all changes, and return the ticket that was claimed with them."""
        write_result = self.outbox.flush(take, version=self.cache.version)
        self._delete_needless(write_result.refused)
        self.cache.state = write_result.state
        self.cache.set_age(write_result.age)
        if write_result.refused:
            self.listeners.abandon(write_result.refused.keys())
        if write_result.refused or write_result.version != self.cache.version:
            self._reload()
        return write_result.claimed_ticket

    def _delete_needless(self, refused_ids: Collection[int]) -> None:
        """Delete the checkpoints to which the store no longer refers, once all changes are delivered.

        An object store may be slow, and leases have to be renewed meanwhile: a thread deletes there.

        Args:
            refused_ids: Ids of tickets that other agents hold by now, with their files.
        """
        needless_checkpoints, self._needless_checkpoints = self._needless_checkpoints, []
        study = self._study.name
        self._needless_urls += [
            url
            for ticket, url in needless_checkpoints
            if ticket.id not in refused_ids
            # never delete a file that tempopt has not written, even if a row of the store names it
            and checkpoints.belongs_to_run(
                url, study=study, run=checkpoints.run_name(ticket.kind, ticket.number)
            )
        ]
        if not self._needless_urls or (self._deletion is not None and self._deletion.is_alive()):
            return
        urls, self._needless_urls = self._needless_urls, []
        if all(map(checkpoints.is_local, urls)):
            checkpoints.remove(urls)
            return
        self._deletion = threading.Thread(target=checkpoints.remove, args=(urls,), daemon=True)
        self._deletion.start()

    def close(self) -> None:
        """Deliver the changes if possible; else they stay on disk for the next agent on this machine."""
        with contextlib.suppress(StoreUnavailableError, StudyFailed, StorageError):
            self._deliver()
            # tickets that were claimed and not yet given to a worker
            self._store.release(self._study.id, [self.outbox.agent])
        for _ in range(2):
            # the deletion in progress, then the rest; what remains is left to tempopt gc
            if self._deletion is not None:
                self._deletion.join(_LAST_DELETION_SECONDS)
            self._delete_needless(())
        mark_agent_left(self.outbox.agent)

    # ---- next work, and state of the study

    def build_request(self, ticket: TicketRow, memory_share: float | None) -> AnyRequest:
        """Return the request to a worker to train a ticket that has its parameters."""
        assert ticket.parameters is not None
        spec, study, folder = self._spec, self._study, self.folder(ticket)
        if not isinstance(self._program, Program):
            return ProgramRequest(
                ticket=ticket.id,
                attempt=ticket.attempt,
                program=self._program,
                parameters=ticket.parameters,
                seed=ticket.seed % NUM_PROGRAM_SEEDS,
                names=[metric_name_for_kind(ticket.kind, spec)],
                folder=str(folder),
                grace=spec.resources_here.grace,
            )
        winner = self.cache.winner(ticket.round) if ticket.kind == "confirm" else {}
        is_observable = ticket.kind == "confirm" and not set(OBSERVED).isdisjoint(arms_of(ticket))
        is_observed = spec.compare is None and is_observable
        return RunRequest(
            ticket=ticket.id,
            attempt=ticket.attempt,
            program=self._program,
            parameters=ticket.parameters,
            seed=ticket.seed,
            evaluations=evaluations(ticket.kind, arms_of(ticket), spec, winner, ticket.parameters),
            folder=str(folder),
            checkpoints=checkpoints.join(self._folders.checkpoints, folder.name),
            checkpoint_every=spec.study.checkpoint_every,
            checkpoint_timeout=_CHECKPOINT_SHARE_OF_LEASE * spec.study.lease,
            resume=[CheckpointRef(**dataclasses.asdict(checkpoint)) for checkpoint in ticket.checkpoints],
            memory_share=memory_share,
            observe=is_observed,
            # maps are large, and those of one pair suffice
            maps=is_observed and ticket.pair == 0,
            label=RunLabel(
                study=study.name,
                study_created_at=study.created.isoformat(),
                run=folder.name,
                kind=ticket.kind,
                arm=ticket.arm,
            ),
        )

    @functools.cached_property
    def _program(self) -> AnyProgram:
        return self._spec.build_program()

    def has_finished_run(self) -> bool:
        """Return whether a run of the study is complete."""
        return any(t.state == "done" for t in self.cache.tickets.values())

    def tickets(self) -> Mapping[int, TicketRow]:
        """Return the tickets of the study by id."""
        return self.cache.tickets

    def snapshot(self, own_views: Sequence[WorkerView], elapsed: float) -> Snapshot:
        """Return the current state of the study, with the workers of other agents."""
        return self.cache.snapshot([*own_views, *self.other_workers()], elapsed)

    def other_workers(self) -> list[WorkerView]:
        """Return the workers of other agents, as last read from the store.

        The store is read once per ``poll_interval_seconds`` of the observer, and not at all if that is None.
        """
        interval = self._observer.poll_interval_seconds
        is_late = interval is not None and time.monotonic() - self._last_observed_at >= interval
        # a run whose end is not yet reported is still in progress in the store
        if is_late and not self.outbox.has_unreported_end:
            self._last_observed_at = time.monotonic()
            # for display only: the agent itself will meet the same error
            with contextlib.suppress(StoreUnavailableError, StudyFailed, StudyNotFound):
                self._other_views = self._connection.call(self._read_other_workers, reads=True)
        return self._other_views

    def _read_other_workers(self) -> list[WorkerView]:
        self.cache.refresh()
        return self.cache.worker_views(exclude_agent=self.outbox.agent)

    def next_ticket(self, held_ids: list[int]) -> TicketRow | None:
        """Return a ticket to train, with its parameters, or None if no ticket may begin now.

        Args:
            held_ids: Ids of the tickets that are in progress here.
        """
        ticket, can_claim, started_at = None, False, time.monotonic()
        if self.outbox.has_unreported_end:
            # a ticket whose end is not yet reported would be handed out again
            can_claim = self.cache.has_startable_ticket() and self._find_stop_reason() is None
            ticket = self._deliver(self._build_claim_request(held_ids) if can_claim else None)
            if self.cache.state == "paused":
                return None
        if ticket is None:
            if reason := self._find_stop_reason():
                self._end_search(reason)
            ticket = (
                self._claim_ticket(held_ids) if self.cache.has_startable_ticket() and not can_claim else None
            )
        if ticket is None:
            # tickets may begin after the end of other agents' runs, and lost ones are repeated
            self._connection.call(self.cache.refresh, reads=True)
            is_late = time.monotonic() - self._last_claim_at >= THOROUGH_SECONDS
            if not self.cache.is_finished() and (is_late or self.cache.has_startable_ticket()):
                ticket = self._claim_ticket(held_ids)
        if ticket is None:
            if self.cache.state == "running" and not self.cache.is_finished():
                self.last_empty_poll_at = started_at
            return None
        if ticket.id not in self.cache.tickets:
            # tickets have been added since they were last read
            self._reload()
        if ticket.parameters is None:
            try:
                ticket = self._begin_run(ticket)
            except StaleAttempt:
                # this process was frozen for longer than the lease
                self._reload()
                return None
        if ticket is not None:
            self.cache.apply_ticket(ticket, {})
        return ticket

    def _build_claim_request(self, held_ids: list[int]) -> ClaimRequest:
        self._last_claim_at = time.monotonic()
        return ClaimRequest(
            max_number_by_kind=self.cache.max_number_by_kind(),
            lease=initial_lease_seconds(self._spec.study.lease),
            max_attempts=self._spec.study.max_attempts,
            dead=self.cache.dead_agents(),
            held_ticket_ids=held_ids,
            expired=self._connection.is_recovered,
            number=self.claim_number,
        )

    def _claim_ticket(self, held_ids: list[int]) -> TicketRow | None:
        request = self._build_claim_request(held_ids)
        agent = self.outbox.agent
        ticket = self._connection.call(lambda: self._store.take_ticket(self._study.id, agent, request))
        if ticket is not None:
            # a paused study gives none: it was resumed, and a server's cache may not know that yet
            self.cache.state = "running"
        return ticket

    def _begin_run(self, ticket: TicketRow) -> TicketRow | None:
        """Sample the parameters of a ticket and begin its run; return None if the search ends before it."""
        if self.cache.arms.pending_dependencies(ticket):
            # with many agents, reading the parameters of the others' tickets is cheaper than sampling them
            # again
            self._connection.call(self.cache.refresh, reads=True)
        while reason := self._find_convergence_reason(ticket):
            if self._end_search(reason, before=ticket):
                return None
            # more tickets have been requested
            self._reload()
        arms = self.cache.arms
        sampled_params = arms.ask(ticket)
        parameters = self._spec.parameters(ticket.arm, sampled_params)  # type: ignore[arg-type]
        trial = arms.trial(sampled_params) if ticket.kind == "search" else None
        number = self._connection.call(
            lambda: self._store.begin(ticket.id, ticket.attempt, parameters, sampled_params, trial)
        )
        return dataclasses.replace(ticket, parameters=parameters, sampled=sampled_params, trial_number=number)

    def _find_convergence_reason(self, ticket: TicketRow) -> str | None:
        """Return why neither this ticket nor the later ones are worth training, None if they may be."""
        if self._spec.study.limits.standard_errors is None or ticket.kind != "search" or ticket.round:
            # trials that the user requested after a verdict are always trained
            return None
        search = self.cache.tickets_of_kind("search")
        unbegun_rows = [row for row in search if row.parameters is None and row.round == ticket.round]
        if any(
            t.sampled is not None and t.number >= ticket.number and not is_terminal(t) for t in unbegun_rows
        ):
            # enqueued parameters are always trained, too
            return None
        # another agent may end the search at an earlier ticket, or have done so: then it ends for all
        first_number = ticket.number - self._spec.study.parallel
        reasons = (
            find_convergence_reason(self._spec, row, self.cache.arms, num_left=len(search) - row.number)
            for row in unbegun_rows
            if first_number < row.number <= ticket.number and row.sampled is None
        )
        return next(filter(None, reasons), None)

    def reports(self, ticket: TicketRow) -> dict[int, float]:
        """Return the reports of earlier attempts of a ticket, step to value."""
        if ticket.attempt == 1:
            return {}
        measurements = self._connection.call(
            lambda: self._store.measurements(self._study.id, [ticket.id], names=["report"])
        )
        return reports_by_ticket(measurements).get(ticket.id, {})

    def _end_search(self, reason: str, *, before: TicketRow | None = None) -> bool:
        """Withdraw the waiting tickets, and return whether that was done; not if the tickets have changed.

        Args:
            before: The first ticket to withdraw, which this agent has claimed; None: all waiting tickets.
        """
        id, version = self._study.id, self.cache.version
        if before is None:
            self._connection.call(lambda: self._store.withdraw(id, SEARCH_KINDS))
        elif self._connection.call(lambda: self._store.withdraw_from(before, version=version)) is None:
            return False
        self._observer.note(reason)
        self._reload()
        return True

    def _find_stop_reason(self) -> str | None:
        return find_stop_reason(self._spec, self.cache, workers=self._workers)

    def is_finished(self) -> bool:
        """Open the next stage if there is one, and return whether nothing is left to do, now and later."""
        if not self.cache.is_finished() or len(self.outbox):
            return False
        # tickets that are over for all agents stay over, but more may have been requested
        self._reload()
        if not self.cache.is_finished():
            return False
        id, version = self._study.id, self.cache.version
        new_tickets = next_tickets(list(self.cache.tickets.values()), self._spec, self.cache.arms.recommend)
        if not new_tickets and self._connection.call(
            lambda: self._store.set_state(id, "done", version=version)
        ):
            self._connection.call(self._write_recommendation)
            return True
        if new_tickets:
            self._connection.call(lambda: self._store.add_tickets(id, new_tickets, version=version))
        self._reload()
        return False

    def _write_recommendation(self) -> None:
        """Write the recommendation of the verdict into Optuna's study."""
        result = load(self._store, self._study.name)
        decision = decide(result)
        if decision is not None and result.recommendation is not None:
            advice = result.recommendation
            recommendation = {
                "headline": decision.headline,
                "action": advice.action_without_training,
                "params": advice.params,
                "at_inference": advice.at_inference,
            }
            self._store.set_recommendation(self._study.name, recommendation)

    def _reload(self) -> None:
        """Read all tickets again, after delivering the queued changes."""
        if len(self.outbox):
            self._deliver()
        self._connection.call(self.cache.read, reads=True)
