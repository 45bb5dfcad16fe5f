"""The budget of a session: computed from the rows of its user's studies.

No state is kept in memory. A study that is not over counts with the maximum that it can take, so that several
studies together cannot exceed the budget.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from pydantic import BaseModel

from tempopt.errors import SpecError, UsageError
from tempopt.spec.study_spec import StudySpec
from tempopt.storage.rows import StudyRow, TicketRow
from tempopt.storage.store import Store
from tempopt.verdict.planned_runs import planned_runs

_HOUR = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limits for the studies of one user; None: no limit.

    Args:
        runs: Trainings of every kind, including confirming ones, >= 0.
        gpu_hours: GPU-hours, a share of a GPU counting as that share; for runs without a GPU their training
            hours; >= 0.
    """

    runs: int | None = None
    gpu_hours: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetNeed:
    """Maximal cost of a new study.

    Args:
        runs: Trainings.
        gpu_hours: GPU-hours; None: not known.
    """

    runs: int
    gpu_hours: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Cost of one study so far, and its maximum.

    Args:
        study: Its row.
        runs: Trainings that have begun.
        most_runs: Maximal number of trainings.
        gpu_hours: GPU-hours used so far, including runs in progress.
        most_gpu_hours: Maximum by ``study.limits.gpu_hours``; None: no limit.
    """

    study: StudyRow
    runs: int
    most_runs: int
    gpu_hours: float
    most_gpu_hours: float | None

    @property
    def used_up(self) -> bool:
        """Whether it has used its GPU-hours and is not over."""
        max_gpu_hours = self.most_gpu_hours
        return self.study.state != "done" and max_gpu_hours is not None and self.gpu_hours >= max_gpu_hours


class BudgetLimit(BaseModel):
    """Current state of one limit of the budget.

    Args:
        allowed: The limit.
        spent: Amount spent.
        reserved: Amount that studies in progress may still spend.
        remaining: Amount for a new study, >= 0.
        text: The state as a sentence.
    """

    unit: Literal["runs", "GPU-hours"]
    allowed: float
    spent: float
    reserved: float
    remaining: float
    text: str

    @classmethod
    def create(
        cls, unit: Literal["runs", "GPU-hours"], allowed: float, *, spent: float, reserved: float
    ) -> BudgetLimit:
        """Return the state of a limit with the given amounts."""
        remaining = max(0.0, allowed - spent - reserved)
        text = (
            f"{remaining:.4g} of {allowed:.4g} {unit} are left in this budget "
            f"({spent:.4g} spent, {reserved:.4g} reserved for studies that are not over)."
        )
        return cls(unit=unit, allowed=allowed, spent=spent, reserved=reserved, remaining=remaining, text=text)

    @property
    def is_exceeded(self) -> bool:
        """Whether spent and reserved amounts exceed the limit by more than rounding errors."""
        return self.spent + self.reserved > self.allowed + 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetStatus:
    """Budget and costs of a user.

    Args:
        user: The user.
        accounts: One for each of the user's studies, oldest first.
        limits: The limits, that of runs first.
    """

    user: str
    accounts: tuple[Account, ...]
    limits: list[BudgetLimit]

    @property
    def gpu_hours(self) -> BudgetLimit | None:
        """The limit of GPU-hours; None: no limit."""
        return next((limit for limit in self.limits if limit.unit == "GPU-hours"), None)

    @property
    def spent_limits(self) -> list[BudgetLimit]:
        """The limits of which nothing remains for a new study."""
        return [limit for limit in self.limits if limit.spent >= limit.allowed]

    def check(self, need: BudgetNeed, *, name: str) -> None:
        """Refuse a study whose maximal cost exceeds the remaining budget.

        Raises:
            UsageError: It exceeds the budget, or the maximum of a study in progress is not known.
        """
        lines = []
        for limit in self.limits:
            amount = need.runs if limit.unit == "runs" else need.gpu_hours
            if not limit.remaining:
                lines.append(limit.text)
            elif amount is None or amount > limit.remaining:
                unknown_text = "without study.limits.gpu_hours an unknown number of"
                amount_text = unknown_text if amount is None else f"up to {amount:.4g}"
                lines.append(f"it takes {amount_text} {limit.unit}, but {limit.text}")
        open_accounts = [account for account in self.accounts if account.study.state != "done"]
        endless = [account.study.name for account in open_accounts if account.most_gpu_hours is None]
        if endless and self.gpu_hours is not None:
            lines.append(
                f"the maximum of {', '.join(endless)} is not known, without study.limits.gpu_hours. "
                "Wait until it is over."
            )
        if lines:
            raise UsageError(
                f'The study "{name}" would exceed the budget of {self.user}: {" Also, ".join(lines)} Request '
                "less (a smaller study.trials, fewer pairs, study.limits.gpu_hours), wait for studies in "
                "progress, or ask a person for a larger budget."
            )


class Ledger:
    """The accounts of one user in one store.

    Args:
        store: The store, of a database or of a server.
        user: Owner of the studies that count.
        budget: The limits.
    """

    def __init__(self, store: Store, user: str, budget: Budget) -> None:
        self._store = store
        self.user = user
        self._budget = budget

    def budget_status(self) -> BudgetStatus:
        """Return the current budget and costs of the user."""
        rows = [summary.study for summary in self._store.list_studies() if summary.study.owner == self.user]
        accounts = [self._build_account(row, self._store.tickets(row.id)) for row in rows]
        open_accounts = [account for account in accounts if account.study.state != "done"]
        limits = []
        if self._budget.runs is not None:
            limits.append(
                BudgetLimit.create(
                    "runs",
                    self._budget.runs,
                    spent=sum(account.runs for account in accounts),
                    reserved=sum(account.most_runs - account.runs for account in open_accounts),
                )
            )
        if self._budget.gpu_hours is not None:
            unspent = ((account.most_gpu_hours or 0.0) - account.gpu_hours for account in open_accounts)
            limits.append(
                BudgetLimit.create(
                    "GPU-hours",
                    self._budget.gpu_hours,
                    spent=math.fsum(account.gpu_hours for account in accounts),
                    reserved=math.fsum(max(0.0, hours) for hours in unspent),
                )
            )
        return BudgetStatus(user=self.user, accounts=tuple(accounts), limits=limits)

    def is_limited(self) -> bool:
        """Return whether the user has a budget of runs or GPU-hours."""
        return self._budget.runs is not None or self._budget.gpu_hours is not None

    def counts_hours(self) -> bool:
        """Return whether GPU-hours are limited."""
        return self._budget.gpu_hours is not None

    def _build_account(self, row: StudyRow, tickets: list[TicketRow]) -> Account:
        num_begun = sum(ticket.attempt > 0 for ticket in tickets)
        max_runs, gpus, max_gpu_hours = num_begun, 1.0, None
        try:
            spec = StudySpec.from_json(row.spec)
        except SpecError:
            # of another version, or damaged: what it may take is not known
            spec = None
        if spec is not None:
            gpus = spec.resource_need(gpus=True).gpus or 1.0
            max_gpu_hours = spec.study.limits.gpu_hours
        if row.state != "done":
            num_requested = sum(ticket.state != "withdrawn" for ticket in tickets)
            max_runs = max(num_requested, 0 if spec is None else most_runs(spec))
        return Account(
            study=row,
            runs=num_begun,
            most_runs=max_runs,
            gpu_hours=_sum_used_hours(tickets, gpus),
            most_gpu_hours=max_gpu_hours,
        )


def most_runs(spec: StudySpec) -> int:
    """Return the maximal number of runs of a study to its first verdict."""
    return math.ceil(planned_runs(spec).max_total())


def _sum_used_hours(tickets: Iterable[TicketRow], gpus: float) -> float:
    now = datetime.now(UTC)
    seconds = 0.0
    for ticket in tickets:
        seconds += ticket.gpu_seconds or ticket.seconds
        if ticket.state == "running" and ticket.started is not None and (ticket.lease or 0) > 0:
            # the clocks of two machines may differ slightly
            seconds += max(0.0, (now - ticket.started).total_seconds()) * gpus
    return seconds / _HOUR
