"""Prepare a search or a resumption: find or check the study and add the requested tickets."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tempopt.agent.study_lookup import find_study, reconcile_spec
from tempopt.errors import StudyChanged, UsageError
from tempopt.report.alpha_spending import next_alpha_text
from tempopt.service.requests import ResumeRequest, SearchRequest
from tempopt.spec.alpha_ledger import alpha_for_verdict
from tempopt.spec.custom_schedules import import_schedules
from tempopt.spec.study_spec import StudySpec
from tempopt.storage.rows import SEARCH_KINDS, NewTicket, StudyRow, TicketRow
from tempopt.storage.store import Store
from tempopt.storage.ticket_queries import current_round, of_kind, verdicts
from tempopt.verdict.explanation import explanation_at_most, explanation_tickets
from tempopt.verdict.planned_runs import planned_runs
from tempopt.verdict.set_comparison import check_comparison
from tempopt.verdict.stages import failed_runs_to_requeue, further_pairs, more_tickets


def check_request(request: SearchRequest | ResumeRequest) -> None:
    """Refuse a request whose spec cannot be carried out, as far as that is seen without a store.

    Raises:
        SpecError: A schedule cannot be imported, or two sets train the same.
        UsageError: A comparison could take more runs than are allowed.
    """
    if isinstance(request, SearchRequest):
        import_schedules(request.spec)
        if request.spec.compare is not None:
            check_comparison(request.spec, request.max_runs)


def prepare(
    store: Store,
    request: SearchRequest | ResumeRequest,
    *,
    on_note: Callable[[str], None] = lambda text: None,
) -> tuple[StudySpec, StudyRow | None]:
    """Extend a study as requested; return the spec to carry out, and the study as it was before, if any."""
    if isinstance(request, SearchRequest):
        return prepare_search(store, request, on_note=on_note)
    study = store.load_study(request.study)
    return prepare_resume(store, study, request, on_note=on_note), study


def prepare_search(
    store: Store, request: SearchRequest, *, on_note: Callable[[str], None] = lambda text: None
) -> tuple[StudySpec, StudyRow | None]:
    """Extend a study as requested; return the spec to carry out, and the study as it was before, if any.

    Args:
        on_note: Called with a sentence on the level of the next verdict.

    Raises:
        SpecError: The budget of a new study is too small to prove anything.
        UsageError: ``add_trials`` was given, and the study does not exist.
        StudyChanged: The store has a study of that name that asks something else.
    """
    spec, more = request.spec, request.add_trials
    if request.trials is not None:
        spec = spec.with_overrides([f"study.trials={request.trials}"])
    study = find_study(store, spec.study.name)
    if study is not None:
        priority = spec.study.priority
        spec = reconcile_spec(store, study, spec)
        if priority != study.priority:
            store.set_priority(study.id, priority)
        if add_trials(store, study, spec, more, request.enqueue, version=request.version):
            _note_next_alpha(store, study, on_note)
        return spec, study
    if more:
        raise UsageError(
            f'{more} trials were to be added, but the store has no study "{spec.study.name}" yet. '
            f"Give their whole number: --trials {spec.num_trials + more}"
        )
    if request.enqueue:
        parameter_sets = [*spec.study.enqueue, *request.enqueue]
        spec = spec.with_overrides([f"study.enqueue={json.dumps(parameter_sets)}"])
    return spec, None


def prepare_resume(
    store: Store,
    study: StudyRow,
    request: ResumeRequest,
    *,
    on_note: Callable[[str], None] = lambda text: None,
    check_schedules: Callable[[StudySpec], None] = import_schedules,
) -> StudySpec:
    """Extend an existing study as requested and return its spec.

    Args:
        on_note: Called with a sentence on what is trained, and on the level of the next verdict.
        check_schedules: Refuses a spec whose schedules outside tempopt cannot be imported.

    Raises:
        UsageError: Pairs or an explanation were requested, and there is no verdict.
    """
    spec = StudySpec.from_json(study.spec)
    check_schedules(spec)
    version = request.version
    if request.explain:
        on_note(add_explanation(store, study, spec, version=version))
    elif request.retry_failed:
        on_note(retry(store, study, spec, version=version))
    elif request.add_pairs:
        add_confirmation_seeds(store, study, spec, request.add_pairs, version=version)
        _note_next_alpha(store, study, on_note)
    elif request.add_trials:
        add_trials(store, study, spec, request.add_trials, version=version)
        _note_next_alpha(store, study, on_note)
        max_runs = planned_runs(spec).max_total(without=SEARCH_KINDS)
        on_note(
            f"{request.add_trials} trials are added. A new verdict on fresh seeds follows, for which at most "
            f"{max_runs:.0f} more trainings choose and confirm."
        )
    return spec


def _note_next_alpha(store: Store, study: StudyRow, on_note: Callable[[str], None]) -> None:
    if share := next_alpha_text(store.tickets(study.id)):
        on_note(share)


def add_trials(
    store: Store,
    study: StudyRow,
    spec: StudySpec,
    count: int,
    enqueue: Sequence[Mapping[str, Any]] = (),
    *,
    version: int | None = None,
) -> bool:
    """Add search tickets to a study; return whether any were added.

    Args:
        count: Number of tickets in all; at least one for each set that no ticket tries yet.
        enqueue: Parameter sets that the first of them try.
        version: Add them only while the tickets have this version; None: any.

    Raises:
        UsageError: It is a comparison, which has no trials; or the next verdict's level is too small.
    """
    if spec.compare is not None and (count or enqueue):
        raise UsageError(
            f"{study.name} is a comparison of given parameter sets, so there are no trials to add. To add "
            f"pairs: tempopt resume {study.name} --pairs +8"
        )
    parameter_sets = spec.parse_enqueued_sets(enqueue)

    def plan(rows: list[TicketRow]) -> list[NewTicket]:
        # the same command may be repeated: skip sets that a ticket tries already
        new_sets = [
            parameters for parameters in parameter_sets if not any(_tries(row, parameters) for row in rows)
        ]
        tickets = more_tickets(rows, spec, max(count, len(new_sets)), new_sets)
        if tickets:
            _check_alpha_left(rows, tickets[0].round, spec)
        return tickets

    return bool(_add_planned(store, study, plan, version))


def _check_alpha_left(rows: Sequence[TicketRow], of_round: int, spec: StudySpec) -> None:
    """Refuse a round whose verdict could show nothing, whatever is found in it."""
    test, pairs = spec.study.test, spec.study.seeds.confirm.max
    alpha = alpha_for_verdict(verdicts(rows, of_round))
    if pairs < (min_pairs := spec.study.seeds.confirm.enough(test, alpha)):
        raise UsageError(
            f"More trials would have a verdict of their own, whose level is {100 * alpha:.3g} %. With "
            f"study.test: {test} that takes {min_pairs} pairs, and "
            f"study.seeds.confirm is {pairs}: nothing could be shown. Add pairs to the verdict that there is "
            f"(tempopt resume {spec.study.name} --pairs +N), or begin a study with more of them that learns "
            "from this one (study.warm_start)."
        )


def _add_planned(
    store: Store,
    study: StudyRow,
    plan: Callable[[list[TicketRow]], list[NewTicket]],
    version: int | None,
) -> list[NewTicket]:
    """Add and return the tickets that follow from those that there are; none if there are none to add."""
    while True:
        current_version = _load_version(store, study, version)
        tickets = plan(store.tickets(study.id))
        # False: the version has changed meanwhile, and the tickets have to be computed again
        if not tickets or store.add_tickets(study.id, tickets, version=current_version, resume=True):
            return tickets


def _load_version(store: Store, study: StudyRow, expected_version: int | None) -> int:
    """Return the version of a study's tickets; StudyChanged if it is not the expected one, if any is."""
    version = store.load_study(study.name).version
    if expected_version is not None and version != expected_version:
        raise StudyChanged(
            f'Tickets of the study "{study.name}" were added or withdrawn since you looked: their version '
            f"is {version}, and {expected_version} was given. Look again, and ask anew if it is still needed."
        )
    return version


