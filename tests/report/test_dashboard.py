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
from optuna_dashboard import get_note, save_note

from tempopt.errors import StudyNotFound, UsageError
from tempopt.report import dashboard
from tempopt.report.dashboard import Dashboard, open_storage, publish
from tempopt.report.note import belongs_to_tempopt
from tempopt.report.plots import PLOTS
from tempopt.storage.opening import open_store
from tests.report.made_study import World, write_with_optuna


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with a finished study without a note."""
    path = tmp_path_factory.mktemp("dashboard") / "studies.db"
    write_with_optuna(f"sqlite:///{path}", World(trials=10, layers=1))
    return path


@pytest.fixture(autouse=True)
def few_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw two of the plots."""
    monkeypatch.setattr(dashboard, "plot_keys", lambda result: ("history", "schedule"))


@pytest.fixture
def url(template: Path, tmp_path: Path) -> str:
    copy = tmp_path / "studies.db"
    copy.write_bytes(template.read_bytes())
    return f"sqlite:///{copy}"


class Stores:
    """The two places that the dashboard writes to and reads from."""

    def __init__(self, url: str) -> None:
        self.store = open_store(url, create=False)
        self.storage = open_storage(self.store.url, self.store.url)

    @property
    def study(self) -> optuna.Study:
        return optuna.load_study(study_name="pairs", storage=self.storage)

    def publish(self, *, new_version: bool = False) -> bool:
        (summary,) = self.store.list_studies()
        row = replace(summary.study, version=summary.study.version + new_version)
        return publish(self.store, self.storage, replace(summary, study=row))


@pytest.fixture
def stores(url: str) -> Iterator[Stores]:
    stores = Stores(url)
    yield stores
    stores.storage.engine.dispose()
    stores.store.close()


def test_note_and_plots_are_read_by_the_public_calls(stores: Stores) -> None:
    assert stores.publish()
    study = stores.study
    assert "### What was found" in get_note(study) and belongs_to_tempopt(get_note(study))
    attributes = stores.storage.get_study_system_attrs(study._study_id)
    for key in ("history", "schedule"):
        prefix = f"dashboard:plot_data:tempopt-{key}:"
        parts = sum(name.startswith(prefix) for name in attributes)
        text = "".join(attributes[f"{prefix}{index}"] for index in range(parts))
        assert json.loads(text)["layout"]["title"]["text"] == PLOTS[key].title


def test_a_study_without_news_is_written_once(stores: Stores) -> None:
    assert stores.publish()
    assert not stores.publish()
    assert stores.publish(new_version=True)


@pytest.mark.parametrize("text", ["mine", "  "])
def test_a_persons_note_is_left_alone_and_an_empty_one_is_replaced(stores: Stores, text: str) -> None:
    save_note(stores.study, text)
    stores.publish()
    assert (get_note(stores.study) == text) == bool(text.strip())


def test_a_study_that_optuna_does_not_have_is_skipped(stores: Stores) -> None:
    optuna.delete_study(study_name="pairs", storage=stores.storage)
    assert not stores.publish()


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
    url: str, stores: Stores, monkeypatch: pytest.MonkeyPatch
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
    assert belongs_to_tempopt(get_note(stores.study))


def test_a_study_that_is_not_there_is_told(url: str) -> None:
    with pytest.raises(StudyNotFound):
        Dashboard(url, port=0, name="missing")
