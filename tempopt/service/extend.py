"""Extend a study by a request to search or resume: find and check it, and add the requested tickets."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tempopt.agent.study_lookup import find_study, reconcile_spec
from tempopt.errors import StudyChanged, UsageError
from tempopt.report.alpha_spending import next_alpha_text
from tempopt.service.requests import ResumeRequest, SearchRequest
from tempopt.spec.custom_schedules import import_schedules
from tempopt.spec.study_spec import StudySpec
from tempopt.storage.rows import SEARCH_KINDS, NewTicket, StudyRow, TicketRow
from tempopt.storage.store import Store
from tempopt.storage.ticket_queries import current_round, of_kind
from tempopt.verdict.explanation import explanation_tickets, max_explanation_runs
from tempopt.verdict.planned_runs import planned_runs
from tempopt.verdict.set_comparison import check_comparison
from tempopt.verdict.stages import failed_runs_to_requeue, further_pairs, more_tickets


def check_request(request: SearchRequest | ResumeRequest) -> None:
    """Import the schedules of a search, and refuse an invalid spec, without a store.

    Raises:
        SpecError: A schedule cannot be imported, or two sets have the same training.
        UsageError: A comparison may need more runs than are allowed.
    """
    if isinstance(request, SearchRequest):
        import_schedules(request.spec)
        if request.spec.compare is not None:
            check_comparison(request.spec, request.max_runs)


def extend_study(
    store: Store,
    request: SearchRequest | ResumeRequest,
    *,
    on_note: Callable[[str], None] = lambda text: None,
) -> tuple[StudySpec, StudyRow | None]:
    """Add the tickets of a request to its study.

    Returns:
        The spec to train, and the row of the study before the change; None if the study does not exist yet.

    Raises:
        StudyNotFound: There is no study to resume.
        SpecError, UsageError, StudyChanged: As in :func:`extend_for_search` and :func:`extend_for_resume`.
    """
    if isinstance(request, SearchRequest):
        return extend_for_search(store, request, on_note=on_note)
    study = store.load_study(request.study)
    return extend_for_resume(store, study, request, on_note=on_note), study


def extend_for_search(
    store: Store, request: SearchRequest, *, on_note: Callable[[str], None] = lambda text: None
) -> tuple[StudySpec, StudyRow | None]:
    """Store the changes that a search makes to the spec of its study, and add the requested tickets.

    A study that does not exist yet is not created here.

    Args:
        on_note: Called with a sentence on the level of the next verdict.

    Returns:
        The spec to train, and the row of the study before the change; None if the study does not exist yet.

    Raises:
        SpecError: The number of trials or an enqueued set does not fit the spec, or a logger's settings hold
            a password.
        UsageError: ``add_trials`` was given, but the study does not exist; or as in :func:`add_trials`.
        StudyChanged: The store has a different study of that name, or its tickets do not have the version in
            the request.
    """
    spec, num_added_trials = request.spec, request.add_trials
    if request.trials is not None:
        spec = spec.with_overrides([f"study.trials={request.trials}"])
    study = find_study(store, spec.study.name)
    if study is not None:
        priority = spec.study.priority
        spec = reconcile_spec(store, study, spec)
        if priority != study.priority:
            store.set_priority(study.id, priority)
        if add_trials(store, study, spec, num_added_trials, request.enqueue, version=request.version):
            _note_next_alpha(store, study, on_note)
        return spec, study
    if num_added_trials:
        raise UsageError(
            f"{num_added_trials} trials cannot be added, since the store has no study "
            f'"{spec.study.name}" yet. '
            f"Give the total number: --trials {spec.num_trials + num_added_trials}"
        )
    if request.enqueue:
        parameter_sets = [*spec.study.enqueue, *request.enqueue]
        spec = spec.with_overrides([f"study.enqueue={json.dumps(parameter_sets)}"])
    return spec, None


def extend_for_resume(
    store: Store,
    study: StudyRow,
    request: ResumeRequest,
    *,
    on_note: Callable[[str], None] = lambda text: None,
    check_schedules: Callable[[StudySpec], None] = import_schedules,
) -> StudySpec:
    """Add the tickets of a resumption to its study, and return the study's spec.

    Args:
        on_note: Called with sentences on the new runs, and on the level of the next verdict.
        check_schedules: Called with the spec, to check its custom schedules.

    Raises:
        SpecError: A schedule cannot be imported.
        UsageError: As in :func:`add_trials`, :func:`add_pairs` and :func:`add_explanation`.
        StudyChanged: The tickets do not have the version in the request.
    """
    spec = StudySpec.from_json(study.spec)
    check_schedules(spec)
    version = request.version
    if request.explain:
        on_note(add_explanation(store, study, spec, version=version))
    elif request.retry_failed:
        on_note(retry(store, study, spec, version=version))
    elif request.add_pairs:
        add_pairs(store, study, spec, request.add_pairs, version=version)
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
    if alpha_text := next_alpha_text(store.tickets(study.id)):
        on_note(alpha_text)


def add_trials(
    store: Store,
    study: StudyRow,
    spec: StudySpec,
    num_tickets: int,
    enqueue: Sequence[Mapping[str, Any]] = (),
    *,
    version: int | None = None,
) -> bool:
    """Add search tickets to a study; return whether any were added.

    Args:
        num_tickets: Number of new tickets; at least one is added for each set that no ticket tries yet.
        enqueue: Parameter sets for the first of them.
        version: Add them only if the tickets have this version; None: in any case.

    Raises:
        UsageError: The study is a comparison, which has no trials.
        SpecError: A set does not fit the search space.
        StudyChanged: The tickets do not have that version.
    """
    if spec.compare is not None and (num_tickets or enqueue):
        raise UsageError(
            f"{study.name} is a comparison of given parameter sets, which has no trials. To add "
            f"pairs: tempopt resume {study.name} --pairs +8"
        )
    parameter_sets = spec.parse_enqueued_sets(enqueue)

    def tickets_to_add(rows: list[TicketRow]) -> list[NewTicket]:
        # the command may be a repetition: skip sets that a ticket already tries
        new_sets = [
            parameters
            for parameters in parameter_sets
            if not any(_has_tried(row, parameters) for row in rows)
        ]
        return more_tickets(rows, spec, max(num_tickets, len(new_sets)), new_sets)

    return bool(_add_tickets_atomically(store, study, tickets_to_add, version))


def _add_tickets_atomically(
    store: Store,
    study: StudyRow,
    tickets_to_add: Callable[[list[TicketRow]], list[NewTicket]],
    version: int | None,
) -> list[NewTicket]:
    """Add new tickets that depend on the existing ones, and return them; empty if there are none to add.

    Args:
        tickets_to_add: Called with the existing tickets, returns the new ones.
        version: Add them only if the tickets have this version; None: in any case.

    Raises:
        StudyChanged: The tickets do not have that version.
    """
    while True:
        current_version = _load_version(store, study, version)
        tickets = tickets_to_add(store.tickets(study.id))
        # False: the version has changed, and the tickets have to be computed again;
        # resume: a study that is done or paused is set to running
        if not tickets or store.add_tickets(study.id, tickets, version=current_version, resume=True):
            return tickets


def _load_version(store: Store, study: StudyRow, expected_version: int | None) -> int:
    """Return the version of a study's tickets; raise StudyChanged if another one is expected."""
    version = store.load_study(study.name).version
    if expected_version is not None and version != expected_version:
        raise StudyChanged(
            f'Tickets of the study "{study.name}" have been added or withdrawn: their version is '
            f"{version}, and {expected_version} was given. Look at the study again, then repeat the request."
        )
    return version