def add_confirmation_seeds(
    store: Store, study: StudyRow, spec: StudySpec, count: int, *, version: int | None = None
) -> None:
    """Add pairs to the verdict of a study: a round of its own, which rests on the earlier pairs, too.

    Raises:
        UsageError: There is no verdict to add to.
    """
    if count == 1:
        raise UsageError("1 pair was to be added, which alone shows nothing. Add two or more: --pairs +2")
    if count and not _add_planned(store, study, lambda rows: further_pairs(rows, spec, count), version):
        raise UsageError(
            f"{count} pairs were to be added to the verdict of {study.name}, but its confirmation is not "
            f"over, or there is none. Let it reach a verdict first: tempopt resume {study.name}"
        )


def add_explanation(store: Store, study: StudyRow, spec: StudySpec, *, version: int | None = None) -> str:
    """Add the runs that explain a verdict; return in words what is trained.

    Raises:
        UsageError: There is no verdict to explain, or it is about no temperature.
    """
    if spec.compare is not None:
        raise UsageError(
            f"{study.name} is a comparison of given parameter sets, which has nothing to explain."
        )
    max_runs = 0

    def plan(rows: list[TicketRow]) -> list[NewTicket]:
        nonlocal max_runs
        confirm = of_kind(rows, "confirm", of_round=current_round(rows))
        if not confirm or store.load_study(study.name).state != "done":
            raise UsageError(
                f"The verdict of {study.name} was to be explained, but its confirmation is not over. Let it "
                f"reach a verdict first: tempopt resume {study.name}"
            )
        tickets = explanation_tickets(rows, spec, is_requested=True)
        if tickets:
            max_runs = explanation_at_most(rows, spec, tickets)
        return tickets

    tickets = _add_planned(store, study, plan, version)
    if not tickets:
        return "There is nothing to explain, or nothing that is not explained."
    return f"{len(tickets)} trainings begin to explain the verdict; at most {max_runs} in all."


