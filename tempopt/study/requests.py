"""What an agent has a trainer do for a ticket: the run's request, with all that it is to know."""

from __future__ import annotations

from pathlib import Path

from tempopt.store.checkpoints import join, run_name
from tempopt.store.rows import StudyRow, TicketRow
from tempopt.study.assignment import Assignment
from tempopt.study.board import Board
from tempopt.study.confirm import OBSERVED, evaluations
from tempopt.study.forks import best_forks, saved
from tempopt.study.spec import StudySpec
from tempopt.temperature import TEMPERATURE_PARAMETERS
from tempopt.training.messages import Label, Program, RunRequest


class Requests:
    """Makes the requests of one agent.

    Args:
        spec: The study's spec.
        program: What trainers train.
        study: The study's row.
        board: The tickets, as far as the agent knows.
        folder: Local folder for logs, one subfolder per ticket.
        checkpoints: URL of the folder for checkpoints, one subfolder per ticket.
    """

    def __init__(
        self,
        *,
        spec: StudySpec,
        program: Program,
        study: StudyRow,
        board: Board,
        folder: Path,
        checkpoints: str,
    ) -> None:
        self._spec = spec
        self._program = program
        self._study = study
        self._board = board
        self._folder = folder
        self._checkpoints = checkpoints

    def folder(self, ticket: TicketRow) -> Path:
        """Return the local folder of a ticket."""
        return self._folder / run_name(ticket.kind, ticket.number)

    def of(self, work: Assignment) -> RunRequest:
        """Return what a trainer is to do with the ticket that it was given."""
        ticket = work.ticket
        assert ticket is not None and ticket.parameters is not None
        board, spec, study = self._board, self._spec, self._study
        winner = board.winner(ticket.round) if ticket.kind in ("confirm", "init_only") else {}
        bake = {n: v for n, v in winner.items() if n in TEMPERATURE_PARAMETERS}
        folder, begun = self.folder(ticket), study.created.isoformat()
        return RunRequest(
            ticket=ticket.id,
            attempt=ticket.attempt,
            program=self._program,
            parameters=ticket.parameters,
            seed=ticket.seed,
            evaluations=evaluations(ticket.kind, ticket.arm, spec, winner),
            bake=bake if ticket.kind == "init_only" else None,
            folder=str(folder),
            checkpoints=join(self._checkpoints, folder.name),
            checkpoint_every=spec.study.checkpoint_every,
            resume=[saved(each) for each in ticket.checkpoints],
            forks=best_forks(ticket, board.of_kind(ticket.kind), spec),
            memory_share=work.memory_share,
            observe=(ticket.kind, ticket.arm) in OBSERVED,
            label=Label(study=study.name, begun=begun, run=folder.name, kind=ticket.kind, arm=ticket.arm),
        )
