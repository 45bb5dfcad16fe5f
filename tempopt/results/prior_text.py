"""What the prior of a study said, and whether what was found agrees: in plain words and as plain data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tempopt.spec.priors import Applied, applied_prior

if TYPE_CHECKING:
    from tempopt.results.study_result import StudyResult
    from tempopt.spec.study_spec import StudySpec


def prior_text(spec: StudySpec) -> str | None:
    """Return what the prior of a study says of what that searches; None: it has none."""
    prior = applied_prior(spec)
    return None if prior is None else f"prior {prior.name}: {_said(prior)}"


def prior_lines(result: StudyResult) -> list[str]:
    """Return what the prior of a study said, what was found, and where the advice is from."""
    prior = applied_prior(result.spec)
    if prior is None:
        return []
    found = "" if (agreed := _agreed(result, prior)) is None else f"; {agreed}"
    return [f"prior {prior.name}: {_said(prior)}{found}.", f"  from: {'; '.join(prior.sources)}."]


def prior_json(result: StudyResult) -> dict[str, Any] | None:
    """Return the same as the data of ``tempopt show --json``; None without a prior."""
    prior = applied_prior(result.spec)
    if prior is None:
        return None
    values = _found(result, prior)
    return {
        "name": prior.name,
        "numbers": {
            name: {"median": each.median, "low": each.low, "high": each.high, "found": values.get(name)}
            for name, each in prior.numbers.items()
        },
        "choices": {
            name: {"choice": each, "found": values.get(name)} for name, each in prior.choices.items()
        },
        "trial": prior.trial,
        "sources": list(prior.sources),
    }


def _said(prior: Applied) -> str:
    numbers = (
        f"{name} about {each.median:.3g} ({each.low:.3g} to {each.high:.3g})"
        for name, each in prior.numbers.items()
    )
    return ", ".join([*numbers, *(f"{name} {each}" for name, each in prior.choices.items())])


def _found(result: StudyResult, prior: Applied) -> dict[str, Any]:
    """Return what the winner has of what the prior speaks of; before there is one, nothing."""
    parameters = result.winner
    if parameters is None:
        return {}
    return {name: prior.value(name, parameters) for name in (*prior.numbers, *prior.choices)}


def _agreed(result: StudyResult, prior: Applied) -> str | None:
    values = _found(result, prior)
    told = []
    for name, each in prior.numbers.items():
        value = values.get(name)
        if value is not None:
            within = "as said" if each.low <= value <= each.high else "outside of that"
            told.append(f"{name} {value:.3g} ({within})")
    for name, choice in prior.choices.items():
        value = values.get(name)
        if value is not None:
            told.append(f"{name} {value} ({'as said' if value == choice else 'not that'})")
    return f"the winner has {', '.join(told)}" if told else None
