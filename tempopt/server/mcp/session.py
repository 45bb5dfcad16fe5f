"""A session: one store, one user and a budget; begins studies within it, and has them trained.

On a database an agent of this machine trains, which leaves when the session ends; behind a server its agents
do. What is begun, read and decided is so by the functions that the command line calls.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

from tempopt.agent.observer import NullObserver
from tempopt.agent.study_creation import ensure_study_exists
from tempopt.agent.study_lookup import find_study
from tempopt.agent.study_runner import validate_sampler_and_pruner
from tempopt.errors import AccessDenied, StorageError, StudyFailed, UsageError
from tempopt.launch.local import LocalLauncher
from tempopt.launch.study_launch import StudyLaunch
from tempopt.server.mcp.budget import Budget, BudgetNeed, Ledger, most_runs
from tempopt.service import lifecycle, remote_study
from tempopt.service.extend import extend_for_search
from tempopt.service.forecast import StudyForecast, forecast_study
from tempopt.service.lifecycle import StopResult
from tempopt.service.requests import SearchRequest
from tempopt.spec.custom_schedules import import_schedules
from tempopt.spec.resources import Workers
from tempopt.spec.study_spec import StudySpec
from tempopt.storage import checkpoints
from tempopt.storage.opening import as_remote_store, open_store
from tempopt.storage.rows import StudyRow, StudyStanding
from tempopt.verdict.set_comparison import check_comparison

LOOK_SECONDS = 2.0
"""Seconds between two looks at what running studies have spent."""
_MARGIN, _LEAST_HOURS = 3.0, 0.1
"""A study is allowed so many times what its dry run foretells, and so many GPU-hours at least, if left.

Short runs take longer than foretold where a machine is busy, and a study that is allowed too little ends its
search early.
"""
_TRIES, _PAUSE_SECONDS = 6, 0.5


class Notes(NullObserver):
    """Keeps what there is to say of a study while it is begun."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, text: str) -> None:
        """Add a line."""
        self.lines.append(text)


