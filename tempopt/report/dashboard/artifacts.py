"""The pictures of runs as Optuna's artifacts: drawn from the store's rows when one is opened."""

from __future__ import annotations

import io
from typing import BinaryIO

from optuna.artifacts.exceptions import ArtifactNotFound

from tempopt.report.dashboard.run_curve import run_curve
from tempopt.report.dashboard.run_curve_svg import draw
from tempopt.store.artifacts import ticket_of
from tempopt.store.store import Store


class Curves:
    """Optuna's protocol of an artifact store (``optuna.artifacts``) over the runs of a tempopt store.

    There is no file behind a picture: it is there as long as its run is, and shows the run as it is now.
    That an artifact is a trial's is written with the trial's end, by the store.

    Args:
        store: Where the runs are; every method that asks it raises StorageError if it cannot.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def open_reader(self, artifact_id: str) -> BinaryIO:
        """Return the picture of that id, an SVG document.

        Raises:
            ArtifactNotFound: It is no picture of a run that is in the store.
        """
        ticket_id = ticket_of(artifact_id)
        run = None if ticket_id is None else self._store.run(ticket_id)
        if run is None:
            raise ArtifactNotFound(f"There is no picture {artifact_id}: its study may have been deleted.")
        return io.BytesIO(draw(run_curve(run)).encode())

    def write(self, artifact_id: str, content_body: BinaryIO) -> None:
        """Refuse: there is no place for what others would keep here.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError("tempopt keeps no artifacts of others: its pictures are drawn when opened.")

    def remove(self, artifact_id: str) -> None:
        """Refuse: a picture goes with its study.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError("A picture goes with its study: tempopt delete NAME")
