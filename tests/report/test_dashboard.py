"""Optuna's dashboard over a store: what is written into Optuna's study, what is served, and to whom."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import optuna
import pytest
from optuna.artifacts import FileSystemArtifactStore, download_artifact, get_all_artifact_meta
from optuna_dashboard import get_note, save_note

from tempopt.errors import StudyNotFound, UsageError
from tempopt.report import dashboard
from tempopt.report.dashboard import Dashboard, open_artifacts, open_storage, publish
from tempopt.report.note import belongs_to_tempopt
from tempopt.report.plots import PLOTS
from tempopt.storage.opening import open_store
from tempopt.storage.rows import StudySummary
from tempopt.storage.store import Store
from tests.report.dashboard_rows import write_whole
from tests.report.made_study import World


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with a finished study without a note."""
    path = tmp_path_factory.mktemp("dashboard") / "studies.db"
    write_whole(f"sqlite:///{path}", World(trials=10, layers=1))
    return path


@pytest.fixture(autouse=True)
def few_plots(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Draw two of the plots, and keep artifacts in a folder of the test."""
    monkeypatch.setattr(dashboard, "plot_keys", lambda result: ("history", "schedule"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def url(template: Path, tmp_path: Path) -> str:
    copy = tmp_path / "studies.db"
    copy.write_bytes(template.read_bytes())
    return f"sqlite:///{copy}"


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with open_store(url, create=False) as store:
        yield store


@pytest.fixture
def storage(store: Store) -> Iterator[optuna.storages.RDBStorage]:
    rdb_storage = open_storage(store.url, store.url)
    yield rdb_storage
    rdb_storage.engine.dispose()


@pytest.fixture
def artifacts(store: Store) -> FileSystemArtifactStore:
    return open_artifacts(store.url)


def summary(store: Store) -> StudySummary:
    (study_summary,) = store.list_studies()
    return study_summary


def test_note_plots_and_artifacts_are_read_by_the_public_calls(
    store: Store, storage: optuna.storages.RDBStorage, artifacts: FileSystemArtifactStore, tmp_path: Path
) -> None:
    assert publish(store, storage, artifacts, summary(store))
    study = optuna.load_study(study_name="pairs", storage=storage)
    assert "### What was found" in get_note(study) and belongs_to_tempopt(get_note(study))
    attributes = storage.get_study_system_attrs(study._study_id)
    for key in ("history", "schedule"):
        parts = [name for name in attributes if name.startswith(f"dashboard:plot_data:tempopt-{key}:")]
        text = "".join(
            attributes[f"dashboard:plot_data:tempopt-{key}:{index}"] for index in range(len(parts))
        )
        assert json.loads(text)["layout"]["title"]["text"] == PLOTS[key].title
    files = {meta.filename: meta for meta in get_all_artifact_meta(study)}
    assert sorted(files) == ["recommended-1.yaml", "report-1.html"]
    target = tmp_path / "report.html"
    download_artifact(
        artifact_store=artifacts, file_path=str(target), artifact_id=files["report-1.html"].artifact_id
    )
    assert "Content-Security-Policy" in target.read_text()


def test_a_study_without_news_is_written_once_and_its_files_are_not_repeated(
    store: Store, storage: optuna.storages.RDBStorage, artifacts: FileSystemArtifactStore
) -> None:
    assert publish(store, storage, artifacts, summary(store))
    assert not publish(store, storage, artifacts, summary(store))
    changed_summary = summary(store)
    changed_summary = replace(
        changed_summary, study=replace(changed_summary.study, version=changed_summary.study.version + 1)
    )
    assert publish(store, storage, artifacts, changed_summary)
    study = optuna.load_study(study_name="pairs", storage=storage)
    assert len(get_all_artifact_meta(study)) == 2


@pytest.mark.parametrize("text", ["mine", "  "])
def test_a_persons_note_is_left_alone_and_an_empty_one_is_replaced(
    store: Store, storage: optuna.storages.RDBStorage, artifacts: FileSystemArtifactStore, text: str
) -> None:
    study = optuna.load_study(study_name="pairs", storage=storage)
    save_note(study, text)
    publish(store, storage, artifacts, summary(store))
    assert (get_note(study) == text) == bool(text.strip())


def test_a_study_that_optuna_does_not_have_is_skipped(
    store: Store, storage: optuna.storages.RDBStorage, artifacts: FileSystemArtifactStore
) -> None:
    optuna.delete_study(study_name="pairs", storage=storage)
    assert not publish(store, storage, artifacts, summary(store))


def test_it_serves_optunas_pages_to_this_machine_alone(url: str) -> None:
    with Dashboard(url, port=0, name="pairs") as dashboard_server:
        thread = threading.Thread(target=dashboard_server.serve)
        thread.start()
        try:
            with urllib.request.urlopen(f"{dashboard_server.url}/api/studies", timeout=60) as answer:
                assert [entry["study_name"] for entry in json.load(answer)["study_summaries"]] == ["pairs"]
            # a foreign site whose name points to this machine
            foreign = urllib.request.Request(dashboard_server.url, headers={"Host": "evil.example:80"})
            with pytest.raises(urllib.error.HTTPError, match="403"):
                urllib.request.urlopen(foreign, timeout=60)
            with pytest.raises(UsageError, match=r"--port 0 for any that is free"):
                Dashboard(url, port=int(dashboard_server.url.rpartition(":")[2]))
        finally:
            dashboard_server.stop()
            thread.join()


def test_an_open_dashboard_writes_the_notes_and_says_once_what_keeps_it_from_that(
    url: str, store: Store, storage: optuna.storages.RDBStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dashboard, "_PAUSE_SECONDS", 0.01)
    messages: list[str] = []
    has_failed = threading.Event()

    def fail(*arguments: object) -> bool:
        if messages:
            has_failed.set()
        raise RuntimeError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(dashboard, "publish", fail)
        with Dashboard(url, port=0, note=messages.append):
            assert has_failed.wait(60)
    assert messages == ["The notes and plots could not be written: no room"]
    has_written = threading.Event()
    real = dashboard.publish

    def fake_publish(*arguments: object) -> bool:
        is_new = real(*arguments)  # type: ignore[arg-type]
        has_written.set()
        return is_new

    monkeypatch.setattr(dashboard, "publish", fake_publish)
    with Dashboard(url, port=0, note=messages.append):
        assert has_written.wait(60)
    assert belongs_to_tempopt(get_note(optuna.load_study(study_name="pairs", storage=storage)))


def test_a_study_that_is_not_there_is_told(url: str) -> None:
    with pytest.raises(StudyNotFound):
        Dashboard(url, port=0, name="missing")