class Session:
    """The studies of one store within a budget; threads may share it. Close it, or use it in ``with``.

    Args:
        storage: URL of a database, which is created if it is not there, or of a server.
        user: Whose studies are begun, and whose spending counts; behind a server it has to be None: there it
            is the one that the token stands for.
        budget: What may be spent.
        workers: Trials side by side on this machine; None: as the spec says. Behind a server none.

    Raises:
        UsageError: A user was given for a server.
        AccessDenied: The server does not know the token.
    """

    def __init__(
        self, storage: str, *, user: str | None, budget: Budget, workers: Workers | None = None
    ) -> None:
        self.store = open_store(storage, create=True)
        try:
            self._server = as_remote_store(self.store)
            self._me: Mapping[str, Any] = {}
            if self._server is not None:
                if user is not None or workers is not None:
                    raise UsageError(
                        "Behind a server the user is whom the token stands for, and the server's agents "
                        "train. Take --user and --workers out."
                    )
                self._me = self._server.server.get("/api/me")
                user = self._me["user"]
            self.ledger = Ledger(self.store, user or "mcp", budget)
        except BaseException:
            self.store.close()
            raise
        self._workers = workers
        self._launcher = LocalLauncher({})
        self._launches: dict[str, StudyLaunch] = {}
        self._beginning = threading.Lock()
        self._closing = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    @property
    def _may_submit(self) -> bool:
        return self._server is None or "submit" in self._me["scopes"]

    @property
    def user(self) -> str:
        """Whose studies are begun."""
        return self.ledger.user

    def close(self) -> None:
        """Make the agents of this session save their runs and leave, and close the store."""
        self._closing.set()
        self._watcher.join()
        self._launcher.close()
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # ---- begin

    def begin(self, spec: StudySpec, *, max_runs: int | None = None) -> list[str]:
        """Begin a study or a comparison, or continue it, and return at once what there is to say of it.

        Args:
            spec: Its spec.
            max_runs: Most runs that a comparison may take; None: as many as it needs.

        Raises:
            AccessDenied: The token may not begin studies, or none of that name.
            SpecError: The spec cannot be carried out.
            StudyChanged: The store has a study of that name that asks something else.
            UsageError: It could exceed the budget, or the study is another user's.
        """
        self._check_token(spec.study.name)
        notes = Notes()
        import_schedules(spec)
        if spec.compare is not None:
            check_comparison(spec, max_runs)
        validate_sampler_and_pruner(spec)
        with self._beginning:
            study = find_study(self.store, spec.study.name)
            if study is not None:
                self._go_on(spec, study, notes)
            else:
                self._begin_new(spec, notes)
        return notes.lines

    def plan(self, spec: StudySpec) -> StudyForecast:
        """Return what a study takes and what it can show; arguments as for :meth:`begin`."""
        import_schedules(spec)
        validate_sampler_and_pruner(spec)
        return forecast_study(spec, storage=self.store.url)

    def refusal(self, spec: StudySpec, forecast: StudyForecast) -> str | None:
        """Return why a study could not be begun by this session, given its forecast; None: it could."""
        try:
            self._check_token(spec.study.name)
            self.ledger.budget_status().check(_need(spec, forecast), name=spec.study.name)
        except UsageError as error:
            return str(error)
        return None

    def _estimate_need(self, spec: StudySpec) -> BudgetNeed:
        """Return the most that a study takes, measured by a dry run where GPU-hours are limited."""
        if not self.ledger.counts_hours():
            return BudgetNeed(runs=most_runs(spec))
        return _need(spec, forecast_study(spec, storage=self.store.url, workers=self._workers))

    def _begin_new(self, spec: StudySpec, notes: Notes) -> None:
        name = spec.study.name
        is_limited = self.ledger.is_limited()
        if is_limited:
            # what is refused whatever a run takes is refused before one is tried
            min_need = BudgetNeed(runs=most_runs(spec), gpu_hours=0.0)
            self.ledger.budget_status().check(min_need, name=name)
            need = self._estimate_need(spec)
            usage = self.ledger.budget_status()
            usage.check(need, name=name)
            spec = _limit_hours(spec, need, None if usage.gpu_hours is None else usage.gpu_hours.remaining)
        if self._server is not None:
            remote_study.submit(self._server, SearchRequest(spec=spec), observer=notes)
        else:
            self._stand(spec, notes)
        if is_limited:
            self._settle(spec)
        if self._server is None:
            self._launch(spec, self.store.load_study(name), notes)

    def _stand(self, spec: StudySpec, notes: Notes) -> None:
        """Write a new study into the database, after a dry run, for agents that are started next."""
        spec, _ = extend_for_search(self.store, SearchRequest(spec=spec))
        spec = remote_study.dry_run_locally(spec, notes)
        checkpoints_url = checkpoints.normalize_checkpoint_url(checkpoints.DEFAULT_FOLDER)
        ensure_study_exists(
            self.store, spec, None, checkpoints=checkpoints_url, owner=self.user, on_note=notes.note
        )

    def _settle(self, spec: StudySpec) -> None:
        """Take a study back that another session's has left no room for meanwhile.

        A look after both were written sees both. The later one yields at once, so that the earlier
        one finds room when it looks again.
        """
        name = spec.study.name
        for attempt in range(_TRIES):
            usage = self.ledger.budget_status()
            if not any(limit.is_exceeded for limit in usage.limits):
                return
            study_id = self.store.load_study(name).id
            has_later = any(
                account.study.id > study_id and account.study.state != "done" for account in usage.accounts
            )
            if not has_later or attempt == _TRIES - 1:
                break
            time.sleep(_PAUSE_SECONDS)
        lifecycle.delete(self.store, name, force=True)
        usage_text = " ".join(limit.text for limit in self.ledger.budget_status().limits)
        raise UsageError(
            f'The study "{name}" would exceed the budget of {self.user}: another session has begun a study '
            f"at the same moment. {usage_text}"
        )

    def _go_on(self, spec: StudySpec, study: StudyRow, notes: Notes) -> None:
        if study.owner != self.user:
            raise UsageError(
                f'The study "{study.name}" was begun by {study.owner or "another user"}, and this session '
                f"spends the budget of {self.user}. Look at it with show, or give yours another name."
            )
        # what was reserved when it was begun holds, whatever the spec says of its care
        spec = _with_limits(spec, study.spec["study"]["limits"])
        if study.state != "done" and self.ledger.is_limited() and (spent := self._spent_budget_texts(study)):
            raise UsageError(
                f'The study "{study.name}" cannot continue within the budget of {self.user}. '
                f"{' '.join(spent)} Ask a person for a larger budget."
            )
        if self._server is not None:
            remote_study.submit(self._server, SearchRequest(spec=spec), observer=notes)
            return
        spec, _ = extend_for_search(self.store, SearchRequest(spec=spec), on_note=notes.note)
        if study.state != "done":
            self._launch(spec, study, notes)

    def _launch(self, spec: StudySpec, study: StudyRow, notes: Notes) -> None:
        """Start an agent of this machine for a study, unless one of this session is at work on it."""
        name = study.name
        if self.is_working_on(name):
            notes.note("An agent of this session is at work on it.")
            return
        launch = StudyLaunch(self._launcher, "local", self.store, spec, workers=self._workers)
        notes.lines += launch.start(study, None, checkpoints_at=None, overrides=spec.local_overrides)
        self._launches[name] = launch
        notes.note("They leave when this session ends; call the tool again to continue the study.")

    def _check_token(self, name: str) -> None:
        """Refuse to begin a study that a server would refuse, before anything is tried for it."""
        self._check_scope()
        prefix = self._me.get("prefix", "")
        if not name.startswith(prefix):
            raise AccessDenied(
                f'The token of {self._me["name"]} is for studies whose names begin with "{prefix}", and this '
                f'one is "{name}". Give it such a name: study.name of the spec, or name of a comparison.'
            )

    def _check_scope(self) -> None:
        if not self._may_submit:
            raise AccessDenied(
                f"The token of {self._me['name']} may {', '.join(self._me['scopes'])}, and beginning or "
                "stopping a study takes the scope submit. Ask for a token with it: tempopt token create "
                "--scope submit"
            )

    # ---- look, and end

    def stop(self, name: str) -> StopResult:
        """End the search of a study of this user, so that what was found is confirmed.

        Raises:
            StudyNotFound: There is no study of that name.
            UsageError: It is another user's.
        """
        self._check_scope()
        study = self.store.load_study(name)
        if study.owner != self.user:
            raise UsageError(
                f'The study "{name}" was begun by {study.owner or "another user"}, and this session stops '
                f"those of {self.user} alone. A person may: tempopt stop {name}"
            )
        return lifecycle.stop(self.store, name)

    def find_blockers(self, name: str, stands: StudyStanding) -> list[str]:
        """Return what keeps a study from going on, as far as it is known here.

        Args:
            name: Its name.
            stands: How it stands.
        """
        launch = self._launches.get(name)
        troubles = [] if launch is None else [f"An agent has failed: {error}" for error in launch.errors()]
        if stands == "waiting" and self._server is not None:
            troubles.append("It waits for an agent: tempopt agent --any, with the URL of the server.")
        if stands == "paused":
            troubles += self._spent_budget_texts(self.store.load_study(name))
        return troubles

    def _spent_budget_texts(self, study: StudyRow) -> list[str]:
        """Return a sentence on each limit that a study of this user has used up."""
        if study.owner != self.user:
            return []
        usage = self.ledger.budget_status()
        return [
            f"It has used {account.gpu_hours:.4g} of the {account.most_gpu_hours:.4g} GPU-hours that were "
            "reserved for it."
            for account in usage.accounts
            if account.study.id == study.id and account.used_up
        ] + [limit.text for limit in usage.spent_limits]

    def is_working_on(self, name: str) -> bool:
        """Return whether an agent of this session is at work on a study, or about to be."""
        launch = self._launches.get(name)
        return launch is not None and bool(launch.unended_job_ids())

    # ---- while studies run

    def _watch(self) -> None:
        if not self._may_submit:
            # it has begun nothing, and could pause nothing
            return
        while not self._closing.wait(LOOK_SECONDS):
            # a store that is away for a while serves no agents either; a token may be replaced by a new one
            with contextlib.suppress(StorageError, StudyFailed, AccessDenied):
                if self._any_runs() and self.ledger.counts_hours():
                    for name in self._overspent():
                        lifecycle.pause(self.store, name)

    def _any_runs(self) -> bool:
        """Return whether any study of this user runs: all that it has ever trained is read only then."""
        rows = (summary.study for summary in self.store.list_studies())
        return any(row.owner == self.user and row.state == "running" for row in rows)

    def _overspent(self) -> Iterator[str]:
        """Yield the studies that run and have used what they, or all of them, are allowed."""
        usage = self.ledger.budget_status()
        for account in usage.accounts:
            is_spent = account.used_up or usage.gpu_hours in usage.spent_limits
            if account.study.state == "running" and is_spent:
                yield account.study.name