def add_pairs(
    store: Store, study: StudyRow, spec: StudySpec, num_pairs: int, *, version: int | None = None
) -> None:
    """Add pairs to the verdict of a study: a new round, whose verdict uses the earlier pairs, too.

    Args:
        num_pairs: Number of pairs; 0: none.
        version: Add them only if the tickets have this version; None: in any case.

    Raises:
        UsageError: There is no verdict yet, or ``num_pairs`` is 1.
        StudyChanged: The tickets do not have that version.
    """
    if num_pairs == 1:
        raise UsageError("1 pair alone shows nothing and cannot be added. Add two or more: --pairs +2")
    if num_pairs and not _add_tickets_atomically(
        store, study, lambda rows: further_pairs(rows, spec, num_pairs), version
    ):
        raise UsageError(
            f"{num_pairs} pairs cannot be added to the verdict of {study.name}: its confirmation is not "
            f"over, or has not begun. Let it reach a verdict first: tempopt resume {study.name}"
        )


def add_explanation(store: Store, study: StudyRow, spec: StudySpec, *, version: int | None = None) -> str:
    """Add the runs that explain a verdict, and return a sentence on them.

    Raises:
        UsageError: There is no verdict to explain, or the study is a comparison.
        StudyChanged: The tickets do not have that version.
    """
    if spec.compare is not None:
        raise UsageError(
            f"{study.name} is a comparison of given parameter sets, which has nothing to explain."
        )
    max_runs = 0

    def tickets_to_add(rows: list[TicketRow]) -> list[NewTicket]:
        nonlocal max_runs
        confirm = of_kind(rows, "confirm", of_round=current_round(rows))
        if not confirm or store.load_study(study.name).state != "done":
            raise UsageError(
                f"The verdict of {study.name} cannot be explained: its confirmation is not over. Let it "
                f"reach a verdict first: tempopt resume {study.name}"
            )
        tickets = explanation_tickets(rows, spec, is_requested=True)
        if tickets:
            max_runs = max_explanation_runs(rows, spec, tickets)
        return tickets

    tickets = _add_tickets_atomically(store, study, tickets_to_add, version)
    if not tickets:
        return "There is nothing to explain, or everything is explained already."
    return f"{len(tickets)} trainings begin to explain the verdict; at most {max_runs} in all."


