"""Check whether the study of a spec could be created, without importing its modules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tempopt.agent.study_lookup import check_distinct_param_names, find_study
from tempopt.errors import SpecError, UsageError
from tempopt.spec.custom_schedules import check_schedules
from tempopt.spec.identity import diff_specs
from tempopt.spec.lint import LintMessage, SpecLintResult, check_text, message_at, messages_of
from tempopt.spec.logger_secrets import check_no_secrets
from tempopt.spec.sections import KNOWLEDGE_GRADIENT
from tempopt.spec.study_spec import StudySpec
from tempopt.spec.yaml_source import YamlDocument
from tempopt.storage.rows import StudyState
from tempopt.storage.store import Store
from tempopt.verdict.set_comparison import check_comparison

MaySee = Callable[[str], bool]
"""Returns whether the caller may see a study of a name; others do not exist for the caller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExistingStudy:
    """The existing study with a spec's name.

    Args:
        state: Its state.
        same: Whether the spec equals the stored one in all keys that have to be equal to continue it.
        differences: A line for each difference.
    """

    state: StudyState
    same: bool
    differences: tuple[str, ...]


def check(text: str, store: Store, is_visible: MaySee) -> SpecLintResult:
    """Check the text of a spec as ``tempopt check`` does, except for the classes that it names.

    Args:
        text: The spec in YAML.
        store: The database for the study; nothing is written.
        is_visible: See :data:`MaySee`.
    """
    checked_text = check_text(text)
    if checked_text.spec is None or checked_text.origin is None:
        return checked_text
    spec, origin = checked_text.spec, checked_text.origin
    messages = list(_check_names(spec, origin, is_visible))
    for checker in (check_schedules, _check_strategies, _check_loggers, _check_sets):
        with _collect_messages(messages, origin):
            checker(spec)
    if not messages and find_study(store, spec.study.name) is None:
        for store_check in (check_distinct_param_names, _check_prior_runs):
            with _collect_messages(messages, origin):
                store_check(store, spec)
        messages += [message_at(origin, path, text) for path, text in find_unresolved_references(spec)]
    return checked_text.with_messages(messages)


def check_resolvable_on_server(spec: StudySpec) -> None:
    """Refuse a study that needs values which only a dry run can find.

    Raises:
        SpecError: A value is missing.
    """
    if lines := find_unresolved_references(spec):
        raise SpecError("\n".join(f"{path}: {text}" for path, text in lines))


def find_existing_study(spec: StudySpec, store: Store) -> ExistingStudy | None:
    """Return the existing study with a spec's name, None if there is none."""
    row = find_study(store, spec.study.name)
    if row is None:
        return None
    stored_spec = StudySpec.from_json(row.spec)
    # values that a dry run added to the stored spec are not differences: the same text continues it
    new_spec = spec.with_stored_dry_run_results(stored_spec)
    lines = list(diff_specs(stored_spec, new_spec).values())
    if not lines:
        before, now = stored_spec.num_trials, new_spec.num_trials
        lines = [f"study.trials: was {before}, now {now}"] if before != now else []
    return ExistingStudy(state=row.state, same=not lines, differences=tuple(lines))


def _check_names(spec: StudySpec, origin: YamlDocument, is_visible: MaySee) -> Iterator[LintMessage]:
    if not is_visible(spec.study.name):
        text = f'you may not create a study named "{spec.study.name}". Give another name.'
        yield message_at(origin, "study.name", text)
    for name in spec.study.warm_start:
        if not is_visible(name):
            yield message_at(origin, "study.warm_start", f'there is no study "{name}".')


@contextmanager
def _collect_messages(messages: list[LintMessage], origin: YamlDocument) -> Iterator[None]:
    """Collect the errors of a check as messages."""
    try:
        yield
    except (SpecError, UsageError) as error:
        messages += messages_of(str(error), origin)


def _check_strategies(spec: StudySpec) -> None:
    """Refuse an invalid sampler or pruner of Optuna; options of tempopt's own are validated before."""
    if {spec.study.sampler.name, spec.study.pruner.name} == {KNOWLEDGE_GRADIENT}:
        return
    from tempopt.agent.study_runner import validate_sampler_and_pruner  # loads Optuna

    validate_sampler_and_pruner(spec)


def _check_prior_runs(store: Store, spec: StudySpec) -> None:
    if spec.study.warm_start:
        from tempopt.agent.study_creation import load_warm_start_runs  # loads Optuna

        load_warm_start_runs(store, spec)


def _check_loggers(spec: StudySpec) -> None:
    check_no_secrets(spec.trainer.get("logger"))


def _check_sets(spec: StudySpec) -> None:
    if spec.compare is not None:
        check_comparison(spec)


def find_unresolved_references(spec: StudySpec) -> list[tuple[str, str]]:
    """Return path and message of missing values that only a dry run can find in the module."""
    return [
        (
            f"temperatures.{name}",
            "as_found is missing: the temperature of the module, with which searched ones are compared. "
            f"A server imports no module. Give it, as in {name}: {{..., as_found: 0.5}}, or create the "
            "study with tempopt search, which reads it.",
        )
        for name, temperature in spec.temperatures.items()
        if temperature.as_found is None
    ]
