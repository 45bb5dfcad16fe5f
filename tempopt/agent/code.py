"""Whether an agent runs the code that a study brings, and the folder that it then works in.

To accept code is to run whatever anybody sends who may begin studies: only who starts an agent can say so.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tempopt.bundle.environment import environment_of
from tempopt.bundle.folder import DEFAULT_FOLDER, unpack
from tempopt.errors import CodeNotAccepted
from tempopt.records.rows import StudyRow
from tempopt.spec.study_spec import StudySpec
from tempopt.store.bundles import bundle_url, fetch
from tempopt.store.checkpoints import DEFAULT_FOLDER as CHECKPOINTS
from tempopt.workers.code_folder import imported_from


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptCode:
    """That an agent runs the code of studies.

    Args:
        folder: Where it is unpacked, each bundle in a folder named by its hash.
        environments: Whether the lock file of a bundle makes an environment for its workers, by uv.
    """

    folder: Path = Path(DEFAULT_FOLDER)
    environments: bool = False


@contextlib.contextmanager
def code_in_force(
    spec: StudySpec, accept: AcceptCode | None, fetched: Callable[[str], bytes]
) -> Iterator[bytes | None]:
    """Have the modules of a study found in its own code, if it brings some; yield its bundle.

    Args:
        spec: The study's spec.
        accept: Whether this agent runs code that studies bring; None: it does not.
        fetched: Returns the bundle of a hash.

    Raises:
        CodeNotAccepted: The study brings code, and this agent was not started to run that.
        BundleRefused: The bundle is another one than was recorded, or made to do harm.
        UsageError: It cannot be read, not be unpacked, or its environment not be made.
    """
    digest = spec.study.code
    if digest is None:
        yield None
        return
    if accept is None:
        raise CodeNotAccepted(
            f'The study "{spec.study.name}" brings its own code (SHA-256 {digest[:12]}), and this agent was '
            "not started to run that. If you trust everybody who may begin studies here, start it with "
            "--accept-code."
        )
    archive = fetched(digest)
    code = unpack(archive, digest, accept.folder)
    with imported_from(code, environment_of(code, accept.folder) if accept.environments else None):
        yield archive


def kept_with(study: StudyRow) -> Callable[[str], bytes]:
    """Return what fetches the bundle of a study in a database from beside its checkpoints."""
    return kept_at(study.checkpoints, study.name)


def kept_at(checkpoints: str | None, name: str) -> Callable[[str], bytes]:
    """Return what fetches the bundle of a study of that name.

    Args:
        checkpoints: URL under which its runs keep their checkpoints; None: the folder here.
    """

    def fetched(digest: str) -> bytes:
        return fetch(bundle_url(checkpoints or CHECKPOINTS, name, digest))

    return fetched
