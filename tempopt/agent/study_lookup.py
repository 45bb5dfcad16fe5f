"""Find a study in the store, and check that a spec describes the same study as the stored one."""

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
    """Return the spec of an existing study, completed by the stored one; store settings that may change.

    Raises:
        StudyChanged: The spec describes a different study.
    """
    stored_spec = check_same_study(study, spec)
    spec = spec.with_stored_dry_run_results(stored_spec)
    stored_counts, new_counts = (
        f"{study_spec.num_baseline} baseline, {study_spec.num_constant} constant and "
        f"{study_spec.num_trials} search tickets"
        for study_spec in (stored_spec, spec)
    )
    if stored_counts != new_counts:
        # a total below the current number most likely means that many additional trials
        num_added = spec.num_trials - stored_spec.num_trials
        num_added = num_added if num_added > 0 else spec.num_trials
        raise StudyChanged(
            f'The study "{study.name}" in the store was created with {stored_counts}; this spec has '
            f"{new_counts}. Use the same numbers; to add {num_added} search tickets: tempopt resume "
            f"{study.name} --trials +{num_added}. Or give this study another name (--name)."
        )
    if spec.to_json() != stored_spec.to_json():
        check_no_secrets(spec.trainer.get("logger"))
        store.set_spec(study.id, spec.to_json(), spec.identity())
    return spec


def check_same_study(study: StudyRow, spec: StudySpec) -> StudySpec:
    """Return the stored spec of a study; the given one may differ in the number and handling of runs only.

    Raises:
        StudyChanged: The given spec describes a different study.
    """
    stored_spec = StudySpec.from_json(study.spec)
    if changes := diff_specs(stored_spec, spec.with_stored_dry_run_results(stored_spec)):
        listing = "\n".join(f"  {line}" for line in changes.values())
        message = f'The study "{study.name}" in the store was created with another spec:\n{listing}\n'
        raise StudyChanged(
            f"{message}Give this study another name (--name), or continue the stored one: tempopt "
            f"resume {study.name}. A study of another name learns from its runs with study.warm_start: "
            f"[{study.name}]."
        )
    return stored_spec


def check_distinct_param_names(store: Store, spec: StudySpec) -> None:
    """Refuse a search whose parameters the database cannot distinguish in Optuna's tables.

    Raises:
        SpecError: Two names differ only in case or accents, which the database ignores.
    """
    if spec.compare is None and (alike_names := store.find_colliding_param_names(list(spec.space("search")))):
        raise SpecError(
            f'The study spec searches "{alike_names[0]}" and "{alike_names[1]}", which the database '
            f"{store.masked_url} treats as the same name in Optuna's tables (their collation "
            "ignores case or accents). Rename one of these arguments in the module, or give another "
            "--storage: SQLite and PostgreSQL distinguish such names."
        )
