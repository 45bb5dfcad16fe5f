"""Requests to search, compare and resume, from the command line, Python, the server or MCP."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import ConfigDict, Field

from tempopt.errors import SpecError, UsageError
from tempopt.spec.compared_sets import MAX_COMPARISON_RUNS, GivenSet
from tempopt.spec.comparison_spec import comparison_spec
from tempopt.spec.study_spec import StudySpec

if TYPE_CHECKING:
    from tempopt.service.lifecycle import Storage

Sets = Sequence[GivenSet] | Mapping[str, GivenSet]
"""Parameter sets to compare, by name if they are given as a mapping."""


MAX_RUNS = 100_000
_MAX_PAIRS = 1000
_RunCount = Annotated[int, Field(ge=0, le=MAX_RUNS)]
TicketVersion = Annotated[int | None, Field(ge=0, le=2**31 - 1)]


@dataclass(frozen=True, kw_only=True)
class SearchExtension:
    """The fields of a search beside its spec; also of the body of ``POST /api/studies``.

    Args:
        trials: Number of search trials of a new study, in place of the spec's.
        add_trials: Number of search trials to add to an existing study.
        enqueue: Parameter sets to try: the first trials of a new study, further trials of an existing one.
        version: Extend the study only while its tickets have this version, so that a request that arrives
            twice adds its runs once; None: any.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", allow_inf_nan=False)

    trials: Annotated[int | None, Field(ge=1, le=MAX_RUNS)] = None
    add_trials: _RunCount = 0
    enqueue: Annotated[Sequence[Mapping[str, Any]], Field(max_length=MAX_RUNS)] = ()
    version: TicketVersion = None


@dataclass(frozen=True, kw_only=True)
class SearchRequest(SearchExtension):
    """Create a study, or continue and extend the one that exists.

    Args:
        spec: Its spec, of a search or of a comparison.
        max_runs: Maximal number of runs of a comparison; None: no limit.
        from_study: Name of the study from which the sets of a comparison come, if they do.
    """

    spec: StudySpec
    max_runs: int | None = None
    from_study: str | None = None

    @property
    def study(self) -> str:
        """Name of the study."""
        return self.spec.study.name

    def to_json(self) -> dict[str, Any]:
        """Return the body of ``POST /api/studies``."""
        return {"spec": self.spec.to_json(), **_field_values(self, SearchExtension)}


@dataclass(frozen=True, kw_only=True)
class StudyExtension:
    """What a resumption adds to a study; the body of ``POST /api/studies/NAME/resume``.

    Args:
        add_trials: Number of search trials to add; a new verdict follows.
        add_pairs: Number of pairs to add to its verdict.
        retry_failed: Whether to train runs again that failed on every attempt.
        explain: Whether to explain its verdict by further runs.
        version: Extend the study only while its tickets have this version, so that a request that arrives
            twice adds its runs once; None: any.

    Raises:
        UsageError: More than one of these is requested.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    add_trials: _RunCount = 0
    add_pairs: Annotated[int, Field(ge=0, le=_MAX_PAIRS)] = 0
    retry_failed: bool = False
    explain: bool = False
    version: TicketVersion = None

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
                f"{' and '.join(requested)} were requested together, but each acts on the current verdict. "
                "Request them one at a time, each with its own command."
            )


@dataclass(frozen=True, kw_only=True)
class ResumeRequest(StudyExtension):
    """Continue a study, and extend it."""

    study: str

    def to_json(self) -> dict[str, Any]:
        """Return the body of ``POST /api/studies/NAME/resume``."""
        return _field_values(self, StudyExtension)


def _field_values(request: object, kind: type[SearchExtension | StudyExtension]) -> dict[str, Any]:
    return {field.name: getattr(request, field.name) for field in fields(kind)}


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareRequest:
    """Compare given parameter sets, or the best sets of a finished study.

    Args:
        spec: The spec: loaded, as plain data, the path of a YAML file or a bundled study's name.
        sets: The parameter sets, the reference first; empty: those of the spec's section ``compare:``.
        vary: In place of ``sets``: values by parameter, each combination of which is a set.
        all_pairs: Whether to compare every two sets, instead of each with the first.
        name: Name of the study; None: that of the spec with a short hash of the sets.
        pairs: Number of fresh seeds in place of ``study.seeds.confirm``, written as there.
        from_study: In place of ``sets``: name of a finished study whose best sets are compared with its
            baseline.
        from_storage: Storage of that study; None: the storage of the comparison.
        top: Number of its sets, without the baseline; None: three.
        without: Names of parameters to leave out of all sets.
        overrides: Settings ``a.b=c`` of the spec.
        max_runs: Maximal number of runs.
    """

    spec: StudySpec | Mapping[str, Any] | str | Path
    sets: Sets = ()
    vary: Mapping[str, Sequence[Any]] | None = None
    all_pairs: bool = False
    name: str | None = None
    pairs: int | Mapping[str, int] | None = None
    from_study: str | None = None
    from_storage: str | None = None
    top: int | None = None
    without: Sequence[str] = ()
    overrides: Sequence[str] = ()
    max_runs: int = MAX_COMPARISON_RUNS

    def to_search(self, storage: Storage) -> SearchRequest:
        """Return the search request whose spec has the sets.

        Args:
            storage: Storage of ``from_study``, if ``from_storage`` is None.

        Raises:
            UsageError: There is nothing to compare, or sets come from two sources.
            StudyNotFound: There is no study ``from_study``.
            SpecError: The spec or a set is invalid.
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
            # lazy import: loads SciPy
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
    """Add to an error on a parameter of a study's sets how to leave the parameter out."""
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
