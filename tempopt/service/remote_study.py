"""Studies behind a server: submit requests, and watch a study until it has ended.

The user's modules are loaded here, in a dry run and by workers of this machine, never by a server. Nothing is
trained here, unless workers are requested.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace

from tempopt.agent.dry_run import note_long_stages, run_dry_run, start_workers
from tempopt.agent.observer import Observer
from tempopt.agent.study_lookup import check_same_study, find_study
from tempopt.agent.study_runner import (
    claim_local_placements,
    run_remote_agent,
    validate_sampler_and_pruner,
)
from tempopt.errors import AccessDenied
from tempopt.launch.watch import watch_study
from tempopt.service.requests import ResumeRequest, SearchRequest
from tempopt.spec.resources import Workers
from tempopt.spec.study_spec import StudySpec
from tempopt.storage.http.paths import STUDIES
from tempopt.storage.http.remote_store import RemoteStore

_TOKEN = "TEMPOPT_TOKEN"


def submit(
    store: RemoteStore,
    request: SearchRequest | ResumeRequest,
    *,
    workers: Workers | None = None,
    observer: Observer,
) -> None:
    """Create, continue or extend a study on a server, after a dry run on this machine if it is new.

    Args:
        store: The store of the server.
        request: A request whose schedules have been imported.
        workers: Number of concurrent trials on this machine; None: it trains nothing.
        observer: Receives the notes of dry run and server.

    Raises:
        AccessDenied: Workers were requested, but the token has no agent scope.
        SpecError: The spec cannot be trained.
        StudyChanged: The server has a different study of that name.
    """
    _check_agent_scope(store, workers)
    if isinstance(request, ResumeRequest):
        version = store.load_study(request.study).version
        if request.add_trials or request.add_pairs:
            request = replace(request, version=version)
        answer = store.ask(request.study, "resume", request.to_json())
    else:
        answer = store.server.post(STUDIES, _complete_request(store, request, observer).to_json())
    for note in answer["notes"]:
        observer.note(note)


def _complete_request(store: RemoteStore, request: SearchRequest, observer: Observer) -> SearchRequest:
    """Complete a request by a dry run, or by the version of the existing study, and return it."""
    spec = request.spec
    validate_sampler_and_pruner(spec)
    study = find_study(store, spec.study.name)
    if study is None:
        return request if request.add_trials else replace(request, spec=dry_run_locally(spec, observer))
    check_same_study(study, spec)
    return replace(request, version=study.version) if request.add_trials or request.enqueue else request


def wait_until_over(
    store: RemoteStore, name: str, *, workers: Workers | None = None, observer: Observer
) -> None:
    """Wait until a study is done or paused.

    Args:
        store: The store of the server.
        name: Name of the study.
        workers: Number of concurrent trials of this machine, as one of the study's agents; None: none.
        observer: Receives progress and notes.

    Raises:
        StudyNotFound: There is no study of that name.
        StudyFailed: The study was deleted, or this machine cannot train it.
    """
    if workers is None:
        watch_study(store, name, observer)
    else:
        with _export_token(store.given_token):
            run_remote_agent(store.server, name, workers=workers, observer=observer)


@contextlib.contextmanager
def _export_token(token: str | None) -> Iterator[None]:
    """Set the token in the environment of workers, which transfer their checkpoints themselves."""
    before = os.environ.get(_TOKEN)
    if token is not None:
        os.environ[_TOKEN] = token
    try:
        yield
    finally:
        if token is not None and before is None:
            del os.environ[_TOKEN]
        elif token is not None and before is not None:
            os.environ[_TOKEN] = before


def _check_agent_scope(store: RemoteStore, workers: Workers | None) -> None:
    """Refuse workers if the token does not allow them, before other requests."""
    if workers is None:
        return
    me = store.server.get("/api/me")
    if "agent" not in me["scopes"]:
        raise AccessDenied(
            f"With --workers this machine trains as an agent, but the token of {me['name']} has only the "
            f"scopes {', '.join(me['scopes'])}. Use a token with the scope agent, or leave out --workers."
        )


def dry_run_locally(spec: StudySpec, observer: Observer) -> StudySpec:
    """Return the spec completed by a dry run on this machine."""
    with claim_local_placements(spec, 1) as places, start_workers(places) as workers:
        return run_dry_run(spec, workers[0], task="dry_run", on_stage=note_long_stages(observer.note))[0]
