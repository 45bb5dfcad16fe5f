"""Which numbers of a study its budget of GPU-hours decides: those that its spec leaves open.

What they become is ``tempopt.forecast.split``'s; which are open is seen here, where the spec is first read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from tempopt.spec.study_spec import StudySpec

Number = Literal["trials", "candidates", "seeds.choose", "proxy.finalists", "seeds.confirm"]
Question = Literal["init_only", "learned", "ablation"]
Open = Literal[Number, Question]
NUMBERS: tuple[Number, ...] = ("trials", "candidates", "seeds.choose", "proxy.finalists", "seeds.confirm")
"""Numbers under ``study:`` that a budget can decide; a study without a proxy has no finalists."""
QUESTIONS: tuple[Question, ...] = ("init_only", "learned", "ablation")
"""Keys under ``study:`` that ask for runs which no verdict needs, and that a budget can leave out."""


def with_open_names(given: object) -> object:
    """Return the section ``study:`` as it was written, with the names in it that its budget decides.

    None are where the section says so itself, has no ``limits.gpu_hours``, gives all of :data:`NUMBERS`, or
    asks for something else than a verdict about temperature.
    """
    if not isinstance(given, Mapping):
        return given
    limits = given.get("limits")
    if not isinstance(limits, Mapping) or limits.get("gpu_hours") is None or limits.get("split") is not None:
        return given
    left = [name for name in (*NUMBERS, *QUESTIONS) if not _is_given(given, name)]
    other = any(given.get(name) is not None for name in ("compare", "evaluate_only"))
    if other or not set(left) & set(NUMBERS):
        left = []
    return {**given, "limits": {**limits, "split": left}}


def _is_given(section: Mapping[str, Any], name: str) -> bool:
    first, _, rest = name.partition(".")
    own = section.get(first)
    if first == "proxy" and own is None:
        # there are no finalists to be decided on
        return True
    return first in section and (not rest or not isinstance(own, Mapping) or rest in own)


def without_open(data: dict[str, Any], paths: Iterable[tuple[str, ...]]) -> dict[str, Any]:
    """Return a spec as plain data in which the budget no longer decides what has been written over it.

    Args:
        data: The spec, complete.
        paths: What has been written over it, as in ``("study", "seeds", "confirm")``.
    """
    study = data.get("study")
    limits = study.get("limits") if isinstance(study, dict) else None
    if not isinstance(limits, dict) or not limits.get("split"):
        return data
    written = {".".join(path[1:]) for path in paths if path[:1] == ("study",)}
    kept = [name for name in limits["split"] if name not in written and name.partition(".")[0] not in written]
    return {**data, "study": {**data["study"], "limits": {**limits, "split": kept}}}


def split_as(spec: StudySpec, stored: StudySpec) -> StudySpec:
    """Return a spec with what the budget of the stored study decided where this one leaves it open."""
    limits, before = spec.study.limits, stored.study.limits
    if not limits.split:
        return spec
    found: dict[str, Any] = {name: value_of(stored, name) for name in limits.split}
    return with_numbers(spec, found, run=before.run_gpu_hours, proxy=before.proxy_prices)


def value_of(spec: StudySpec, name: str) -> Any:
    """Return what a spec has under one of the names that a budget decides; None: it has no proxy."""
    found: Any = spec.study
    for part in name.split("."):
        found = None if found is None else getattr(found, part)
    return found


def with_numbers(
    spec: StudySpec, found: Mapping[str, Any], *, run: float | None, proxy: Sequence[float] | None
) -> StudySpec:
    """Return a spec with other numbers and another price.

    Args:
        spec: The spec.
        found: Values by name, as :func:`value_of` has them; what is None stays as it is.
        run: GPU-hours of a run at full size; None: as the spec says.
        proxy: The same of each of its proxies; None or empty: as the spec says, or there are none.
    """
    limits = spec.study.limits
    small = list(proxy or limits.proxy_prices or ())
    prices = {
        "run_gpu_hours": run or limits.run_gpu_hours,
        "proxy_gpu_hours": small if len(small) > 1 else next(iter(small), None),
    }
    update: dict[str, Any] = {"limits": limits.model_copy(update=prices)}
    for name, each in found.items():
        section, _, key = name.rpartition(".")
        if each is not None and section:
            own = update.get(section, getattr(spec.study, section))
            update[section] = own.model_copy(update={key: each})
        elif each is not None:
            update[key] = each
    study = spec.study.model_copy(update=update)
    return spec.model_copy(update={"study": study})
