"""The page on which a study is begun: a spec is pasted, mended, priced and started."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import Depends, Request, Response
from fastapi.responses import RedirectResponse

from tempopt.errors import TempoptError, UsageError, masked
from tempopt.forecast.words import lasting, on
from tempopt.records.rows import DEFAULT_QUEUE
from tempopt.scheduling.limits import holds, used
from tempopt.server.app_state import State
from tempopt.server.asked import SUBMIT, Shared
from tempopt.server.auth import Principal
from tempopt.server.errors import ApiError, as_refusal
from tempopt.server.pages import routing
from tempopt.server.pages.rendering import HEADERS, page, segment
from tempopt.server.pages.routing import form
from tempopt.server.specs import LONGEST, Checked, checked, planned
from tempopt.server.study_writes import Submission, submitted
from tempopt.spec.study_spec import StudySpec
from tempopt.study.planning import StudyForecast
from tempopt.study.progress import LABELS

router = routing.router()
Submitting = Annotated[Principal, Depends(SUBMIT)]
Form = Annotated[dict[str, str], Depends(form)]

PART = "x-part"
"""Header with which the page's script asks for what was found alone."""
_FEWEST_ROWS = 18
# Name, label, what is meant when it is left empty, and the keyboard that a telephone shows.
_FIELDS = (
    ("queue", "Queue", "Empty: the spec's.", "text"),
    ("priority", "Priority", "Higher is served first. Empty: the spec's.", "text"),
    ("hours", "Hours of one run", "For the price. Empty: as in an earlier study.", "decimal"),
    ("workers", "Runs side by side", "For the price. Empty: the spec's, else 1.", "numeric"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What a person has typed.

    Args:
        text: The spec.
        queue: Queue; empty: that of the spec.
        priority: Priority; empty: that of the spec.
        seconds: Seconds of one run; empty: as an earlier study tells.
        workers: Runs side by side; empty: as the spec says.
        faults: What is wrong with the fields beside the spec, by field.
    """

    text: str = ""
    queue: str = ""
    priority: str = ""
    hours: str = ""
    workers: str = ""
    faults: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, fields: Mapping[str, str]) -> Given:
        """Return what the fields of the form hold; whatever is wrong with them is in ``faults``."""
        typed = {name: fields.get(name, "").strip() for name in ("queue", "priority", "hours", "workers")}
        # a form sends line ends as it likes
        text = fields.get("text", "").replace("\r\n", "\n").replace("\r", "\n")
        faults = {name: _ALLOWED[name] for name, value in typed.items() if not _fits(name, value)}
        return cls(text=text, faults=faults, **typed)

    @property
    def overrides(self) -> list[str]:
        """What goes over the spec."""
        found = [f"study.queue={json.dumps(self.queue)}"] if self.queue else []
        return found + ([f"study.priority={_whole(self.priority)}"] if self.priority else [])


_ALLOWED = {
    "queue": "Give at most 63 letters, digits, dots, dashes, underscores and equals signs.",
    "priority": "Give a whole number from -1000 to 1000.",
    "hours": "Give a number of seconds above 0, or leave it empty.",
    "workers": "Give a whole number from 1 to 10000, or leave it empty.",
}


def _fits(name: str, value: str) -> bool:
    """Return whether what was typed into a field is empty or allowed."""
    if not value:
        return True
    if name == "queue":
        return re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._=-]{0,62}", value) is not None
    number = _number(value) if name == "hours" else _whole(value)
    low, high = {"priority": (-1000, 1000), "hours": (1e-9, 1e9), "workers": (1, 10_000)}[name]
    return number is not None and low <= number <= high


def _whole(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[+-]?[0-9]{1,9}", text) else None


def _number(text: str) -> float | None:
    return float(text) if re.fullmatch(r"[0-9]{1,9}(?:\.[0-9]{0,9})?|\.[0-9]{1,9}", text) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of the text, and what is said of it: the first message, and whether it is an error."""

    text: str
    note: str = ""
    severity: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What is found of what a person has typed.

    Args:
        given: That.
        told: What there is to say of the spec; None: there is none yet.
        spec: The spec, with the fields over it; None: it has errors.
        price: What its study costs; None: not known, or it has errors.
        unpriced: Why it is not known.
        budgets: What is left of the budgets that hold for this person in this queue, in words.
    """

    given: Given
    told: Checked | None = None
    spec: StudySpec | None = None
    price: StudyForecast | None = None
    unpriced: str = ""
    budgets: tuple[str, ...] = ()

    @property
    def may_start(self) -> bool:
        """Whether the study can be begun, or gone on with."""
        return self.told is not None and self.told.valid and not self.given.faults

    @property
    def errors(self) -> int:
        """Number of faults of the spec."""
        return 0 if self.told is None else sum(each.severity == "error" for each in self.told.messages)

    @property
    def lines(self) -> list[Line]:
        """The lines of the text with what is said of each."""
        noted: dict[int, Line] = {}
        for each in () if self.told is None else self.told.messages:
            before = noted.get(each.line or 0)
            if before is None or (before.severity == "warning" and each.severity == "error"):
                noted[each.line or 0] = Line(text="", note=each.text, severity=each.severity)
        return [
            dataclasses.replace(noted.get(number, Line(text="")), text=text)
            for number, text in enumerate(self.given.text.split("\n"), start=1)
        ]

    @property
    def rows(self) -> list[tuple[str, float, float, float]]:
        """The runs of each stage: at least, expected and at most; those of all stages last."""
        if self.price is None:
            return []
        runs = self.price.runs
        spans = {LABELS[kind]: span for kind, span in runs.gain.items()} | {"all": runs.all()}
        return [(name, span.min, span.typical, span.max) for name, span in spans.items()]

    @property
    def costs(self) -> list[tuple[str, str, str, str]]:
        """Times and GPU-hours: at least, expected and at most, in words."""
        price = self.price
        if price is None:
            return []
        runs, where = price.runs.all(), f"time on {on(price.run.workers, price.run.gpus or 0)}"
        found = []
        if (hours := price.hours(runs)) is not None:
            seconds = hours.times(3600.0)
            found.append((where, lasting(seconds.min), lasting(seconds.typical), lasting(seconds.max)))
        if price.run.gpus and (cards := price.gpu_hours(runs)) is not None:
            found.append(("GPU-hours", f"{cards.min:.3g}", f"{cards.typical:.3g}", f"{cards.max:.3g}"))
        return found


def find(given: Given, principal: Principal, shared: State) -> Findings:
    """Return what is found of what a person has typed; nothing is written."""
    if not given.text.strip():
        return Findings(given=given)
    if len(given.text) > LONGEST:
        raise UsageError(
            f"The spec has {len(given.text)} characters. Give at most {LONGEST}, or submit it with "
            "tempopt search."
        )
    found, told = checked(given.text, principal, shared)
    if found.spec is None:
        return Findings(given=given, told=told)
    spec, faults = found.spec, given.faults
    if not faults:
        spec = spec.with_overrides(given.overrides)
    price, unpriced = None, ""
    if not faults:
        try:
            price = _priced(spec, given, principal, shared)
        except UsageError as error:
            unpriced = str(error)
    return Findings(
        given=given,
        told=told,
        spec=spec,
        price=price,
        unpriced=unpriced,
        budgets=tuple(_budgets(shared, spec.study.queue, principal.user)),
    )


def _priced(spec: StudySpec, given: Given, principal: Principal, shared: State) -> StudyForecast:
    return planned(
        spec,
        principal,
        shared,
        run_hours=_number(given.hours),
        workers=_whole(given.workers),
    )


def _budgets(shared: State, queue: str, user: str) -> list[str]:
    """Return what is left of the budgets that hold for a user in a queue, in words."""
    rows = shared.store.pool.read()
    limited = [each for each in rows.quotas if each.gpu_hours is not None and holds(each, (queue, user))]
    usage = shared.store.pool.usage() if limited else []
    found = []
    for quota in limited:
        hours = used(quota, (each for each in usage if holds(quota, (each.queue, each.user))), rows.now)
        assert quota.gpu_hours is not None
        whose = f"of {quota.user}" if quota.user else "of all users"
        where = f" in the queue {quota.queue}" if quota.queue else ""
        days = f" for {quota.days:g} days" if quota.days is not None else ""
        left = max(0.0, quota.gpu_hours - hours)
        found.append(f"{left:.3g} of {quota.gpu_hours:g} GPU-hours{days} are left {whose}{where}.")
    return found


# ---- routes


@router.get("/submit")
def asked(request: Request, principal: Submitting, shared: Shared) -> Response:
    """Ask for a spec."""
    return _page(request, Findings(given=Given()), shared)


@router.post("/submit/check")
def looked_at(request: Request, principal: Submitting, shared: Shared, fields: Form) -> Response:
    """Say what is wrong with a spec, and what its study would cost."""
    return _page(request, find(Given.of(fields), principal, shared), shared)


@router.post("/submit")
def started(request: Request, principal: Submitting, shared: Shared, fields: Form) -> Response:
    """Begin a study, or go on with it, and lead to its page; what cannot be begun is shown with why."""
    findings = find(Given.of(fields), principal, shared)
    if not findings.may_start or findings.spec is None:
        return _page(request, findings, shared, status=422)
    body = Submission.model_validate({"spec": findings.spec.to_json()})
    try:
        done = submitted(body, principal, shared, request)
    except (ApiError, TempoptError) as error:
        refusal = as_refusal(error)
        assert refusal is not None
        return _page(request, findings, shared, status=refusal.status, refusal=masked(refusal.message))
    return RedirectResponse(f"/studies/{segment(done.study)}", status_code=303, headers=HEADERS)


def _page(
    request: Request, findings: Findings, shared: State, *, status: int = 200, refusal: str = ""
) -> Response:
    part = request.headers.get(PART) == "findings"
    return page(
        request,
        "submit_findings.html" if part else "submit.html",
        place="submit",
        status=status,
        given=findings.given,
        found=findings,
        refusal=refusal,
        text_rows=max(_FEWEST_ROWS, len(findings.lines) + 1),
        fields=_FIELDS,
        queues=[] if part else _queues(shared),
        longest=LONGEST,
    )


def _queues(shared: State) -> list[Any]:
    rows = shared.store.pool.read()
    served = {queue for each in rows.agents for queue in each.queues}
    return sorted({DEFAULT_QUEUE} | served | {each.queue for each in rows.quotas if each.queue})
