"""The weights that a study's runs start from: found where it is begun, kept with it, had by each agent."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tempopt.errors import SpecError, UsageError
from tempopt.spec import yaml_source as document
from tempopt.spec.program import start_path
from tempopt.spec.sections import StartFrom
from tempopt.spec.study_spec import StudySpec
from tempopt.store.checkpoints import is_local, local_path
from tempopt.store.kept import is_kept
from tempopt.store.weights import (
    FOLDER,
    digest_of,
    downloaded,
    fetch,
    fetched,
    file_name,
    keep,
    refuse_other,
    weights_url,
)


@contextlib.contextmanager
def starting(spec: StudySpec) -> Iterator[StudySpec]:
    """Yield a spec that says by their hash which weights its study starts from, with the file at hand.

    Args:
        spec: The spec of a study that is begun, planned or checked here.

    Raises:
        SpecError: The file is not there, or is another one than the spec says.
        UsageError: It cannot be read.
    """
    given = spec.study.start_from
    if given is None:
        yield spec
        return
    where = document.resolve(given.path, path="study.start_from.path")
    with contextlib.ExitStack() as stack:
        if is_local(where):
            path = start_path(str(local_path(where)))
        else:
            path = _copy(stack, where)
        digest = digest_of(path)
        if given.sha256 not in (None, digest):
            raise SpecError(
                f"study.start_from.sha256 is {given.sha256}, and {where} has the SHA-256 {digest}. Give the "
                "file that is meant, or take the key out."
            )
        yield spec.with_overrides([f"study.start_from.sha256={json.dumps(digest)}"]).starting_at(path)


def _copy(stack: contextlib.ExitStack, where: str) -> Path:
    try:
        return stack.enter_context(downloaded(where))
    except UsageError as error:
        told = str(error).removeprefix("study.start_from: ")
        raise SpecError(f"study.start_from: {told}") from error


def keep_weights(spec: StudySpec, place: str) -> None:
    """Have the weights that are at hand here lie beside the checkpoints of the study, for other agents.

    Args:
        spec: The spec, as :func:`starting` yields it; nothing is done for one without weights at hand.
        place: URL under which the study's runs keep their checkpoints.

    Raises:
        UsageError: They cannot be written, or are other ones than before.
    """
    start = spec.study.start_from
    if start is not None and spec.start_at is not None:
        name, digest = _file(start)
        keep(spec.start_at, weights_url(place, spec.study.name, name), digest)


def with_weights(spec: StudySpec, places: Sequence[str], folder: Path) -> StudySpec:
    """Return the spec of a study that an agent works on, with a file of this machine that has its weights.

    Where the study keeps its checkpoints now they are put, if they lie in an earlier place of them alone, or
    where whoever began the study had them.

    Args:
        spec: The spec.
        places: URLs under which the study's runs keep their checkpoints, and have kept them before.
        folder: The study's folder on this machine, for a copy of what lies elsewhere.

    Raises:
        UsageError: They are in none of these places, or have another content there.
    """
    start = spec.study.start_from
    if start is None:
        return spec
    keep_weights(spec, places[0])
    name, digest = _file(start)
    urls = [weights_url(place, spec.study.name, name) for place in dict.fromkeys(places)]
    copy = folder / FOLDER / name
    found = next((url for url in urls if is_kept(url)), None)
    path = _at_its_source(start) if found is None else fetch(found, copy, digest)
    if path is None:
        raise UsageError(
            f'The weights that the study "{spec.study.name}" starts from ({start.path}, SHA-256 {digest}) '
            f"are not at {urls[0]}. They lie where the study keeps its checkpoints: agents on several "
            "machines need a place that all of them reach. Copy the file there under that name, or give this "
            "command the spec again where the file is: tempopt search SPEC"
        )
    if found != urls[0]:
        keep(path, urls[0], digest)
        path = fetch(urls[0], copy, digest)
    return spec.starting_at(path.absolute())


def weights_of(spec: StudySpec) -> str | None:
    """Return the name of the file that runs start from; None: from none, or its hash is not known."""
    start = spec.study.start_from
    return None if start is None or start.sha256 is None else file_name(start.sha256)


def with_weights_fetched(spec: StudySpec, folder: Path, get: Callable[[Path], None]) -> StudySpec:
    """Return the spec of a study behind a server, with a file of this machine that has its weights.

    Args:
        spec: The spec.
        folder: The study's folder on this machine, where one copy is kept.
        get: Fetches them from the server into a file.

    Raises:
        UsageError: They cannot be had, or have another content.
    """
    start = spec.study.start_from
    if start is None:
        return spec
    name, digest = _file(start)
    copy = folder / FOLDER / name
    if not (copy.is_file() and digest_of(copy) == digest):
        fetched(get, copy, digest, "what the server has")
    return spec.starting_at(copy.absolute())


def _file(start: StartFrom) -> tuple[str, str]:
    """Return name and hash of a study's weights."""
    assert start.sha256 is not None, "a study was begun without the hash of its weights"
    return file_name(start.sha256), start.sha256


def _at_its_source(start: StartFrom) -> Path | None:
    """Return the file that the study was begun with, if it is on this machine."""
    assert start.sha256 is not None
    try:
        where = document.resolve(start.path, path="study.start_from.path")
        path = start_path(str(local_path(where))) if is_local(where) else None
    except SpecError:
        return None
    if path is not None:
        refuse_other(path, start.sha256, str(path))
    return path
