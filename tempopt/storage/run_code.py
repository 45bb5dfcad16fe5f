"""The code that trained a run: identity, git commit and package versions, in one line of text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

_DIRTY = "+changes"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCode:
    """The code that trained a run.

    Args:
        identity: Short hash of the modules' source files and of the packages with which they train.
        commit: Git commit of the module's repository; None if it is in no repository.
        is_dirty: Whether tracked files differed from that commit.
        packages: Version by package.
    """

    identity: str
    commit: str | None = None
    is_dirty: bool = False
    packages: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> RunCode:
        """Return the code of which :attr:`text` is the text."""
        identity, *words = text.split(" ")
        values = dict(word.partition("=")[::2] for word in words)
        commit = values.pop("git", None)
        return cls(
            identity=identity,
            commit=commit and commit.removesuffix(_DIRTY),
            is_dirty=commit is not None and commit.endswith(_DIRTY),
            packages=values,
        )

    @property
    def text(self) -> str:
        """One line of text, as stored in the database."""
        commit = [] if self.commit is None else [f"git={self.commit}{_DIRTY * self.is_dirty}"]
        return " ".join(
            [self.identity, *commit, *(f"{name}={value}" for name, value in self.packages.items())]
        )

    @property
    def words(self) -> str:
        """The same for people, the commit shortened."""
        commit = "" if self.commit is None else f"commit {self.commit[:12]}"
        changes = " with uncommitted changes" if self.is_dirty else ""
        packages = [f"{name} {value}" for name, value in self.packages.items()]
        return ", ".join(filter(None, [f"code {self.identity}", commit + changes, *packages]))


def run_codes(codes: Iterable[str | None]) -> list[tuple[RunCode, int]]:
    """Return the versions of code that have trained runs, with their numbers of runs, most first."""
    counts = Counter(code for code in codes if code is not None)
    return [(RunCode.parse(code), count) for code, count in counts.most_common()]


def run_codes_json(codes: Iterable[str | None]) -> list[dict[str, Any]]:
    """Return the output of :func:`run_codes` as plain data."""
    return [{**asdict(code), "runs": count} for code, count in run_codes(codes)]
