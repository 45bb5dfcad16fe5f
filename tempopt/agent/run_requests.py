"""What an agent has a worker do for a ticket: the run's request, with all that it is to know."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from tempopt.agent.study_cache import StudyCache
from tempopt.spec.program import Program
from tempopt.spec.study_spec import StudySpec
from tempopt.storage.checkpoints import join, run_name
from tempopt.storage.rows import StudyRow, TicketRow
from tempopt.storage.ticket_queries import arms_of
from tempopt.training.messages import CheckpointRef, RunLabel, RunRequest
from tempopt.verdict.run_evaluations import OBSERVED, evaluations


class RunRequestBuilder:
    """Makes the requests of one agent.

    Args:
        spec: The study's spec.
        program: What workers train; None: what the spec says.
        study: The study's row.
        cache: The tickets, as far as the agent knows.
        folder: Local folder for logs, one subfolder per ticket.
        checkpoints: URL of the folder for checkpoints, one subfolder per ticket.
    """

    def __init__(
        self,
        *,
        spec: StudySpec,
        program: Program | None,
        study: StudyRow,
        cache: StudyCache,
        folder: Path,
        checkpoints: str,
    ) -> None:
        self._spec = spec
        self._program = program
        self._study = study
        self._cache = cache
        self._folder = folder
        self._checkpoints = checkpoints

    def folder(self, ticket: TicketRow) -> Path:
        """Return the local folder of a ticket."""
        return self._folder / run_name(ticket.kind, ticket.number)

    def build(self, ticket: TicketRow, memory_share: float | None = None) -> RunRequest:
        """Return what a worker is to do with a ticket that has its parameters.

        Args:
            memory_share: Share of its card's memory that the run may take; None: all of it.
        """
        assert ticket.parameters is not None
        if self._program is None:
            self._program = self._spec.program()
        cache, spec, study = self._cache, self._spec, self._study
        winner = cache.winner(ticket.round) if ticket.kind == "confirm" else {}
        folder, created = self.folder(ticket), study.created.isoformat()
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
            checkpoints=join(self._checkpoints, folder.name),
            checkpoint_every=spec.study.checkpoint_every,
            resume=[CheckpointRef(**dataclasses.asdict(checkpoint)) for checkpoint in ticket.checkpoints],
            memory_share=memory_share,
            observe=is_observed,
            # maps are large: those of one pair show what there is to see
            maps=is_observed and ticket.pair == 0,
            label=RunLabel(
                study=study.name, study_created_at=created, run=folder.name, kind=ticket.kind, arm=ticket.arm
            ),
        )
