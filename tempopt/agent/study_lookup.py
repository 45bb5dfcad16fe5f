"""Finds a study in the store and checks that a spec asks the same question as the stored one."""

from __future__ import annotations

from tempopt.errors import SpecError, StudyChanged, StudyNotFound
from tempopt.spec.identity import diff_specs
from tempopt.spec.logger_secrets import check_no_secrets
from tempopt.spec.study_spec import StudySpec
from tempopt.storage.rows import StudyRow
from tempopt.storage.store import Store


def find_study(store: Store, name: str) -> StudyRow | None:
    """Return the study of that name, None if there is none."""
    try:
        return store.load_study(name)
    except StudyNotFound:
        return None


def reconcile_spec(store: Store, study: StudyRow, spec: StudySpec) -> StudySpec:
    """Return a spec as that of a study that is there; what it says and the stored one does not, is stored.

    Raises:
        StudyChanged: It asks something else.
    """
    stored_spec = check_same_study(study, spec)
    spec = spec.with_stored_dry_run_results(stored_spec)
    stored_counts, new_counts = (
        f"{study_spec.num_baseline} baseline, {study_spec.num_constant} constant and "
        f"{study_spec.num_trials} search tickets"
        for study_spec in (stored_spec, spec)
    )
    if stored_counts != new_counts:
        # who asks for fewer than there are most likely means so many more
        num_added = spec.num_trials - stored_spec.num_trials
        num_added = num_added if num_added > 0 else spec.num_trials
        raise StudyChanged(
            f'The store has a study "{study.name}" that was begun with {stored_counts}, and {new_counts} are '
            f"asked now. Ask for as many; to add {num_added} search tickets: tempopt resume {study.name} "
            f"--trials +{num_added}. Or give this one another name (--name)."
        )
    if spec.to_json() != stored_spec.to_json():
        check_no_secrets(spec.trainer.get("logger"))
        store.set_spec(study.id, spec.to_json(), spec.identity())
    return spec


def check_same_study(study: StudyRow, spec: StudySpec) -> StudySpec:
    """Return the stored spec of a study; it may say otherwise only how many runs there are and their care.

    Raises:
        StudyChanged: The given spec asks something else.
    """
    stored_spec = StudySpec.from_json(study.spec)
    if changes := diff_specs(stored_spec, spec.with_stored_dry_run_results(stored_spec)):
        listing = "\n".join(f"  {line}" for line in changes.values())
        message = f'The store has a study "{study.name}" that was begun with another spec:\n{listing}\n'
        raise StudyChanged(
            f"{message}Give this one another name (--name), or continue that one: tempopt "
            f"resume {study.name}. A study of another name learns from its runs with study.warm_start: "
            f"[{study.name}]."
        )
    return stored_spec


def check_distinct_param_names(store: Store, spec: StudySpec) -> None:
    """Refuse a search whose parameters the database cannot tell apart in Optuna's tables.

    Raises:
        SpecError: Two of its names differ in case or accents alone, and the server ignores those.
    """
    if spec.compare is None and (alike_names := store.find_colliding_param_names(list(spec.space("search")))):
        raise SpecError(
            f'The study spec searches "{alike_names[0]}" and "{alike_names[1]}", which the database '
            f"{store.masked_url} takes for one and the same name in Optuna's tables (their collation "
            "ignores case or accents). Rename one of these arguments in the module, or give another "
            "--storage: SQLite and PostgreSQL tell such names apart."
        )
