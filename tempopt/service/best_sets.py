"""The best parameter sets of a finished study, for a comparison at another size: ``compare --from``."""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Iterator

from tempopt.errors import StudyFailed, UsageError
from tempopt.report.study_result import StudyResult, load
from tempopt.sampling.arms import SearchArms
from tempopt.service.lifecycle import Storage, open_storage
from tempopt.storage.rows import SEARCH_KINDS, TERMINAL_STATES, Measurement, Parameters
from tempopt.storage.ticket_queries import of_kind
from tempopt.temperature import TEMPERATURE_PARAMETERS, drop_unused_params, training_key
from tempopt.verdict.pairs import candidates

DEFAULT_TOP = 3
"""Default number of parameter sets taken from a study."""

BASELINE = "baseline"
"""Name of the reference set: the study's best parameters at τ = 1."""


def load_best_sets(
    study: str, storage: Storage, *, top: int | None = None, without: Collection[str] = ()
) -> dict[str, Parameters]:
    """Return the best sets of a study in a storage; arguments and errors as for :func:`best_sets`.

    Raises:
        StudyNotFound: There is no such study.
    """
    with open_storage(storage) as store:
        result = load(store, study, needs_measurements=True)
    return best_sets(result, top=DEFAULT_TOP if top is None else top, without=without)


def best_sets(
    result: StudyResult, *, top: int = DEFAULT_TOP, without: Collection[str] = ()
) -> dict[str, Parameters]:
    """Return the baseline of a finished study and its best distinct parameter sets, by name.

    First comes the recommendation of the study, or its winner if it recommends no change; then the tried sets
    by the surrogate's posterior mean, or by their values if the study's sampler has no surrogate. Sets with
    the same training are listed once.

    Args:
        result: The study, loaded with measurements.
        top: Maximal number of sets besides the baseline, >= 1.
        without: Names of parameters to leave out of every set.

    Raises:
        UsageError: It is not a finished search, ``top`` is less than 1, or no set has such a parameter.
        StudyFailed: No set differs from the baseline.
    """
    _check(result, top)
    parameter_sets = [_find_baseline(result), *_rank_sets(result)]
    unknown = set(without) - {name for parameters in parameter_sets for name in parameters}
    if unknown:
        names_text = ", ".join(sorted({name for parameters in parameter_sets for name in parameters}))
        raise UsageError(
            f"--without {', '.join(sorted(unknown))}: no parameter set of {result.name} has it. They have: "
            f"{names_text}."
        )
    sets: dict[str, Parameters] = {}
    keys: set[str] = set()
    for parameters in parameter_sets:
        parameters_left = {name: value for name, value in parameters.items() if name not in without}
        key = _build_training_key(parameters_left)
        if key not in keys and len(sets) <= top:
            sets[BASELINE if not sets else f"best{len(sets)}"] = parameters_left
            keys.add(key)
    if len(sets) < 2:
        raise StudyFailed(
            f'No parameter set of the study "{result.name}" differs from its baseline, so there is nothing '
            "to compare."
        )
    return sets


def _check(result: StudyResult, top: int) -> None:
    if top < 1:
        raise UsageError(f"--top {top}: give a whole number of at least 1.")
    if result.spec.compare is not None:
        raise UsageError(
            f"{result.name} is a comparison of parameter sets, not a search. Give the name of a search."
        )
    if result.state != "done":
        raise UsageError(
            f'The study "{result.name}" is not finished: it is {result.state}. Continue it: tempopt resume '
            f"{shlex.quote(result.name)}"
        )


def _find_baseline(result: StudyResult) -> Parameters:
    if result.verdict is not None:
        return dict(result.verdict.baseline_params)
    best = candidates(of_kind(result.runs, "baseline"), 1, result.direction)
    return best[0] if best else {}


def _rank_sets(result: StudyResult) -> Iterator[Parameters]:
    recommendation = result.recommendation
    if recommendation is not None and recommendation.action_without_training != "change_nothing":
        yield recommendation.params
    if result.winner is not None:
        yield result.winner
    search = of_kind(result.runs, "search")
    parameter_sets = _build_arms(result).rank_tried("search") or candidates(
        search, len(search) or 1, result.direction
    )
    # the search's model includes runs of the baseline's arm
    yield from (parameters for parameters in parameter_sets if not result.spec.is_baseline(parameters))


def _build_arms(result: StudyResult) -> SearchArms:
    """Return the sampler as it was at the end of the search."""
    runs = [run for run in result.runs if run.kind in SEARCH_KINDS and run.state in TERMINAL_STATES]
    reports: list[Measurement] = []
    for run in runs:
        metrics = result.measured.get(run.id, {})
        curves = {"report": result.curves.get(run.id, ())}
        curves |= {name: metrics.get(name, ()) for name in result.spec.study.measured_guards}
        reports += [
            Measurement(ticket_id=run.id, step=step, name=name, value=value)
            for name, curve in curves.items()
            for step, value in curve
        ]
    return SearchArms(result.spec, runs, reports, earlier=result.earlier)


def _build_training_key(parameters: Parameters) -> str:
    """Return a text that is equal for sets with the same training."""
    effective_parameters = drop_unused_params(parameters)
    plan = {name: value for name, value in effective_parameters.items() if name in TEMPERATURE_PARAMETERS}
    other_parameters = {name: value for name, value in effective_parameters.items() if name not in plan}
    return json.dumps([training_key(plan), other_parameters], sort_keys=True)
