"""The weights that studies bring: where they belong while, and after, a study is begun with it.

They come before the study is begun, and lie beside its checkpoints, by their hash.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tempopt.agent.continuation import find
from tempopt.server.app_state import State
from tempopt.server.errors import ApiError
from tempopt.spec.study_spec import StudySpec
from tempopt.store import kept
from tempopt.store.checkpoints import remove

T = TypeVar("T")
Same = Callable[[StudySpec], bool]
"""Whether a study was begun with what is sent."""


def place_for(name: str, shared: State, *, same: Same, what: str) -> tuple[str, bool]:
    """Return the place of the checkpoints of a study for which something is sent, and whether it is new.

    Args:
        name: Name of the study, which may not have been begun.
        shared: The server.
        same: As its type says.
        what: What is sent, for the message.

    Raises:
        ApiError: It was begun with something else, or is spelled otherwise.
    """
    study = find(shared.store, name)
    if study is None:
        return shared.checkpoints, True
    if study.name != name or not same(StudySpec.stored(study)):
        raise ApiError(
            409,
            "study_changed",
            f'There is a study "{name}" that was begun with other {what}. Give this one another name.',
        )
    return study.checkpoints or shared.checkpoints, False


def is_missing(name: str, shared: State, *, same: Same, url_at: Callable[[str], str]) -> bool:
    """Return whether what a study is to be begun with has not come.

    Args:
        name: Name of the study.
        shared: The server.
        same: As its type says. A study that is there and differs is refused as for every other difference.
        url_at: Returns where it lies, given the place of the checkpoints.

    Raises:
        ApiError: The place of the checkpoints cannot be reached.
    """
    study, place = find(shared.store, name), shared.checkpoints
    if study is not None:
        if not same(StudySpec.stored(study)):
            return False
        place = study.checkpoints or place
    return not _reached(lambda: kept.is_kept(url_at(place)))


def tidy(url: str, *, pattern: kept.Pattern, most: int) -> None:
    """Make room for a file among those that came for the study and are not what it is begun with.

    Args:
        url: Where the file belongs.
        pattern: As for :func:`tempopt.store.kept.others`.
        most: How many may lie there.

    Raises:
        ApiError: The place of the checkpoints cannot be reached.
    """
    lying = _reached(lambda: kept.others(url, pattern))
    if len(lying) >= most:
        remove(lying)


def _reached(asked: Callable[[], T]) -> T:
    """Return what is asked of the place of the checkpoints; tell what it raises as a refusal."""
    try:
        return asked()
    except Exception as error:
        # each storage has errors of its own
        text = "The place of this server's checkpoints cannot be reached just now. Try again."
        raise ApiError(503, "checkpoints_away", text) from error
