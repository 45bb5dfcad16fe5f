"""One agent's errand: a study taken from where it stands to where this agent leaves it.

Puts the rooms together: spec, store, trainers and agent; each decision is made elsewhere.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Literal

from tempopt.errors import (
    SpecError,
    StorageError,
    StudyChanged,
    StudyFailed,
    StudyNotFound,
    TempoptError,
    UsageError,
)
from tempopt.store.checkpoints import DEFAULT_FOLDER, is_local, join, location
from tempopt.store.rows import StudyRow
from tempopt.store.store import Store
from tempopt.study.agent import Agent
from tempopt.study.confirm import evaluations
from tempopt.study.interrupt import terminable
from tempopt.study.optimizers import make_pruner, make_sampler
from tempopt.study.progress import Observer
from tempopt.study.results import StudyResult, load
from tempopt.study.settings import Workers
from tempopt.study.spec import StudySpec, diff
from tempopt.study.stages import first_tickets
from tempopt.study.trials import make_study
from tempopt.study.warm_start import remembered
from tempopt.training.claims import claimed
from tempopt.training.machine import Machine, this_machine
from tempopt.training.messages import Failed, Finished, RunRequest, Started
from tempopt.training.places import Place, count_trainers, deal
from tempopt.training.process import TrainerProcess
from tempopt.training.secrets import refuse_secrets
from tempopt.training.seeds import derive


class Errand:
    """One agent's work on one study, from the trainers' start to the result.

    Args:
        store: Where the study is, or will be.
        spec: Its spec.
        study: Its row; None if it is to be begun.
        workers: As for :func:`search`.
        checkpoints: As for :func:`search`.
        observer: Who looks on.
        wake: Whether a study that was paused goes on; False: it is left at rest.
    """

    def __init__(
        self,
        store: Store,
        spec: StudySpec,
        study: StudyRow | None,
        workers: Workers | None,
        checkpoints: str | Path | None,
        observer: Observer,
        *,
        wake: bool = True,
    ) -> None:
        self._store = store
        self._spec = spec
        self._study = study
        self._wake = wake
        self._observer = observer
        self._asked = workers_asked(workers, spec)
        self._checkpoints = self._kept_at(checkpoints)

    def carry_out(self) -> StudyResult:
        """Return the study's result when there is nothing left to do, or it was told to rest."""
        spec, store = self._spec, self._store
        optimizers(spec)
        program = spec.program()
        name = spec.study.name
        state = None if self._study is None else store.load_study(name).state
        if state == "done" or (state == "paused" and not self._wake):
            return load(store, name, whole=True)
        logs = self._checkpoints if is_local(self._checkpoints) else DEFAULT_FOLDER
        folder = _writable(Path(logs).absolute() / name)
        with terminable(), self._places() as places, trainers_of(places) as trainers:
            if self._study is not None and state != "running":
                store.set_state(self._study.id, "running")
            # on another machine than before, a class may not be there; better seen before a ticket is taken
            rehearse(spec, trainers[0], task="rehearse" if self._study is None else "check")
            self._register()
            study = self._study or self._begin()
            # every time, since whoever began the study may have died before it had its tickets
            store.add_tickets(study.id, first_tickets(spec))
            if study.checkpoints != self._checkpoints:
                store.set_checkpoints(study.id, self._checkpoints)
            agent = Agent(
                spec=spec,
                program=program,
                study=study,
                store=store,
                trainers=trainers,
                folder=folder,
                checkpoints=join(self._checkpoints, name),
                observer=self._observer,
            )
            try:
                agent.run()
            finally:
                trainers[:] = agent.trainers
        return load(store, name, whole=True)

    def _places(self) -> AbstractContextManager[list[Place]]:
        """Return where trainers train, on cards that are this agent's until the end of the context."""
        machine = this_machine()
        need = self._spec.need(gpus=machine.has_gpus)
        # one thread, whatever the machine: sums in another order would be other numbers
        threads = self._spec.resources_here.threads

        def dealt(free: Machine) -> list[Place]:
            count = count_trainers(need, free, asked=self._asked, most=self._spec.study.parallel)
            return deal(need, count, free, threads=threads)

        return claimed(machine, dealt)

    def _register(self) -> None:
        """Have Optuna's study made, if it is not there: somebody may have deleted it in a dashboard."""
        study = self._spec.study
        how = {"name": study.name, "direction": study.direction, "metric": study.metric}
        try:
            make_study(self._store.url, **how)
        except TempoptError:
            raise
        except Exception:
            # if the database is away, the store says so in words
            find(self._store, study.name)
            make_study(self._store.url, **how)

    def _begin(self) -> StudyRow:
        spec, store = self._spec, self._store
        for note in spec.notes:
            self._observer.note(note)
        kept = remembered(store, spec)
        for each in kept:
            self._observer.note(f"Begins with what {len(each['runs'])} runs of {each['name']} have shown.")
        try:
            return store.create_study(spec.study.name, spec.to_json(), spec.identity(), warm_start=kept)
        except StorageError:
            # somebody else has begun the same study at the same moment
            found = find(store, spec.study.name)
            if found is None:
                raise
            go_on_with(store, found, spec)
            return found

    def _kept_at(self, given: str | Path | None) -> str:
        kept = self._study.checkpoints if self._study is not None else None
        if given is None and kept is not None and (not is_local(kept) or Path(kept).is_dir()):
            return kept
        return location(given or DEFAULT_FOLDER)


