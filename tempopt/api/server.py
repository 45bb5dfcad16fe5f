"""Server: the studies behind a tempopt server as Python reaches them; tempopt.connect returns one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self, TypedDict, Unpack

from tempopt.agent.observer import Observer
from tempopt.api.classes import Spec, load_search_spec, portable_comparison, with_paths
from tempopt.report.study_result import StudyResult, load
from tempopt.report.study_summary import summary_json
from tempopt.service import lifecycle
from tempopt.service.progress import progress_for_python
from tempopt.service.requests import CompareRequest, ResumeRequest, SearchRequest, Sets
from tempopt.service.studies import RunOptions, carry_out
from tempopt.spec.compared_sets import MAX_RUNS
from tempopt.spec.resources import Workers
from tempopt.storage.http.remote_store import RemoteStore


class _Options(TypedDict, total=False):
    workers: Workers | None
    progress: bool
    observer: Observer | None
    wait: bool


def connect(url: str, token: str | None = None) -> Server:
    """Return the tempopt server at a URL.

    Args:
        url: As in ``https://tempopt.example.com``.
        token: What this program may do; None: that of ``TEMPOPT_TOKEN``, of the file that
            ``TEMPOPT_TOKEN_FILE`` names, or of ``tempopt login``.

    Raises:
        UsageError: It is no URL of a server, or the token's file cannot be read.
    """
    return Server(RemoteStore.at(url, token))


class Server:
    """The studies behind a tempopt server. :func:`tempopt.connect` returns one.

    Nothing is trained here, unless workers are given: the server's agents train. A new spec is tried on this
    machine first, by a dry run. Close it, or use it as a context manager; threads may share it.

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
        """Return all that is known of a study.

        Raises:
            StudyNotFound: There is no study of that name.
        """
        return load(self._store, name, needs_measurements=True)

    def search(
        self,
        spec: Spec,
        *,
        trials: int | None = None,
        add_trials: int = 0,
        enqueue: Sequence[Mapping[str, Any]] = (),
        **options: Unpack[_Options],
    ) -> StudyResult:
        """Have a study begun or continued; return its result once it is over or was paused.

        Args:
            spec: As for :func:`tempopt.search`, and so ``trials``, ``add_trials``, ``enqueue``.
            options: ``workers``: trials side by side that this machine trains as one of the study's agents;
                None: none. ``wait=False``: return how the study stands as soon as the server has it.
                ``progress`` and ``observer``: as for :func:`tempopt.search`.

        Raises:
            SpecError: The spec cannot be carried out.
            StudyChanged: The server has a study of that name that asks something else.
            KeyboardInterrupt: Waiting was interrupted; the study goes on.
        """
        request = SearchRequest(
            spec=load_search_spec(spec), trials=trials, add_trials=add_trials, enqueue=enqueue
        )
        return self._carry_out(request, **options)

    def compare(
        self,
        spec: Spec,
        sets: Sets = (),
        *,
        name: str | None = None,
        pairs: int | None = None,
        vary: Mapping[str, Sequence[Any]] | None = None,
        all_pairs: bool = False,
        max_runs: int = MAX_RUNS,
        **options: Unpack[_Options],
    ) -> StudyResult:
        """Have parameter sets compared; all is as for :func:`tempopt.compare` and :meth:`search`."""
        request = CompareRequest(
            spec=with_paths(spec),
            sets=sets,
            vary=vary,
            all_pairs=all_pairs,
            name=name,
            pairs=pairs,
            max_runs=max_runs,
        )
        return self._carry_out(portable_comparison(request, self._store), **options)

    def resume(
        self,
        name: str,
        *,
        add_trials: int = 0,
        add_pairs: int = 0,
        retry_failed: bool = False,
        explain: bool = False,
        **options: Unpack[_Options],
    ) -> StudyResult:
        """Continue a study, and extend it; arguments and errors as for :func:`tempopt.resume`."""
        request = ResumeRequest(
            study=name, add_trials=add_trials, add_pairs=add_pairs, retry_failed=retry_failed, explain=explain
        )
        return self._carry_out(request, **options)

    def pause(self, name: str) -> None:
        """Have every agent of a study save its runs and leave, until it is resumed."""
        lifecycle.pause(self._store, name)

    def stop(self, name: str) -> None:
        """End the search of a study: runs at work end, and what was found is confirmed."""
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
        *,
        workers: Workers | None = None,
        progress: bool = True,
        observer: Observer | None = None,
        wait: bool = True,
    ) -> StudyResult:
        options = RunOptions(storage=self._store, workers=workers, wait=wait)
        try:
            with progress_for_python(progress, observer) as study_observer:
                return carry_out(request, options, study_observer)
        except KeyboardInterrupt:
            name = request.study
            raise KeyboardInterrupt(
                f'Waiting was interrupted; what the server has of the study "{name}" goes on. load({name!r}) '
                f"looks again, pause({name!r}) has it rest."
            ) from None
