"""A session: a store, a user and a budget, within which studies are created and trained.

With a database, agents of this machine train and leave when the session ends; behind a server, its agents
train. Uses the functions of the command line.
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
"""Seconds between two checks of the costs of running studies."""
_MARGIN, _LEAST_HOURS = 3.0, 0.1
"""Factor on the GPU-hours of a forecast, and minimal GPU-hours of a study, if the budget has them.

Short runs take longer than forecast on a busy machine, and a study with too small a limit ends its search
early.
"""
_TRIES, _PAUSE_SECONDS = 6, 0.5


class Notes(NullObserver):
    """Observer that collects notes."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, text: str) -> None:
        """Add a line."""
        self.lines.append(text)


class Session:
    """The studies of one store within a budget; threads may share it. Close it, or use it in ``with``.

    Args:
        storage: URL of a database, which is created if it does not exist, or of a server.
        user: Owner of the studies, whose costs count; None behind a server, where it is the user of the
            token.
        budget: The limits.
        workers: Number of concurrent trials on this machine; None: that of the spec. None behind a server.

    Raises:
        UsageError: A user was given for a server.
        AccessDenied: The server does not accept the token.
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
                        "Behind a server the token determines the user, and the server's agents train. Leave "
                        "out --user and --workers."
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
        """Owner of the studies of this session."""
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
        """Create or continue a study or a comparison, and return notes on it at once.

        Args:
            spec: Its spec.
            max_runs: Maximal number of runs of a comparison; None: no limit.

        Raises:
            AccessDenied: The token may not create studies, or not of that name.
            SpecError: The spec cannot be trained.
            StudyChanged: The store has a different study of that name.
            UsageError: It could exceed the budget, or the study belongs to another user.
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
                self._continue_study(spec, study, notes)
            else:
                self._begin_new(spec, notes)
        return notes.lines

    def plan(self, spec: StudySpec) -> StudyForecast:
        """Return the forecast of a study; of one that exceeds the budget in runs no code is run."""
        fits = self._find_refusal(spec, self._min_need(spec)) is None
        return forecast_study(spec, storage=self.store.url, runs_code=fits)

    def refusal(self, spec: StudySpec, forecast: StudyForecast) -> str | None:
        """Return why this session could not begin a study with a forecast; None if it could."""
        return self._find_refusal(spec, self._min_need(spec)) or self._find_refusal(
            spec, _build_need(spec, forecast)
        )

    def _find_refusal(self, spec: StudySpec, need: BudgetNeed) -> str | None:
        try:
            self._check_token(spec.study.name)
            self.ledger.budget_status().check(need, name=spec.study.name)
        except UsageError as error:
            return str(error)
        return None

    @staticmethod
    def _min_need(spec: StudySpec) -> BudgetNeed:
        """Return the cost of a study as if its runs took no time."""
        return BudgetNeed(runs=most_runs(spec), gpu_hours=0.0)

    def _estimate_need(self, spec: StudySpec) -> BudgetNeed:
        """Return the maximal cost of a study, by a dry run if GPU-hours are limited."""
        if not self.ledger.counts_hours():
            return BudgetNeed(runs=most_runs(spec))
        return _build_need(spec, forecast_study(spec, storage=self.store.url, workers=self._workers))

    def _begin_new(self, spec: StudySpec, notes: Notes) -> None:
        name = spec.study.name
        is_limited = self.ledger.is_limited()
        if is_limited:
            # refuse before the dry run if the time of a run does not matter
            self.ledger.budget_status().check(self._min_need(spec), name=name)
            need = self._estimate_need(spec)
            usage = self.ledger.budget_status()
            usage.check(need, name=name)
            spec = _limit_hours(spec, need, None if usage.gpu_hours is None else usage.gpu_hours.remaining)
        if self._server is not None:
            remote_study.submit(self._server, SearchRequest(spec=spec), observer=notes)
        else:
            self._create_study(spec, notes)
        if is_limited:
            self._delete_if_over_budget(spec)
        if self._server is None:
            self._launch(spec, self.store.load_study(name), notes)

    def _create_study(self, spec: StudySpec, notes: Notes) -> None:
        """Write a new study into the database after a dry run; its agents are started next."""
        spec, _ = extend_for_search(self.store, SearchRequest(spec=spec))
        spec = remote_study.dry_run_locally(spec, notes)
        checkpoints_url = checkpoints.normalize_checkpoint_url(checkpoints.DEFAULT_FOLDER)
        ensure_study_exists(
            self.store, spec, None, checkpoints=checkpoints_url, owner=self.user, on_note=notes.note
        )

    def _delete_if_over_budget(self, spec: StudySpec) -> None:
        """Delete a new study again if another session has used the budget at the same time.

        After both studies are written, each session sees both. The later one yields at once, so that the
        earlier one fits when it checks again.
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
            f'The study "{name}" would exceed the budget of {self.user}: another session has created a study '
            f"at the same time. {usage_text}"
        )

    def _continue_study(self, spec: StudySpec, study: StudyRow, notes: Notes) -> None:
        if study.owner != self.user:
            raise UsageError(
                f'The study "{study.name}" was begun by {study.owner or "another user"}, and this session '
                f"uses the budget of {self.user}. Look at it with show, or give your study another name."
            )
        # the limit that was reserved at its creation holds
        spec = _set_limits(spec, study.spec["study"]["limits"])
        if (
            study.state != "done"
            and self.ledger.is_limited()
            and (spent := self._describe_spent_limits(study))
        ):
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
        """Start an agent of this machine for a study, unless this session already has one for it."""
        name = study.name
        if self.is_working_on(name):
            notes.note("An agent of this session works on it.")
            return
        launch = StudyLaunch(self._launcher, "local", self.store, spec, workers=self._workers)
        notes.lines += launch.start(study, None, checkpoints_at=None, overrides=spec.local_overrides)
        self._launches[name] = launch
        notes.note("They leave when this session ends; call the tool again to continue the study.")

    def _check_token(self, name: str) -> None:
        """Refuse a study that the server would refuse, before a dry run."""
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
                f"The token of {self._me['name']} has the scopes {', '.join(self._me['scopes'])}; creating "
                "or stopping a study takes the scope submit. Ask for a token with it: tempopt token create "
                "--scope submit"
            )

    # ---- look, and end

    def stop(self, name: str) -> StopResult:
        """Stop the search of a study of this user, so that the best so far is confirmed.

        Raises:
            StudyNotFound: There is no study of that name.
            UsageError: It belongs to another user.
        """
        self._check_scope()
        study = self.store.load_study(name)
        if study.owner != self.user:
            raise UsageError(
                f'The study "{name}" was begun by {study.owner or "another user"}, and this session stops '
                f"only those of {self.user}. A person may: tempopt stop {name}"
            )
        return lifecycle.stop(self.store, name)

    def find_blockers(self, name: str, stands: StudyStanding) -> list[str]:
        """Return the known obstacles to a study's progress.

        Args:
            name: Its name.
            stands: Its state.
        """
        launch = self._launches.get(name)
        troubles = [] if launch is None else [f"An agent has failed: {error}" for error in launch.errors()]
        if stands == "waiting" and self._server is not None:
            troubles.append("It waits for an agent: tempopt agent --any, with the URL of the server.")
        if stands == "paused":
            troubles += self._describe_spent_limits(self.store.load_study(name))
        return troubles

    def _describe_spent_limits(self, study: StudyRow) -> list[str]:
        """Return a sentence on each limit that a study of this user has reached."""
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
        """Return whether an agent of this session works on a study, or is being started."""
        launch = self._launches.get(name)
        return launch is not None and bool(launch.unended_job_ids())

    # ---- while studies run

    def _watch(self) -> None:
        if not self._may_submit:
            # a token that may not submit can pause nothing
            return
        while not self._closing.wait(LOOK_SECONDS):
            # while the store cannot be reached, agents cannot begin runs either; a token may be replaced
            with contextlib.suppress(StorageError, StudyFailed, AccessDenied):
                if self._has_running_study() and self.ledger.counts_hours():
                    for name in self._iter_overspent():
                        lifecycle.pause(self.store, name)

    def _has_running_study(self) -> bool:
        """Return whether any study of this user runs; only then all its costs are read."""
        rows = (summary.study for summary in self.store.list_studies())
        return any(row.owner == self.user and row.state == "running" for row in rows)

    def _iter_overspent(self) -> Iterator[str]:
        """Yield the running studies that have reached their own limit or that of the budget."""
        usage = self.ledger.budget_status()
        for account in usage.accounts:
            is_spent = account.used_up or usage.gpu_hours in usage.spent_limits
            if account.study.state == "running" and is_spent:
                yield account.study.name


def _build_need(spec: StudySpec, forecast: StudyForecast) -> BudgetNeed:
    """Return the maximal cost of a study, by its forecast and its own limit."""
    hours = forecast.max_gpu_hours
    limit = spec.study.limits.gpu_hours
    if hours is None:
        # how long a program runs is not known, and the study is paused at its limit
        hours = limit
    elif limit is not None and spec.compare is None:
        # the search ends in time for the confirmation
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
    return _set_limits(spec, {**spec.study.limits.model_dump(), "gpu_hours": max_gpu_hours})


def _set_limits(spec: StudySpec, limits: Mapping[str, Any]) -> StudySpec:
    overrides: Sequence[str] = [f"study.limits.{name}={json.dumps(value)}" for name, value in limits.items()]
    return spec.with_overrides(overrides)