def find(store: Store, name: str) -> StudyRow | None:
    """Return the study of that name, None if there is none."""
    try:
        return store.load_study(name)
    except StudyNotFound:
        return None


def go_on_with(store: Store, study: StudyRow, spec: StudySpec) -> None:
    """Refuse a spec that asks something else than the stored one does; what else it says is stored.

    Raises:
        StudyChanged: It asks something else.
    """
    stored = same_question(study, spec)
    counted, asked = (
        f"{each.num_unit} unit, {each.num_constant} constant and {each.study.trials} search tickets"
        for each in (stored, spec)
    )
    if counted != asked:
        raise StudyChanged(
            f'The store has a study "{study.name}" that was begun with {counted}, and {asked} are asked now. '
            f"Ask for as many; to add 10 search tickets: tempopt resume {study.name} --trials +10. "
            "Or give this one another name (--name)."
        )
    if spec.to_json() != stored.to_json():
        refuse_secrets(spec.trainer.get("logger"))
        store.set_spec(study.id, spec.to_json(), spec.identity())


def same_question(study: StudyRow, spec: StudySpec) -> StudySpec:
    """Return the stored spec of a study; it may say otherwise only how many runs there are and their care.

    Raises:
        StudyChanged: The given spec asks something else.
    """
    stored = StudySpec.from_json(study.spec)
    if changes := diff(stored, spec):
        listed = "\n".join(f"  {line}" for line in changes)
        raise StudyChanged(
            f'The store has a study "{study.name}" that was begun with another spec:\n{listed}\n'
            "Give this one another name (--name), or go on with that one: "
            f"tempopt resume {study.name}."
        )
    return stored


def optimizers(spec: StudySpec) -> None:
    """Refuse a sampler or pruner that cannot be made.

    Raises:
        SpecError: It does not take an option.
    """
    make_sampler(spec.study.sampler, seed=0)
    make_pruner(spec.study.pruner)


def _writable(folder: Path) -> Path:
    """Return a folder for logs, made and open to writing.

    Raises:
        UsageError: It cannot be made or written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        raise UsageError(
            f"Checkpoints and logs cannot be written to {folder}: {error.strerror}. "
            "Give a folder that can be, with --checkpoints."
        ) from error


def workers_asked(given: Workers | None, spec: StudySpec) -> int | None:
    """Return the number of trainers that was asked for, None for as many as there is room for.

    Args:
        given: What this command was given; None: what the spec says.

    Raises:
        UsageError: It is more than ``study.parallel`` allows.
    """
    wanted = given or spec.resources_here.workers
    if wanted is None or wanted == "auto":
        return None
    if not 1 <= wanted <= spec.study.parallel:
        raise UsageError(
            f"{wanted} workers were asked for; study.parallel allows 1 to {spec.study.parallel}, because a "
            "run may not depend on which of the others has finished first. Raise it in a new study."
        )
    return wanted


@contextlib.contextmanager
def trainers_of(places: Sequence[Place]) -> Iterator[list[TrainerProcess]]:
    trainers = [TrainerProcess(slot=slot, place=place) for slot, place in enumerate(places)]
    try:
        yield trainers
    finally:
        for trainer in trainers:
            trainer.kill()


def rehearse(
    spec: StudySpec, trainer: TrainerProcess, *, task: Literal["rehearse", "check"]
) -> Started | None:
    """Have a trainer try what the spec asks, before anything is written.

    Raises:
        SpecError: It cannot be carried out.
        StudyFailed: The trainer died over it.
    """
    probes = {name: list(domain.probes) for name, domain in spec.search.items()}
    sampled = {name: values[-1] for name, values in probes.items()}
    measured = evaluations("confirm", "search", spec, {}) if spec.confirms else []
    trainer.send(
        RunRequest(
            ticket=0,
            attempt=0,
            program=spec.program(),
            parameters=spec.parameters("search", sampled),
            seed=derive(spec.study.seed, task),
            evaluations=measured,
            task=task,
            space=probes,
        )
    )
    started: Started | None = None
    while (message := trainer.receive()) is not None:
        if isinstance(message, Failed):
            raise SpecError(_explained(message))
        if isinstance(message, Started):
            started = message
        if isinstance(message, Finished):
            return started
    raise StudyFailed(f"The rehearsal of two steps did not survive: {trainer.obituary()}.")


def _explained(failure: Failed) -> str:
    if failure.kind == "usage":
        return failure.message
    places = [line.strip() for line in failure.traceback.splitlines() if line.lstrip().startswith("File ")]
    # the person's own line, not that of the library it ends in
    own = [
        place for place in places if "site-packages" not in place and f"{os.sep}tempopt{os.sep}" not in place
    ]
    return "\n".join([f"The rehearsal of two steps ended in {failure.message}", *(own or places)[-1:]])