def retry(store: Store, study: StudyRow, spec: StudySpec, *, version: int | None = None) -> str:
    """Repeat the runs that failed on every attempt, and return sentences on them.

    The cause does not matter: a lost machine, or an error of the module that may be fixed by now. A run that
    diverged has not failed: divergence is its result.

    Raises:
        StudyChanged: The tickets do not have that version.
    """
    # as in _add_tickets_atomically, but failed tickets are changed with the new ones
    while True:
        current_version = _load_version(store, study, version)
        rows = store.tickets(study.id)
        tickets_to_requeue, fresh_tickets = failed_runs_to_requeue(rows, spec)
        if store.retry(
            study.id, [ticket.id for ticket in tickets_to_requeue], fresh_tickets, version=current_version
        ):
            break
    num_failed = sum(ticket.state == "failed" for ticket in rows)
    if not tickets_to_requeue and not fresh_tickets:
        reason = "each counts as failed in the verdict" if spec.counts_failures else "none counts any more"
        return f"No run is repeated: of {num_failed} that failed on every attempt, {reason}."
    parts = []
    if tickets_to_requeue:
        parts.append(
            f"{len(tickets_to_requeue)} of {num_failed} runs that failed on every attempt are repeated."
        )
        errors = [
            ticket.error for ticket in tickets_to_requeue if ticket.parameters is not None and ticket.error
        ]
        parts += [f"The last error: {error}" for error in errors[-1:]]
    if fresh_tickets:
        num_pairs = len({ticket.pair for ticket in fresh_tickets if ticket.kind == "confirm"})
        parts.append(
            f"{num_pairs} fresh pairs are trained in place of those that the verdict lacked. The next "
            "verdict counts as a further one of this study, with its share of the error rate."
        )
    return " ".join(parts)


def _has_tried(row: TicketRow, parameters: Mapping[str, Any]) -> bool:
    return row.kind == "search" and row.sampled is not None and parameters.items() <= row.sampled.items()
