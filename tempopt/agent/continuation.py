"""Finds a study in the store and checks that a spec asks the same question as the stored one."""

from __future__ import annotations

from tempopt.errors import (
    StudyChanged,
    StudyNotFound,
)
from tempopt.records.rows import StudyRow
from tempopt.spec.identity import diff
from tempopt.spec.study_spec import StudySpec
from tempopt.store.store import Store
from tempopt.workers.secrets import refuse_secrets


def find(store: Store, name: str) -> StudyRow | None:
    """Return the study of that name, None if there is none."""
    try:
        return store.load_study(name)
    except StudyNotFound:
        return None


def go_on_with(store: Store, study: StudyRow, spec: StudySpec) -> None:
    """Refuse a spec that asks something else than the stored one does; what else it says is stored.

    Raises:
        StudyChanged: It asks something else.
    """
    stored = same_question(study, spec)
    counted, asked = (
        f"{each.num_baseline} baseline, {each.num_constant} constant and {each.study.trials} search tickets"
        for each in (stored, spec)
    )
    if counted != asked:
        raise StudyChanged(
            f'The store has a study "{study.name}" that was begun with {counted}, and {asked} are asked now. '
            f"Ask for as many; to add 10 search tickets: tempopt resume {study.name} --trials +10. "
            "Or give this one another name (--name)."
        )
    if spec.to_json() != stored.to_json():
        refuse_secrets(spec.trainer.get("logger"))
        store.set_spec(study.id, spec.to_json(), spec.identity())


def same_question(study: StudyRow, spec: StudySpec) -> StudySpec:
    """Return the stored spec of a study; it may say otherwise only how many runs there are and their care.

    Raises:
        StudyChanged: The given spec asks something else.
    """
    stored = StudySpec.from_json(study.spec)
    if changes := diff(stored, spec):
        listed = "\n".join(f"  {line}" for line in changes)
        raise StudyChanged(
            f'The store has a study "{study.name}" that was begun with another spec:\n{listed}\n'
            "Give this one another name (--name), or continue that one: "
            f"tempopt resume {study.name}."
        )
    return stored
