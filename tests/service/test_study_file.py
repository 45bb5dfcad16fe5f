"""A study in a file: written from one database, read into another, where it goes on to the same numbers."""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import optuna
import pytest

from tempopt.api.calls import resume
from tempopt.cli import main
from tempopt.errors import StorageError, UsageError
from tempopt.service import study_file
from tempopt.service.studies import load_study
from tempopt.storage import import_study
from tempopt.storage.opening import open_store
from tests import fake_worker
from tests.servers import empty_database
from tests.spoiled import spoil_document
from tests.toy_study import URL, EndedStudy, begin_study, facts, has_searched, reports, toy_spec, work_in

FILE = Path("toy.tempopt")


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def other_database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty database of another kind, or another one."""
    with empty_database(request.param, tmp_path, "transfer") as url:
        yield url


def study_contents(url: str) -> tuple[object, ...]:
    """Return what of a study may not change on its way, ids apart."""
    with open_store(url, create=False) as store:
        study = store.load_study("toy")
        rows = store.tickets(study.id)
        names = {row.id: row.name for row in rows}
        logs = sorted((names[log.ticket_id], log.attempt, log.text) for log in store.logs(study.id))
        steps = [(row.name, row.steps) for row in rows]
        return study.spec, study.spec_hash, store.warm_start(study.id), logs, steps


def optuna_trials(url: str) -> list[tuple[object, ...]]:
    trials = optuna.load_study(study_name="toy", storage=url).trials
    return [(t.number, t.state, t.params, t.values, t.intermediate_values) for t in trials]


@pytest.mark.usefixtures("fake_workers")
@pytest.mark.parametrize("num_done", [0, 3, None])
def test_a_study_goes_on_elsewhere_to_the_same_numbers(
    undisturbed_fake: EndedStudy, num_done: int | None, tmp_path: Path
) -> None:
    source_url, target_url = f"sqlite:///{tmp_path / 'here.db'}", f"sqlite:///{tmp_path / 'there.db'}"
    if num_done is None:
        shutil.copy(undisturbed_fake.folder / "tempopt.db", tmp_path / "here.db")
    else:
        begin_study(toy_spec(), source_url, has_searched(num_done))
    dump_report = study_file.dump(source_url, "toy", FILE)
    read = study_file.load(target_url, FILE)
    for name in ("study", "tickets", "measurements"):
        assert getattr(read, name) == getattr(dump_report, name)
    assert study_contents(target_url) == study_contents(source_url)
    with open_store(target_url) as store:
        assert store.load_study("toy").state == ("done" if num_done is None else "paused")
    if num_done is None:
        assert optuna_trials(target_url) == optuna_trials(source_url) != []
    result = resume("toy", storage=target_url, workers=1)
    assert facts(target_url) == undisturbed_fake.facts and reports(target_url) == undisturbed_fake.reports
    assert result.to_json()["verdict"] == undisturbed_fake.result.to_json()["verdict"]


@pytest.mark.service
@pytest.mark.usefixtures("fake_workers")
def test_from_any_database_to_any(other_database: str, undisturbed_fake: EndedStudy, tmp_path: Path) -> None:
    source_url = f"sqlite:///{tmp_path / 'here.db'}"
    begin_study(toy_spec(), source_url, has_searched(4))
    study_file.dump(source_url, "toy", FILE)
    study_file.load(other_database, FILE)
    study_file.dump(other_database, "toy", Path("again.tempopt"))
    back_url = f"sqlite:///{tmp_path / 'back.db'}"
    study_file.load(back_url, Path("again.tempopt"))
    assert study_contents(back_url) == study_contents(source_url)
    for url in (other_database, back_url):
        resume("toy", storage=url, workers=1)
        assert facts(url) == undisturbed_fake.facts and reports(url) == undisturbed_fake.reports


@pytest.mark.usefixtures("fake_workers")
def test_a_study_is_loaded_under_another_name_and_beside_no_other() -> None:
    begin_study(toy_spec(), URL, has_searched(2))
    study_file.dump(URL, "toy", FILE)
    with pytest.raises(StorageError, match="--name NAME"):
        study_file.load(URL, FILE)
    study_file.load(URL, FILE, name="copy")
    with open_store(URL) as store:
        names = {entry.study.name: entry.study.spec["study"]["name"] for entry in store.list_studies()}
    assert names == {"toy": "toy", "copy": "copy"}
    assert resume("copy", storage=URL, workers=1).verdict is not None
    assert load_study(URL, "toy").state != "done"


@pytest.fixture(scope="module")
def begun_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the database of a study that was left after its first trial."""
    folder = tmp_path_factory.mktemp("begun")
    with pytest.MonkeyPatch.context() as patch:
        work_in(folder, patch)
        fake_worker.install(patch)
        begin_study(toy_spec(), URL, has_searched(1))
    return folder / "tempopt.db"


@pytest.fixture
def begun_study(begun_database: Path, toy_folder: None) -> None:
    """Copy that database into the current folder."""
    shutil.copy(begun_database, "tempopt.db")


@pytest.mark.usefixtures("begun_study")
def test_a_pipe_or_a_device_is_not_replaced_by_a_file() -> None:
    os.mkfifo(FILE)
    with pytest.raises(UsageError, match="not a regular file"):
        study_file.dump(URL, "toy", FILE, overwrite=True)
    assert FILE.is_fifo() and not FILE.with_name("toy.tempopt.writing").exists()