def retry(store: Store, study: StudyRow, spec: StudySpec, *, version: int | None = None) -> str:
    """Ask again for the runs that failed on every attempt; return in words what is trained.

    Regardless of the cause: a machine that was lost, or an error of the module, which may be fixed by now.
    A run that diverged has not failed: that is its result.
    """
    while True:
        current_version = _load_version(store, study, version)
        rows = store.tickets(study.id)
        tickets_to_requeue, fresh_tickets = failed_runs_to_requeue(rows, spec)
        if store.retry(
            study.id, [ticket.id for ticket in tickets_to_requeue], fresh_tickets, version=current_version
        ):
            break
    failed = sum(ticket.state == "failed" for ticket in rows)
    if not tickets_to_requeue and not fresh_tickets:
        return f"No run is trained again: of {failed} that failed on every attempt, none counts any more."
    parts = []
    if tickets_to_requeue:
        parts.append(
            f"{len(tickets_to_requeue)} of {failed} runs that failed on every attempt are trained again."
        )
        errors = [
            ticket.error for ticket in tickets_to_requeue if ticket.parameters is not None and ticket.error
        ]
        parts += [f"The last said: {error}" for error in errors[-1:]]
    if fresh_tickets:
        pairs = len({ticket.pair for ticket in fresh_tickets if ticket.kind == "confirm"})
        parts.append(
            f"{pairs} fresh pairs are trained in place of those that the verdict did without. The next one "
            "counts as a further verdict of this study, with its share of the error rate."
        )
    return " ".join(parts)


def _tries(row: TicketRow, parameters: Mapping[str, Any]) -> bool:
    return row.kind == "search" and row.sampled is not None and parameters.items() <= row.sampled.items()
