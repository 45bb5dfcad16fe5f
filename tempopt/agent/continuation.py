"""Finds a study in the store and checks that a spec asks the same question as the stored one."""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Iterable

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
    return spec.following(stored.amendments)


def same_question(study: StudyRow, spec: StudySpec) -> StudySpec:
    """Return the stored spec of a study; it may say otherwise only how many runs there are and their care.

    Raises:
        StudyChanged: The given spec asks something else.
    """
    stored = StudySpec.stored(study)
    if found := differences(stored, begun_as(spec, stored)):
        listed = "\n".join(f"  {line}" for line in found.values())
        told = f'The store has a study "{study.name}" that was begun with another spec:\n{listed}\n'
        if found.keys() <= amendable(stored, spec, found):
            raise StudyChanged(
                f"{told}Only its search space differs, which can be amended: give this command --amend, or\n"
                f"  {_command(stored, spec)}\n"
                "The runs that there are stay, and a verdict after it has its own share of the error rate. "
                f"Or give this one another name (--name), or continue that one: tempopt resume {study.name}."
            )
        raise StudyChanged(
            f"{told}Give this one another name (--name), or continue that one: tempopt resume {study.name}."
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


def amendable(stored: StudySpec, spec: StudySpec, paths: Collection[str]) -> set[str]:
    """Return which paths that differ belong to the search space.

    A name that is searched before or after an amendment, and not both, has its value set elsewhere as well.
    """
    names = stored.search.keys() ^ spec.search.keys()
    elsewhere = {each for name in names for each in (f"model.init_args.{name}", name)}
    elsewhere |= {f"data.init_args.{n.removeprefix('data.')}" for n in names if n.startswith("data.")}
    # the last value that is set may have been taken out
    elsewhere |= {"model.init_args", "data.init_args"} if names else set()
    return {path for path in paths if path.startswith("search.") or path in elsewhere}


def refused(stored: StudySpec, lines: Iterable[str]) -> StudyChanged:
    """Return the error about what cannot be amended."""
    name, listed = stored.study.name, "\n".join(f"  {line}" for line in lines)
    return StudyChanged(
        f'This cannot be amended in the study "{name}":\n{listed}\n'
        "Only the search space can. Runs that differ in anything else are not comparable with those that "
        "there are, and one verdict cannot be about both. Put it back, or begin another study with it "
        f"(--name) that learns from this one (study.warm_start: [{name}])."
    )


def _command(stored: StudySpec, spec: StudySpec) -> str:
    """Return the command that amends a study so."""
    before, after = stored.to_json()["search"], spec.to_json()["search"]
    changed = {n: after.get(n) for n in {**before, **after} if before.get(n) != after.get(n)}
    told = " ".join(
        f"--amend {shlex.quote(f'search.{name}={_flow(domain)}')}" for name, domain in changed.items()
    )
    return f"tempopt resume {shlex.quote(stored.study.name)} {told}"


def _flow(value: object) -> str:
    """Return plain data as YAML in one line."""
    if isinstance(value, dict):
        if value.keys() == {"choices"}:
            return _flow(value["choices"])
        return f"{{{', '.join(f'{key}: {json.dumps(each)}' for key, each in value.items())}}}"
    return json.dumps(value, ensure_ascii=False)
