"""What a session may spend, what its user's studies have spent and may yet spend: all read from their rows.

Nothing is kept in memory that the next process would have to know. A study that is not over counts with the
most that it can take, so that several at a time cannot spend more than there is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from pydantic import BaseModel

from tempopt.errors import UsageError
from tempopt.spec.study_spec import StudySpec
from tempopt.storage.rows import StudyRow, TicketRow
from tempopt.storage.store import Store
from tempopt.verdict.planned_runs import planned_runs

_HOUR = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What the studies of one user may spend by this program's doing; None: without a limit.

    Args:
        runs: Trainings of every kind, the confirming ones included, >= 0.
        gpu_hours: GPU-hours, a share of a GPU counting as that share; of runs without a card their hours of
            training; >= 0.
    """

    runs: int | None = None
    gpu_hours: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetNeed:
    """The most that a new study can take.

    Args:
        runs: Trainings.
        gpu_hours: GPU-hours; None: not known.
    """

    runs: int
    gpu_hours: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What one study has spent and may yet spend.

    Args:
        study: Its row.
        runs: Trainings that were begun.
        most_runs: The most that it can take.
        gpu_hours: GPU-hours that are used, runs in progress included.
        most_gpu_hours: The most that it is allowed, by ``study.limits.gpu_hours``; None: it has no limit.
    """

    study: StudyRow
    runs: int
    most_runs: int
    gpu_hours: float
    most_gpu_hours: float | None

    @property
    def used_up(self) -> bool:
        """Whether it has spent what it is allowed and is not over."""
        max_gpu_hours = self.most_gpu_hours
        return self.study.state != "done" and max_gpu_hours is not None and self.gpu_hours >= max_gpu_hours


class BudgetLimit(BaseModel):
    """One limit of the budget as it stands.

    Args:
        allowed: The limit.
        spent: What is spent of it.
        reserved: What studies that are not over may yet spend of it.
        remaining: What a new study may take, >= 0.
        text: All of it in words.
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
        """Return a limit of which so much is spent and reserved."""
        remaining = max(0.0, allowed - spent - reserved)
        text = (
            f"{remaining:.4g} of {allowed:.4g} {unit} are left in this budget "
            f"({spent:.4g} spent, {reserved:.4g} reserved for studies that are not over)."
        )
        return cls(unit=unit, allowed=allowed, spent=spent, reserved=reserved, remaining=remaining, text=text)

    @property
    def is_exceeded(self) -> bool:
        """Whether more is spent or reserved than is allowed, by more than the rounding of a sum."""
        return self.spent + self.reserved > self.allowed + 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetStatus:
    """How a user stands.

    Args:
        user: The user.
        accounts: One for each of the user's studies, the oldest first.
        limits: Every limit that there is, that of runs first.
    """

    user: str
    accounts: tuple[Account, ...]
    limits: list[BudgetLimit]

    @property
    def gpu_hours(self) -> BudgetLimit | None:
        """The limit of GPU-hours; None: there is none."""
        return next((limit for limit in self.limits if limit.unit == "GPU-hours"), None)

    @property
    def spent_limits(self) -> list[BudgetLimit]:
        """The limits of which nothing is left but what is reserved."""
        return [limit for limit in self.limits if limit.spent >= limit.allowed]

    def check(self, need: BudgetNeed, *, name: str) -> None:
        """Refuse a study that could take more than is left, or any study where nothing is.

        Raises:
            UsageError: It could; or a study that is not over has no limit, so that nothing can be said.
        """
        lines = []
        for limit in self.limits:
            amount = need.runs if limit.unit == "runs" else need.gpu_hours
            if not limit.remaining:
                lines.append(limit.text)
            elif amount is None or amount > limit.remaining:
                unknown_text = "without study.limits.gpu_hours an unknown number of"
                amount_text = unknown_text if amount is None else f"up to {amount:.4g}"
                lines.append(f"it takes {amount_text} {limit.unit}, and {limit.text}")
        open_accounts = [account for account in self.accounts if account.study.state != "done"]
        endless = [account.study.name for account in open_accounts if account.most_gpu_hours is None]
        if endless and self.gpu_hours is not None:
            lines.append(
                f"what {', '.join(endless)} may yet spend is not known, having no study.limits.gpu_hours. "
                "Wait until it is over."
            )
        if lines:
            raise UsageError(
                f'The study "{name}" would exceed the budget of {self.user}: {" Also, ".join(lines)} Ask for '
                "less (a smaller study.trials, fewer pairs, study.limits.gpu_hours), wait for studies that "
                "are not over, or ask a person for a larger budget."
            )


class Ledger:
    """The accounts of one user in one store.

    Args:
        store: The store, of a database or of a server.
        user: Whose studies count.
        budget: What they may spend.
    """

    def __init__(self, store: Store, user: str, budget: Budget) -> None:
        self._store = store
        self.user = user
        self._budget = budget

    def budget_status(self) -> BudgetStatus:
        """Return how the user stands now."""
        rows = [summary.study for summary in self._store.list_studies() if summary.study.owner == self.user]
        accounts = [self._account(row, self._store.tickets(row.id)) for row in rows]
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

    def _account(self, row: StudyRow, tickets: list[TicketRow]) -> Account:
        num_begun = sum(ticket.attempt > 0 for ticket in tickets)
        max_runs = num_begun
        if row.state != "done":
            num_requested = sum(ticket.state != "withdrawn" for ticket in tickets)
            max_runs = max(num_requested, most_runs(StudySpec.from_json(row.spec)))
        return Account(
            study=row,
            runs=num_begun,
            most_runs=max_runs,
            gpu_hours=_used_hours(row, tickets),
            most_gpu_hours=row.spec["study"]["limits"]["gpu_hours"],
        )


def most_runs(spec: StudySpec) -> int:
    """Return the most runs that a study takes to its first verdict."""
    return math.ceil(planned_runs(spec).max_total())


def _used_hours(row: StudyRow, tickets: Iterable[TicketRow]) -> float:
    now = datetime.now(UTC)
    seconds = 0.0
    for ticket in tickets:
        seconds += ticket.gpu_seconds or ticket.seconds
        if ticket.state == "running" and ticket.started is not None and (ticket.lease or 0) > 0:
            # two machines' clocks may differ by a little
            gpus = StudySpec.from_json(row.spec).resource_need(gpus=True).gpus or 1.0
            seconds += max(0.0, (now - ticket.started).total_seconds()) * gpus
    return seconds / _HOUR
