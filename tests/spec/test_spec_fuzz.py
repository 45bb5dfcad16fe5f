"""Whatever stands in a spec: it is understood, or refused in words; never a crash, never a half-truth."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tempopt.errors import SpecError
from tempopt.spec.study_spec import StudySpec
from tempopt.verdict.stages import initial_tickets

VALID: dict[str, Any] = {
    "study": {
        "name": "fuzzed",
        "metric": "val_loss",
        "direction": "minimize",
        "trials": 6,
        "arms": {"baseline": 2, "constant": 3},
        "candidates": 2,
        "seeds": {"choose": 2, "confirm": 6},
        "sampler": {"name": "tpe", "n_startup_trials": 4},
        "pruner": "median",
        "parallel": 3,
        "limits": {"hours": 2.5},
        "lease": 60,
        "enqueue": [{"temperature_init": 0.5}],
    },
    "model": {"class_path": "package.Model", "init_args": {"width": 8, "entropy_lambda": 0.1}},
    "data": {"class_path": "package.Data"},
    "trainer": {"max_steps": 10},
    "search": {
        "temperature_init": {"low": 0.25, "high": 4.0, "log": True},
        "schedule": ["constant", "linear"],
        "temperature_final": {"low": 0.25, "high": 4.0},
        "lr": {"low": 1e-4, "high": 1e-1, "log": True},
        "data.batch_size": {"choices": [8, 16]},
    },
    "resources": {"workers": 2, "grace": 5},
}

words = st.sampled_from(
    [*("", "tpe", "median", "low", "high", "log", "choices", "linear"), *("a.b", "${X}", "null", "τ", "\0")]
)
numbers = st.integers() | st.integers(-3, 12) | st.floats()
leaves = st.none() | st.booleans() | numbers | words | st.text(max_size=12)
anything = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(words | st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=6,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of everything in plain data, the whole aside."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else []
    paths: list[tuple[Any, ...]] = []
    for key, inner in items:
        paths += [(*path, key), *places(inner, (*path, key))]
    return paths


@st.composite
def fuzz_spec(draw: st.DrawFn) -> dict[str, Any]:
    """Return the valid spec with up to three places replaced, taken out or added to."""
    spec = copy.deepcopy(VALID)
    for _ in range(draw(st.integers(1, 3))):
        *parents, key = draw(st.sampled_from(places(spec)))
        section = spec
        for parent in parents:
            section = section[parent]
        match draw(st.sampled_from(["replace", "remove", "add"])):
            case "replace":
                section[key] = draw(anything)
            case "remove":
                del section[key]
            case "add" if isinstance(section, dict):
                section[draw(words | st.text(max_size=6))] = draw(anything)
    return spec


FUZZ = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@FUZZ
@given(fuzz_spec())
def test_a_spec_is_understood_whole_or_refused_in_words(data: dict[str, Any]) -> None:
    try:
        spec = StudySpec.parse(data, source="the test")
    except SpecError as error:
        assert "This study spec has" in str(error) and len(str(error)) < 10_000
        return
    reread_spec = StudySpec.from_json(spec.to_json())
    assert reread_spec.to_json() == spec.to_json() and reread_spec.identity() == spec.identity()
    tickets = initial_tickets(spec)
    assert len(tickets) == len({(t.kind, t.number) for t in tickets})
    assert sum(t.kind == "search" for t in tickets) == spec.num_trials


def test_the_spec_that_is_fuzzed_is_a_good_one() -> None:
    assert len(initial_tickets(StudySpec.parse(VALID, source="the test"))) == 11


@FUZZ
@given(anything | fuzz_spec())
def test_a_stored_spec_of_any_making_is_read_or_refused(data: Any) -> None:
    try:
        StudySpec.from_json(data if isinstance(data, dict) else {"study": data})
    except SpecError as error:
        assert "Another version of tempopt" in str(error)
