"""Requests to search, compare and resume: built by a front door, carried out by a database or a server."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tempopt.errors import SpecError, UsageError
from tempopt.spec.compared_sets import MAX_RUNS, GivenSet
from tempopt.spec.comparison_spec import comparison_spec
from tempopt.spec.study_spec import StudySpec

if TYPE_CHECKING:
    from tempopt.service.lifecycle import Storage

Sets = Sequence[GivenSet] | Mapping[str, GivenSet]
"""Parameter sets to compare, by name if they are given as a mapping."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRequest:
    """Create a study, or continue and extend the one that exists.

    Args:
        spec: Its spec, of a search or of a comparison.
        trials: Number of search trials of a new study, in place of the spec's.
        add_trials: Number of search trials to add to an existing study.
        enqueue: Parameter sets to try: the first trials of a new study, further trials of an existing one.
        version: Extend the study only while its tickets have this version; None: any.
        max_runs: Most runs that a comparison may take; None: as many as it needs.
        from_study: Name of the study that the sets of a comparison come from, if they do.
    """

    spec: StudySpec
    trials: int | None = None
    add_trials: int = 0
    enqueue: Sequence[Mapping[str, Any]] = ()
    version: int | None = None
    max_runs: int | None = None
    from_study: str | None = None

    @property
    def study(self) -> str:
        """Name of the study."""
        return self.spec.study.name

    def to_json(self) -> dict[str, Any]:
        """Return the body of ``POST /api/studies``."""
        body = {"trials": self.trials, "add_trials": self.add_trials, "enqueue": list(self.enqueue)}
        return {"spec": self.spec.to_json(), **body, "version": self.version}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeRequest:
    """Continue a study, and extend it.

    Args:
        study: Name of the study.
        add_trials: Number of search trials to add; a new verdict follows.
        add_pairs: Number of pairs to add to its verdict.
        retry_failed: Whether to train runs again that failed on every attempt.
        explain: Whether to explain its verdict by further runs.
        version: Extend the study only while its tickets have this version; None: any.

    Raises:
        UsageError: More than one of these is requested.
    """

    study: str
    add_trials: int = 0
    add_pairs: int = 0
    retry_failed: bool = False
    explain: bool = False
    version: int | None = None

    def __post_init__(self) -> None:
        values = {
            "more trials": self.add_trials,
            "more pairs": self.add_pairs,
            "failed runs again": self.retry_failed,
            "an explanation": self.explain,
        }
        requested = [name for name, value in values.items() if value]
        if len(requested) > 1:
            raise UsageError(
                f"{' and '.join(requested)} were requested at once, and each acts on the verdict that there "
                "is. Ask for one of them in a command, and for the next in another command."
            )

    def to_json(self) -> dict[str, Any]:
        """Return the body of ``POST /api/studies/NAME/resume``."""
        return {name: value for name, value in asdict(self).items() if name != "study"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareRequest:
    """Compare parameter sets: those that are given, or the best of a finished study.

    Args:
        spec: What they are sets of: loaded, as plain data, the path of a YAML file or a bundled study's name.
        sets: The reference first; empty: those of the spec's section ``compare:``.
        vary: In place of ``sets``: values by parameter, each combination of which is a set.
        all_pairs: Whether to compare each two sets, in place of each with the first.
        name: Name of the study; None: the spec's with a short hash of the sets.
        pairs: Number of fresh seeds in place of ``study.seeds.confirm``.
        from_study: In place of ``sets``: name of a finished study whose best sets are compared with its
            baseline.
        from_storage: Where that study is; None: where the comparison is stored.
        top: Number of its sets, the baseline not counted; None: three.
        without: Names of parameters to leave out of all of them.
        overrides: Settings ``a.b=c`` of the spec.
        max_runs: Most runs that it may take.
    """

    spec: StudySpec | Mapping[str, Any] | str | Path
    sets: Sets = ()
    vary: Mapping[str, Sequence[Any]] | None = None
    all_pairs: bool = False
    name: str | None = None
    pairs: int | None = None
    from_study: str | None = None
    from_storage: str | None = None
    top: int | None = None
    without: Sequence[str] = ()
    overrides: Sequence[str] = ()
    max_runs: int = MAX_RUNS

    def to_search(self, storage: Storage) -> SearchRequest:
        """Return the request whose spec has the sets to compare.

        Args:
            storage: Where ``from_study`` is, unless ``from_storage`` says so.

        Raises:
            UsageError: There is nothing to compare, or sets come from two sources.
            StudyNotFound: There is no study ``from_study``.
            SpecError: The spec or a set is wrong.
        """
        sets = self.sets
        if self.from_study is None:
            options = {"--top": self.top, "--without": self.without, "--from-storage": self.from_storage}
            if set_options := [option for option, value in options.items() if value]:
                raise UsageError(f"{', '.join(set_options)}: give the study as well, as in --from STUDY.")
        elif self.sets or self.vary:
            raise UsageError(
                "--from takes the parameter sets from a study. Give no SET and no --vary with it."
            )
        else:
            # it loads SciPy, which a refusal does not need
            from tempopt.service.best_sets import load_best_sets

            study_storage = self.from_storage or storage
            sets = load_best_sets(self.from_study, study_storage, top=self.top, without=self.without)
        with hint_at_without_option(self):
            spec = comparison_spec(
                self.spec,
                sets,
                vary=self.vary,
                all_pairs=self.all_pairs,
                name=self.name,
                pairs=self.pairs,
                overrides=self.overrides,
            )
        return SearchRequest(spec=spec, max_runs=self.max_runs, from_study=self.from_study)


@contextmanager
def hint_at_without_option(request: SearchRequest | ResumeRequest | CompareRequest) -> Iterator[None]:
    """Say in an error on a parameter of the sets that come from a study how to leave the parameter out."""
    study = None if isinstance(request, ResumeRequest) else request.from_study
    try:
        yield
    except SpecError as error:
        if study is None or "compare." not in str(error):
            raise
        names = dict.fromkeys(re.findall(r"compare\.(\S+): Unknown argument", str(error))) or ["NAME"]
        raise SpecError(
            f"{error}\nThe parameter sets are those of the study {study}. Leave a parameter that this spec "
            f"does not accept out of all of them by {' '.join(f'--without {name}' for name in names)}."
        ) from error
