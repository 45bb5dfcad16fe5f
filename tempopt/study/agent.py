"""The agent: asks for parameters, has them trained, reports what comes back and tells Optuna.

It trains nothing itself and decides nothing by the clock: what a ticket gets and whether it is pruned
follow from the study's seed and the results that the ticket may know (history.py).
"""

from __future__ import annotations

import dataclasses
import os
import socket
import time
from collections.abc import Sequence
from multiprocessing.connection import wait
from pathlib import Path

from optuna.trial import TrialState

from tempopt.errors import SpecError, StudyFailed
from tempopt.store.rows import KINDS, Kind, Measurement, Outcome, Outcomes, StudyRow, StudyState, TicketRow
from tempopt.store.store import Store
from tempopt.study.arms import Arms
from tempopt.study.assignment import Assignment
from tempopt.study.confirm import choose_tickets, confirm_tickets, counted, evaluations, finished, winner_of
from tempopt.study.interrupt import Interrupt, interruptible
from tempopt.study.progress import Observer, Snapshot
from tempopt.study.spec import StudySpec
from tempopt.study.trials import Trials
from tempopt.temperature import TEMPERATURE_PARAMETERS
from tempopt.training.messages import (
    Failed,
    Finished,
    Message,
    Program,
    Progress,
    Report,
    RunRequest,
    Started,
    Stop,
)
from tempopt.training.process import TrainerProcess

_STATES: dict[Outcome, TrialState] = {
    "complete": TrialState.COMPLETE,
    "pruned": TrialState.PRUNED,
    # to samplers a diverged run is one that did badly, not one to be tried again
    "diverged": TrialState.PRUNED,
    "failed": TrialState.FAIL,
}
_STILLBORN = 3