def _need(spec: StudySpec, forecast: StudyForecast) -> BudgetNeed:
    """Return the most that a study takes, by its forecast and its own limit."""
    hours = forecast.max_gpu_hours
    limit = spec.study.limits.gpu_hours
    if hours is None:
        # how long a program runs is not known, and the study is paused at its limit
        hours = limit
    elif limit is not None and spec.compare is None:
        # the search ends in time for what proves it
        hours = min(hours, limit)
    return BudgetNeed(runs=most_runs(spec), gpu_hours=hours)


def _limit_hours(spec: StudySpec, need: BudgetNeed, gpu_hours_left: float | None) -> StudySpec:
    """Return the spec with the limit of GPU-hours that the budget reserves for the study."""
    if gpu_hours_left is None or need.gpu_hours is None:
        return spec
    max_gpu_hours = min(gpu_hours_left, max(_MARGIN * need.gpu_hours, _LEAST_HOURS))
    limit = spec.study.limits.gpu_hours
    if limit is not None and spec.compare is None:
        max_gpu_hours = min(max_gpu_hours, limit)
    return _with_limits(spec, {**spec.study.limits.model_dump(), "gpu_hours": max_gpu_hours})


def _with_limits(spec: StudySpec, limits: Mapping[str, Any]) -> StudySpec:
    overrides: Sequence[str] = [f"study.limits.{name}={json.dumps(value)}" for name, value in limits.items()]
    return spec.with_overrides(overrides)
