"""What a person sends with a study: code, in force while the study is begun, and weights to start from."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path

from tempopt.agent.code import kept_with
from tempopt.agent.start_weights import starting
from tempopt.bundle.archive import MOST_BYTES, unpacked, verify
from tempopt.bundle.folder import DEFAULT_FOLDER, unpack
from tempopt.bundle.gather import Bundle, gathered
from tempopt.errors import UsageError
from tempopt.records.rows import StudyRow
from tempopt.remote.paths import study_path
from tempopt.spec.study_spec import StudySpec
from tempopt.store.bundles import bundle_url, keep
from tempopt.store.checkpoints import DEFAULT_FOLDER as CHECKPOINTS
from tempopt.store.checkpoints import location
from tempopt.store.store import Store, behind_server
from tempopt.workers.code_folder import imported_from


def with_bundle(
    spec: StudySpec, folder: str | Path | None, told: Callable[[str], None]
) -> tuple[StudySpec, Bundle | None]:
    """Return a spec that says which code its study brings, and that code.

    Args:
        spec: The spec.
        folder: Folder of the code; None: the study brings none.
        told: Called with a line on what is sent.

    Raises:
        UsageError: The folder is in no git repository, or the spec names other code.
        BundleRefused: A file may not be in a bundle, or they are too many or too large.
    """
    named = spec.study.code
    if folder is None:
        if named is not None:
            raise UsageError(
                f"The study spec says that the study brings its code (study.code: {named[:12]}…). Give the "
                "folder of that code, as in --with-code ., or take the key out."
            )
        return spec, None
    # the report is written into the current folder when the study has ended
    bundle = gathered(folder, leave_out=[f"/{spec.study.name}.html"])
    if named not in (None, bundle.digest):
        raise UsageError(
            f"The study spec names the code {named} (study.code), and that in {folder} is {bundle.digest}. "
            "Take the key out: --with-code sets it."
        )
    told(bundle.text)
    return spec.with_overrides([f"study.code={json.dumps(bundle.digest)}"]), bundle


def brought(store: Store, study: StudyRow) -> bytes | None:
    """Return the bundle of a study in a store, or behind a server; None: it brings none.

    Raises:
        UsageError: It cannot be read from here, or is another one than was recorded.
    """
    digest = StudySpec.stored(study).study.code
    if digest is None:
        return None
    if server := behind_server(store):
        archive = server.server.fetch(study_path(study.name, "code"), most=MOST_BYTES)
    else:
        archive = kept_with(study)(digest)
    verify(archive, digest)
    return archive


def put_beside(study: StudyRow, archive: bytes, digest: str) -> StudyRow:
    """Have a bundle lie where the study keeps its checkpoints; return the study with that place.

    Raises:
        BundleRefused: It is another one, or made to do harm.
        UsageError: It cannot be written.
    """
    verify(archive, digest)
    unpacked(archive)
    place = location(CHECKPOINTS) if study.checkpoints is None else study.checkpoints
    keep(archive, bundle_url(place, study.name, digest))
    return dataclasses.replace(study, checkpoints=place)


@contextlib.contextmanager
def bringing(
    spec: StudySpec, folder: str | Path | None, told: Callable[[str], None]
) -> Iterator[tuple[StudySpec, bytes | None]]:
    """Yield what :func:`with_bundle` returns, with the modules of the study found in that code alone.

    It is unpacked as agents unpack it, so that a file which was left out is missed here already. The weights
    that runs start from are at hand meanwhile, as :func:`tempopt.agent.start_weights.starting` says.
    """
    spec, bundle = with_bundle(spec, folder, told)
    with starting(spec) as spec:
        if bundle is None:
            yield spec, None
            return
        with imported_from(unpack(bundle.archive, bundle.digest, Path(DEFAULT_FOLDER))):
            yield spec, bundle.archive