class Agent:
    """Carries a study through with the trainers it is given.

    Args:
        spec: The study's spec.
        program: What trainers train.
        study: The study's row.
        store: Where tickets and measurements are.
        trials: Optuna's record.
        trainers: Warm trainers, one run each at a time.
        folder: Folder for checkpoints and logs, one subfolder per ticket.
        threads: CPU threads of a trainer that has to be started again.
        observer: Who looks on.
    """

    def __init__(
        self,
        *,
        spec: StudySpec,
        program: Program,
        study: StudyRow,
        store: Store,
        trials: Trials,
        trainers: Sequence[TrainerProcess],
        folder: Path,
        threads: int,
        observer: Observer,
    ) -> None:
        self._spec = spec
        self._program = program
        self._study = study
        self._store = store
        self._trials = trials
        self._work = [Assignment(trainer=trainer) for trainer in trainers]
        self._folder = folder
        self._threads = threads
        self._observer = observer
        self._name = f"{socket.gethostname()}:{os.getpid()}"
        self._tickets = {t.id: t for t in store.tickets(study.id)}
        self._arms = Arms(
            spec, self._tickets.values(), trials, store.measurements(study.id, names=["report"])
        )
        self._clock = time.monotonic()
        self._deaths = 0
        self._losses = 0
        self._codes = {ticket.code for ticket in self._tickets.values() if ticket.code is not None}
        for ticket in self._tickets.values():
            if ticket.kind == "search" and ticket.state == "failed" and trials.of_ticket(ticket.id):
                trials.end(ticket.id, TrialState.FAIL, None, {})

    def run(self) -> None:
        """Work until every ticket of every stage is over.

        Raises:
            StudyFailed: Nothing can be trained, or trainers die before they begin.
            KeyboardInterrupt: Passed on, after the tickets in work were given back.
        """
        state: StudyState = "paused"
        with interruptible() as interrupt:
            self._store.set_state(self._study.id, "running")
            try:
                self._work_on(interrupt)
                state = "done"
            finally:
                self._store.release_agent(self._study.id, self._name)
                self._store.set_state(self._study.id, state)
        self._look()

    def _work_on(self, interrupt: Interrupt) -> None:
        while True:
            self._open_stage()
            self._assign()
            if not any(work.ticket for work in self._work):
                return
            self._look()
            self._listen(interrupt)

    @property
    def trainers(self) -> list[TrainerProcess]:
        """The trainers that are alive now."""
        return [work.trainer for work in self._work]

    def _open_stage(self) -> None:
        tickets = list(self._tickets.values())
        if not finished(tickets):
            return
        kinds = {ticket.kind for ticket in tickets}
        new = []
        if "choose" not in kinds and "confirm" not in kinds:
            new = choose_tickets(tickets, self._spec)
        if not new and "confirm" not in kinds:
            new = confirm_tickets(tickets, self._spec)
        if new:
            self._store.add_tickets(self._study.id, new)
            self._tickets = {t.id: t for t in self._store.tickets(self._study.id)}

    def _assign(self) -> None:
        for work in self._work:
            while work.ticket is None and (kind := self._startable()) is not None:
                ticket = self._store.take_ticket(self._study.id, self._name, kinds=[kind])
                if ticket is None:
                    return
                self._begin(work, ticket)

    def _startable(self) -> Kind | None:
        for kind in KINDS:
            waiting = [t.number for t in self._tickets.values() if t.kind == kind and t.state == "waiting"]
            if waiting:
                return kind if self._arms.ready(kind, min(waiting)) else None
        return None

    def _begin(self, work: Assignment, ticket: TicketRow) -> None:
        if ticket.parameters is None:
            parameters, number = self._arms.ask(ticket)
            self._store.set_parameters(ticket.id, ticket.attempt, parameters, number)
            ticket = dataclasses.replace(ticket, parameters=parameters, trial_number=number)
        self._tickets[ticket.id] = ticket
        work.ticket, work.step, work.total_steps, work.pruned = ticket, 0, ticket.total_steps, False
        work.reports = self._arms.reports(ticket.id)
        if self._pruned_before(work, ticket):
            work.pruned = True
            self._end(work, "pruned", step=max(work.reports), seconds=0.0)
            return
        work.trainer.send(self._request(ticket))

    def _pruned_before(self, work: Assignment, ticket: TicketRow) -> bool:
        # an agent that died between a pruning decision and its record decided the same way
        steps = sorted(step for step in work.reports if step != ticket.total_steps)
        return any(
            self._arms.prune(ticket, {s: work.reports[s] for s in steps[: end + 1]})
            for end in range(len(steps))
        )

    def _request(self, ticket: TicketRow) -> RunRequest:
        winner = winner_of(list(self._tickets.values()), self._spec) or {}
        measured = evaluations(ticket.kind, ticket.arm, self._spec, winner)
        bake = {n: v for n, v in winner.items() if n in TEMPERATURE_PARAMETERS}
        assert ticket.parameters is not None
        return RunRequest(
            ticket=ticket.id,
            attempt=ticket.attempt,
            program=self._program,
            parameters=ticket.parameters,
            seed=ticket.seed,
            evaluations=measured,
            bake=bake if ticket.kind == "init_only" else None,
            folder=str(self._folder_of(ticket)),
            resume=ticket.attempt > 1,
        )

    def _folder_of(self, ticket: TicketRow) -> Path:
        return self._folder / f"{ticket.kind}-{ticket.number:04d}"

    def _listen(self, interrupt: Interrupt) -> None:
        by_connection = {work.trainer.connection: work for work in self._work}
        for ready in wait([interrupt.wake, *by_connection], timeout=1.0):
            if interrupt.asked:
                raise KeyboardInterrupt
            work = by_connection[ready]  # type: ignore[index]
            message = work.trainer.receive()
            if message is None:
                self._died(work)
            else:
                self._deaths = 0
                self._handle(work, message)

    def _handle(self, work: Assignment, message: Message) -> None:
        assert isinstance(message, Started | Progress | Report | Finished | Failed)
        if not work.concerns(message.ticket, message.attempt):
            return
        match message:
            case Started():
                self._started(work, message)
            case Progress():
                work.step = message.step
            case Report():
                self._reported(work, message.step, message.value)
            case Finished():
                self._finished(work, message)
            case Failed():
                self._failed(work, message)

    def _started(self, work: Assignment, message: Started) -> None:
        work.step, work.total_steps = message.step, message.total_steps
        self._store.set_run(
            message.ticket, message.attempt, total_steps=message.total_steps, code=message.code
        )
        if self._codes and message.code not in self._codes:
            self._observer.note(
                "The code, or a package it uses, has changed since this study began: it has runs of both."
            )
        self._codes.add(message.code)
        # a run that starts again before its last report will report those steps once more
        known, work.reports = work.reports, {}
        for step, value in message.reports:
            if int(step) in known:
                work.reports[int(step)] = value
                if self._tickets[message.ticket].kind == "search":
                    self._trials.report(message.ticket, int(step), value)
            else:
                self._reported(work, int(step), value)

    def _reported(self, work: Assignment, step: int, value: float) -> None:
        ticket = work.ticket
        assert ticket is not None
        if work.pruned:
            return
        work.step = step
        work.reports[step] = value
        report = Measurement(ticket_id=ticket.id, step=step, name="report", value=value)
        self._store.record(ticket.id, ticket.attempt, [report])
        if ticket.kind == "search":
            self._trials.report(ticket.id, step, value)
        if step != work.total_steps and self._arms.prune(ticket, work.reports):
            work.pruned = True
            work.trainer.send(Stop(ticket=ticket.id, attempt=ticket.attempt))

    def _finished(self, work: Assignment, message: Finished) -> None:
        ticket = work.ticket
        assert ticket is not None
        if work.pruned:
            self._end(work, "pruned", step=message.step, seconds=message.seconds)
        elif message.state == "diverged":
            self._end(work, "diverged", step=message.step, seconds=message.seconds)
        else:
            assert message.state == "complete", "a trainer stopped a run that nobody stopped"
            measured = [
                Measurement(ticket_id=ticket.id, step=message.step, name=name, value=value)
                for name, value in message.measurements.items()
            ]
            self._end(work, "complete", step=message.step, seconds=message.seconds, measured=measured)

    def _end(
        self,
        work: Assignment,
        outcome: Outcome,
        *,
        step: int,
        seconds: float,
        measured: Sequence[Measurement] = (),
    ) -> None:
        ticket = work.ticket
        assert ticket is not None
        self._losses = 0
        value = next(reversed(work.reports.values()), None) if outcome == "pruned" else None
        if outcome == "complete":
            value = next(m.value for m in measured if m.name == counted(ticket.kind, self._spec))
        outcomes = Outcomes(
            outcome=outcome,
            value=value,
            steps=step,
            seconds=seconds,
            diverged_at=step if outcome == "diverged" else None,
            measurements=list(measured),
        )
        if ticket.kind == "search":
            attrs = {"diverged_at": step} if outcome == "diverged" else {}
            self._trials.end(ticket.id, _STATES[outcome], None if outcome == "diverged" else value, attrs)
        self._store.finish(ticket.id, ticket.attempt, outcomes)
        self._over(
            work,
            dataclasses.replace(
                ticket,
                state="done",
                outcome=outcome,
                value=value,
                steps=step,
                total_steps=work.total_steps,
                seconds=ticket.seconds + seconds,
                diverged_at=outcomes.diverged_at,
            ),
        )

    def _over(self, work: Assignment, row: TicketRow) -> None:
        self._tickets[row.id] = row
        self._arms.told(row, work.reports)
        if row.state == "done":
            (self._folder_of(row) / "newest.ckpt").unlink(missing_ok=True)
        work.ticket = None
        self._observer.finished(row)

    def _failed(self, work: Assignment, message: Failed) -> None:
        ticket = work.ticket
        assert ticket is not None
        log = self._folder_of(ticket) / "log.txt"
        # init-only needs query weights to bake into; a study without them has a verdict all the same
        final = message.kind == "usage"
        if final and ticket.kind != "init_only":
            raise SpecError(message.message)
        self._lost(work, message.message, attempts=1 if final else self._spec.study.max_attempts)
        nothing_works = not any(t.state == "done" for t in self._tickets.values())
        if message.kind == "error" and nothing_works and self._tickets[ticket.id].state == "failed":
            raise StudyFailed(
                f"The training raises in every attempt: {message.message}\nThe traceback is in {log}."
            )

    def _lost(self, work: Assignment, why: str, *, attempts: int) -> None:
        ticket = work.ticket
        assert ticket is not None
        self._losses += 1
        if attempts > 1 and self._losses > attempts * len(self._work):
            raise StudyFailed(
                f"{self._losses} runs in a row were lost, the last one because {why}. Put that right, and go "
                f"on with what is left: tempopt resume {self._spec.study.name}"
            )
        state = self._store.fail(ticket.id, ticket.attempt, why, attempts)
        self._observer.note(f"{ticket.kind} {ticket.number}, attempt {ticket.attempt}: {why}")
        row = dataclasses.replace(ticket, state=state, error=why)
        if state == "waiting":
            self._tickets[row.id] = row
            work.ticket = None
            return
        if ticket.kind == "search":
            self._trials.end(ticket.id, TrialState.FAIL, None, {"error": why[:1000]})
        self._over(work, dataclasses.replace(row, outcome="failed"))

    def _died(self, work: Assignment) -> None:
        self._deaths += 1
        why = work.trainer.obituary()
        work.trainer.connection.close()
        if work.ticket is not None:
            self._lost(work, why, attempts=self._spec.study.max_attempts)
        if self._deaths > _STILLBORN * len(self._work):
            raise StudyFailed(
                f"Trainers die before they have said a word: {why}. Logs are in {self._folder}."
            )
        work.trainer = TrainerProcess(slot=work.trainer.slot, threads=self._threads)

    def _look(self) -> None:
        tickets = self._tickets.values()
        over = [t for t in tickets if t.state in ("done", "failed")]
        best = self._arms.best()
        units = [
            t.value for t in over if t.kind == "unit" and t.outcome == "complete" and t.value is not None
        ]
        self._observer.update(
            Snapshot(
                study=self._spec.study.name,
                metric=self._spec.study.metric,
                direction=self._spec.study.direction,
                stage=next((w.ticket.kind for w in self._work if w.ticket is not None), None),
                done={kind: sum(t.kind == kind for t in over) for kind in KINDS},
                asked={kind: sum(t.kind == kind for t in tickets) for kind in KINDS},
                best=best.value if best is not None else None,
                best_params=dict(best.parameters or {}) if best is not None else {},
                baseline_mean=sum(units) / len(units) if units else None,
                trainers=[work.view() for work in self._work],
                elapsed=time.monotonic() - self._clock,
                remaining=self._remaining(over),
            )
        )

    def _remaining(self, over: Sequence[TicketRow]) -> float | None:
        trained = [t.seconds for t in over if t.outcome == "complete"]
        if not trained:
            return None
        left = sum(t.state in ("waiting", "running") for t in self._tickets.values()) + self._to_come()
        return left * sum(trained) / len(trained) / len(self._work)

    def _to_come(self) -> int:
        kinds = {ticket.kind for ticket in self._tickets.values()}
        study = self._spec.study
        if study.evaluate_only is not None or "confirm" in kinds:
            return 0
        confirm = 4 * study.seeds.confirm
        return confirm if "choose" in kinds else confirm + 2 * study.candidates * study.seeds.choose
