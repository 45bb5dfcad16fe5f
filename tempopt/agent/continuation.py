"""Finds a study in the store and checks that a spec asks the same question as the stored one."""

from __future__ import annotations

from tempopt.errors import SpecError, StudyChanged, StudyNotFound
from tempopt.records.rows import StudyRow
from tempopt.spec.identity import differences
from tempopt.spec.study_spec import StudySpec
from tempopt.spec.temperatures import begun_as
from tempopt.store.store import Store
from tempopt.workers.secrets import refuse_secrets


def find(store: Store, name: str) -> StudyRow | None:
    """Return the study of that name, None if there is none."""
    try:
        return store.load_study(name)
    except StudyNotFound:
        return None


def go_on_with(store: Store, study: StudyRow, spec: StudySpec) -> StudySpec:
    """Return a spec as that of a study that is there; what it says and the stored one does not, is stored.

    Raises:
        StudyChanged: It asks something else.
    """
    stored = same_question(study, spec)
    spec = begun_as(spec, stored)
    counted, asked = (
        f"{each.num_baseline} baseline, {each.num_constant} constant and {each.study.trials} search tickets"
        for each in (stored, spec)
    )
    if counted != asked:
        # who asks for fewer than there are most likely means so many more
        more = spec.study.trials - stored.study.trials
        more = more if more > 0 else spec.study.trials
        raise StudyChanged(
            f'The store has a study "{study.name}" that was begun with {counted}, and {asked} are asked now. '
            f"Ask for as many; to add {more} search tickets: tempopt resume {study.name} --trials +{more}. "
            "Or give this one another name (--name)."
        )
    if spec.to_json() != stored.to_json():
        refuse_secrets(spec.trainer.get("logger"))
        store.set_spec(study.id, spec.to_json(), spec.identity())
    return spec


def same_question(study: StudyRow, spec: StudySpec) -> StudySpec:
    """Return the stored spec of a study; it may say otherwise only how many runs there are and their care.

    Raises:
        StudyChanged: The given spec asks something else.
    """
    stored = StudySpec.stored(study)
    if found := differences(stored, begun_as(spec, stored)):
        listed = "\n".join(f"  {line}" for line in found.values())
        told = f'The store has a study "{study.name}" that was begun with another spec:\n{listed}\n'
        raise StudyChanged(
            f"{told}Give this one another name (--name), or continue that one: tempopt resume {study.name}. "
            f"A study of another name learns from its runs with study.warm_start: [{study.name}]."
        )
    return stored


def refuse_alike(store: Store, spec: StudySpec) -> None:
    """Refuse a search whose parameters the database cannot tell apart in Optuna's tables.

    Raises:
        SpecError: Two of its names differ in case or accents alone, and the server ignores those.
    """
    if spec.compare is None and (two := store.alike(list(spec.space("search")))):
        raise SpecError(
            f'The study spec searches "{two[0]}" and "{two[1]}", which the database {store.url_shown} takes '
            "for one and the same name in Optuna's tables (their collation ignores case or accents). Rename "
            "one of these arguments in the module, or give another --storage: SQLite and PostgreSQL tell "
            "such names apart."
        )
