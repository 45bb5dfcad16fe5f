"""Requests to search, compare and resume: built by a front door, carried out by a database or a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tempopt.errors import UsageError
from tempopt.spec.compared_sets import GivenSet
from tempopt.spec.comparison_spec import comparison_spec
from tempopt.spec.study_spec import StudySpec

if TYPE_CHECKING:
    from tempopt.service.lifecycle import Storage


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRequest:
    """Create a study, or continue and extend the one that exists.

    Args:
        spec: Its spec.
        trials: Number of search trials of a new study, in place of the spec's.
        add_trials: Number of search trials to add to an existing study.
        enqueue: Parameter sets to try: the first trials of a new study, further trials of an existing one.
        version: Extend the study only while its tickets have this version; None: any.
    """

    spec: StudySpec
    trials: int | None = None
    add_trials: int = 0
    enqueue: Sequence[Mapping[str, Any]] = ()
    version: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the body of ``POST /api/studies``."""
        body = {"trials": self.trials, "add_trials": self.add_trials, "enqueue": list(self.enqueue)}
        return {"spec": self.spec.to_json(), **body, "version": self.version}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeRequest:
    """Continue a study, and extend it.

    Args:
        add_trials: Number of search trials to add; a new verdict follows.
        add_pairs: Number of pairs to add to its verdict.
        retry_failed: Whether to train runs again that failed on every attempt.
        explain: Whether to explain its verdict by further runs.
        version: Extend the study only while its tickets have this version; None: any.

    Raises:
        UsageError: More than one of these is requested.
    """

    add_trials: int = 0
    add_pairs: int = 0
    retry_failed: bool = False
    explain: bool = False
    version: int | None = None

    def __post_init__(self) -> None:
        if self.explain and (self.add_trials or self.add_pairs or self.retry_failed):
            raise UsageError(
                "An explanation is of the verdict that there is. Ask for more in another command."
            )
        if self.retry_failed and (self.add_trials or self.add_pairs):
            raise UsageError(
                "--retry-failed completes what was asked, and --trials and --pairs ask for more. "
                "Give them in two commands."
            )
        if self.add_pairs and self.add_trials:
            raise UsageError(
                "--pairs adds to the verdict that there is, --trials asks for another. Give one of them."
            )

    def to_json(self) -> dict[str, Any]:
        """Return the body of ``POST /api/studies/NAME/resume``."""
        return asdict(self)


CONTINUE = ResumeRequest()
"""Continue a study as it is."""


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
    """

    spec: StudySpec | Mapping[str, Any] | str | Path
    sets: Sequence[GivenSet] | Mapping[str, GivenSet] = ()
    vary: Mapping[str, Sequence[Any]] | None = None
    all_pairs: bool = False
    name: str | None = None
    pairs: int | None = None
    from_study: str | None = None
    from_storage: str | None = None
    top: int | None = None
    without: Sequence[str] = ()
    overrides: Sequence[str] = ()

    def build_spec(self, storage: Storage) -> StudySpec:
        """Return the spec of the comparison.

        Args:
            storage: Where ``from_study`` is, unless ``from_storage`` says so.

        Raises:
            UsageError: There is nothing to compare, or sets come from two sources.
            StudyNotFound: There is no study ``from_study``.
            SpecError: The spec or a set is wrong.
        """
        options: dict[str, Any] = {
            "all_pairs": self.all_pairs,
            "name": self.name,
            "pairs": self.pairs,
            "overrides": self.overrides,
        }
        if self.from_study is None:
            from_options = {
                "--top": self.top,
                "--without": self.without,
                "--from-storage": self.from_storage,
            }
            if set_options := [option for option, value in from_options.items() if value]:
                raise UsageError(f"{', '.join(set_options)}: give the study as well, as in --from STUDY.")
            return comparison_spec(self.spec, self.sets, vary=self.vary, **options)
        if self.sets or self.vary:
            raise UsageError(
                "--from takes the parameter sets from a study. Give no SET and no --vary with it."
            )
        # it loads SciPy, which a refusal does not need
        from tempopt.service.best_sets import comparison_from

        return comparison_from(
            self.from_study,
            self.from_storage or storage,
            self.spec,
            top=self.top,
            without=self.without,
            **options,
        )