@pytest.mark.parametrize("state", ["paused", "done"])
@pytest.mark.usefixtures("begun_study")
def test_a_study_that_is_done_is_not_to_be_resumed(
    state: Literal["paused", "done"], capsys: pytest.CaptureFixture[str]
) -> None:
    with open_store(URL) as store:
        store.set_state(store.load_study("toy").id, state)
    study_file.dump(URL, "toy", FILE)
    assert main(["load", str(FILE), "--storage", "sqlite:///there.db"]) == 0
    assert ("tempopt resume" in capsys.readouterr().out) == (state == "paused")


@pytest.mark.usefixtures("begun_study")
def test_no_secret_is_in_the_file() -> None:
    with open_store(URL) as store:
        study = store.load_study("toy")
        store.set_checkpoints(study.id, "s3://key:hush@bucket/folder")
    study_file.dump(URL, "toy", FILE)
    text = gzip.decompress(FILE.read_bytes()).decode()
    assert "hush" not in text and "s3://key:***@bucket/folder" in text


@pytest.fixture
def dump_bytes(begun_study: None) -> bytes:
    study_file.dump(URL, "toy", FILE)
    return gzip.decompress(FILE.read_bytes())


@pytest.mark.parametrize("url", ["/there", "FILE:///there", "http://there", "simplecache::s3://bucket"])
def test_a_file_names_no_place_for_checkpoints_but_a_bucket(dump_bytes: bytes, url: str) -> None:
    document = json.loads(dump_bytes)
    document["study"]["checkpoints"] = url
    FILE.write_bytes(gzip.compress(json.dumps(document).encode()))
    study_file.load("sqlite:///there.db", FILE)
    with open_store("sqlite:///there.db") as store:
        assert store.load_study("toy").checkpoints is None


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda data: data[: len(data) // 2], "is damaged"),
        (lambda data: data.replace(b'"kind": "search"', b'"kind": "serch"', 1), "kind: Input should be"),
        (lambda data: data.replace(b'"tickets"', b'"tckets"', 1), "is damaged: tickets: Field required"),
        (lambda data: b"hello", "is damaged"),
        (lambda data: b'{"study": {}}', "is damaged: format"),
        (lambda data: data.replace(b'"kind": "search"', b'"kind": "search", "rank": 1', 1), "rank: "),
        (lambda data: data.replace(b'"number": 1', b'"number": 0', 1), "a row is there twice"),
        (lambda data: data.replace(b'"name": "toy"', b'"name": "yot"', 1), "its spec has another name"),
        (lambda data: data.replace(b'"version": 1', b'"version": 2', 1), "does not support"),
        (lambda data: b"[" * 100_000, "is damaged"),
        (lambda data: b"", "is damaged"),
    ],
)
def test_a_file_that_is_damaged_is_refused_and_nothing_is_written(
    dump_bytes: bytes, spoil: Callable[[bytes], bytes], message: str, tmp_path: Path
) -> None:
    FILE.write_bytes(gzip.compress(spoil(dump_bytes)))
    target_url = f"sqlite:///{tmp_path / 'there.db'}"
    with pytest.raises(UsageError, match=message):
        study_file.load(target_url, FILE)
    assert not (tmp_path / "there.db").exists()


def test_a_small_file_that_unpacks_to_much_is_refused_before_it_is_parsed(toy_folder: None) -> None:
    FILE.write_bytes(gzip.compress(b'{"format": "tempopt study", "x": [' + b"[]," * 10_000_000))
    assert FILE.stat().st_size < 100_000
    tracemalloc.start()
    try:
        with pytest.raises(UsageError, match="unpacked it has more than"):
            study_file.load("sqlite:///there.db", FILE)
        assert tracemalloc.get_traced_memory()[1] < 50_000_000
    finally:
        tracemalloc.stop()


def test_a_load_that_fails_leaves_nothing(begun_study: None, monkeypatch: pytest.MonkeyPatch) -> None:
    study_file.dump(URL, "toy", FILE)

    def fail(*args: object) -> None:
        raise StorageError("The disk is full.")

    with monkeypatch.context() as patch:
        patch.setattr(import_study, "_write_trials", fail)
        with pytest.raises(StorageError, match="disk is full"):
            study_file.load("sqlite:///there.db", FILE)
    assert optuna.get_all_study_names("sqlite:///there.db") == []
    study_file.load("sqlite:///there.db", FILE)


def spoil_bytes(data: bytes, chance: random.Random) -> bytes:
    """Change some bytes, and perhaps cut the rest off."""
    spoiled_data = bytearray(data)
    for _ in range(chance.choice([1, 10])):
        spoiled_data[chance.randrange(len(data))] = chance.randrange(256)
    return bytes(spoiled_data[: chance.randrange(len(data)) if chance.random() < 0.3 else len(data)])


SEEDS = [range(50), *(pytest.param(range(i, i + 190), marks=pytest.mark.long) for i in range(50, 999, 190))]


@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.usefixtures("begun_study")
def test_a_file_with_any_change_is_loaded_or_refused_with_one_message(seeds: range) -> None:
    study_file.dump(URL, "toy", FILE)
    packed_data = FILE.read_bytes()
    data = gzip.decompress(packed_data)
    path = Path("there.db")
    for seed in seeds:
        chance = random.Random(seed)
        if (draw := chance.random()) < 0.7:
            document = spoil_document(json.loads(data), chance)
            FILE.write_bytes(gzip.compress(json.dumps(document).encode(), 1))
        elif draw < 0.85:
            FILE.write_bytes(spoil_bytes(packed_data, chance))
        else:
            FILE.write_bytes(gzip.compress(spoil_bytes(data, chance), 1))
        try:
            study_file.load(f"sqlite:///{path}", FILE)
        except UsageError as error:
            assert len(str(error)) <= 2000
            assert not path.exists(), seed
        else:
            assert study_contents(f"sqlite:///{path}")
            path.unlink()
