"""Server: Python client of a tempopt server; tempopt.connect returns one."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Self, Unpack

from tempopt.agent.observer import Observer
from tempopt.api.calls import CompareKeywords, ResumeKeywords, SearchKeywords
from tempopt.api.classes import Spec, load_search_spec, portable_comparison, with_paths
from tempopt.report.study_result import StudyResult, load
from tempopt.report.study_summary import summary_json
from tempopt.service import lifecycle
from tempopt.service.progress import progress_for_python
from tempopt.service.requests import CompareRequest, ResumeRequest, SearchRequest, Sets
from tempopt.service.studies import RunOptions, carry_out
from tempopt.spec.resources import Workers
from tempopt.storage.http.remote_store import RemoteStore


def connect(url: str, token: str | None = None) -> Server:
    """Return the tempopt server at a URL.

    Args:
        url: URL, as in ``https://tempopt.example.com``.
        token: Token; None: that of ``TEMPOPT_TOKEN``, of the file that
            ``TEMPOPT_TOKEN_FILE`` names, or of ``tempopt login``.

    Raises:
        UsageError: It is not the URL of a server, or the token's file cannot be read.
    """
    return Server(RemoteStore.at(url, token))


class Server:
    """The studies behind a tempopt server. :func:`tempopt.connect` returns one.

    The server's agents train; this machine trains only if workers are requested, and makes the dry run of a
    new spec. Close it, or use it as a context manager; threads may share it.

    Every method raises ``AccessDenied`` if the token does not allow it, and ``StorageError`` if the server
    cannot be reached.
    """

    def __init__(self, store: RemoteStore) -> None:
        self._store = store

    @property
    def url(self) -> str:
        """The URL of the server."""
        return self._store.url

    def studies(self) -> list[dict[str, Any]]:
        """Return a line on every study that the token may see, as ``tempopt list --json`` prints them."""
        return [summary_json(summary) for summary in self._store.list_studies()]

    def load(self, name: str) -> StudyResult:
        """Return a study with its measurements.

        Raises:
            StudyNotFound: There is no study of that name.
        """
        return load(self._store, name, needs_measurements=True)

    def search(
        self,
        spec: Spec,
        *,
        workers: Workers | None = None,
        progress: bool = True,
        observer: Observer | None = None,
        wait: bool = True,
        **options: Unpack[SearchKeywords],
    ) -> StudyResult:
        """Create or continue a study, and return its result once it is done or paused.

        Args:
            spec: As for :func:`tempopt.search`.
            workers: Number of concurrent trials of this machine, as one of the study's agents; None: none.
            progress: As for :func:`tempopt.search`, and so ``observer``.
            wait: Whether to wait for the end; False: return the state of the study once the server has it.
            options: ``trials``, ``add_trials`` and ``enqueue``, as for :func:`tempopt.search`.

        Raises:
            SpecError: The spec cannot be trained.
            StudyChanged: The server has a different study of that name.
            KeyboardInterrupt: Waiting was interrupted; the study continues.
        """
        request = SearchRequest(spec=load_search_spec(spec), **options)
        return self._carry_out(request, workers, wait, progress_for_python(progress, observer))

    def compare(
        self,
        spec: Spec,
        sets: Sets = (),
        *,
        workers: Workers | None = None,
        progress: bool = True,
        observer: Observer | None = None,
        wait: bool = True,
        **options: Unpack[CompareKeywords],
    ) -> StudyResult:
        """Compare parameter sets; arguments and errors as for :func:`tempopt.compare` and :meth:`search`."""
        comparison = CompareRequest(spec=with_paths(spec), sets=sets, **options)
        request = portable_comparison(comparison, self._store)
        return self._carry_out(request, workers, wait, progress_for_python(progress, observer))

    def resume(
        self,
        name: str,
        *,
        workers: Workers | None = None,
        progress: bool = True,
        observer: Observer | None = None,
        wait: bool = True,
        **options: Unpack[ResumeKeywords],
    ) -> StudyResult:
        """Continue a study, and extend it; arguments and errors as for :func:`tempopt.resume`."""
        request = ResumeRequest(study=name, **options)
        return self._carry_out(request, workers, wait, progress_for_python(progress, observer))

    def pause(self, name: str) -> None:
        """Pause a study: its agents save their runs and leave, until it is resumed."""
        lifecycle.pause(self._store, name)

    def stop(self, name: str) -> None:
        """Stop the search of a study: runs in progress are completed, and the best so far is confirmed."""
        lifecycle.stop(self._store, name)

    def delete(self, name: str, *, force: bool = False) -> None:
        """Delete a study with its trials, checkpoints and logs.

        Args:
            force: Whether to delete it even while agents work on it.

        Raises:
            UsageError: Agents work on it.
        """
        lifecycle.delete(self._store, name, force=force)

    def close(self) -> None:
        """Close every connection."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Server({self.url!r})"

    def _carry_out(
        self,
        request: SearchRequest | ResumeRequest,
        workers: Workers | None,
        wait: bool,
        progress: AbstractContextManager[Observer],
    ) -> StudyResult:
        options = RunOptions(storage=self._store, workers=workers, wait=wait)
        try:
            with progress as observer:
                return carry_out(request, options, observer)
        except KeyboardInterrupt:
            name = request.study
            raise KeyboardInterrupt(
                f'Waiting was interrupted; the study "{name}" continues on the server. load({name!r}) '
                f"shows it, pause({name!r}) pauses it."
            ) from None
