"""Studies whose runs start from weights that somebody brings: every run does, wherever its agent works."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import tempopt
from tempopt.cli import main
from tempopt.errors import SpecError, StudyChanged, UsageError
from tempopt.records.rows import TicketRow
from tempopt.spec.study_spec import StudySpec
from tempopt.store.store import Store
from tempopt.store.weights import file_name, weights_url
from tempopt.study import admin, api, transfer
from tests.server.conftest import Served
from tests.server.conftest import served as served
from tests.toy_study import URL, work_in
from tests.training import starting_modules as by_hand

pytest_plugins = ["tests.training.object_store"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder with weights."""
    work_in(tmp_path, monkeypatch)
    torch.save(by_hand.weights(), "base.ckpt")
    return tmp_path


def digest(path: str = "base.ckpt") -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def spec(begin: Any = "base.ckpt", *, lr: float = 0.5, **study: Any) -> dict[str, Any]:
    return {
        "study": {
            "name": "tuned",
            "metric": "val_loss",
            "direction": "minimize",
            "trials": 2,
            "arms": {"baseline": 1, "constant": 1},
            "candidates": 1,
            "seeds": {"choose": 1, "confirm": 2},
            "start_from": begin,
            **study,
        },
        "model": {"class_path": "starting_modules.Model", "init_args": {"lr": lr}},
        "data": {"class_path": "starting_modules.Data"},
        "trainer": {"max_steps": by_hand.STEPS, "accelerator": "cpu"},
        "search": {"temperature_init": {"low": 0.25, "high": 4.0}},
    }


def tickets(name: str = "tuned") -> list[TicketRow]:
    with Store.open(URL, create=False) as store:
        return store.tickets(store.load_study(name).id)


def study(name: str = "tuned") -> Any:
    with Store.open(URL, create=False) as store:
        return store.load_study(name)


def kept(place: str | Path = "tempopt-runs", name: str = "tuned") -> Path:
    return Path(weights_url(str(place), name, file_name(digest())))


def as_by_hand(rows: list[TicketRow]) -> set[str]:
    """Compare what each run of a constant temperature has with the training by hand; return the kinds."""
    kinds = set()
    for row in rows:
        if row.arm == "learned" or row.value is None:
            continue
        tau, weights = row.parameters["temperature_init"], by_hand.weights()
        on = "validate" if row.kind in ("baseline", "constant", "search", "choose") else "test"
        expected = by_hand.value_by_hand(by_hand.trained_by_hand(weights, tau=tau), on, tau)
        assert row.value == pytest.approx(expected, rel=1e-3), row
        kinds.add(row.kind)
    return kinds


@pytest.mark.long
def test_every_run_of_a_study_is_the_training_by_hand_from_the_weights() -> None:
    result = tempopt.search(spec(candidates=2, trials=3), storage=URL, workers=1)
    assert as_by_hand(tickets()) >= {"baseline", "constant", "search", "choose", "confirm"}
    assert result.verdict is not None
    assert kept().read_bytes() == Path("base.ckpt").read_bytes()
    stored = StudySpec.stored(study()).study.start_from
    assert stored is not None and stored.sha256 == digest()
    assert result.to_json()["start_from"]["sha256"] == digest()
    assert all(digest() in result.export(format=each) for each in ("yaml", "python"))
    assert main(["report", "tuned", "--storage", URL, "-o", "page.html"]) == 0
    assert digest() in Path("page.html").read_text(encoding="utf-8")


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """A study that was begun, and of which nothing is trained yet."""

    def train_nothing(*args: Any) -> None:
        pass

    with monkeypatch.context() as patch:
        patch.setattr("tempopt.agent.runner.StudyRunner._train", train_nothing)
        api.search(spec(), storage=URL, workers=1)
    assert {row.state for row in tickets()} == {"waiting"}


@pytest.mark.long
@pytest.mark.usefixtures("begun")
def test_a_study_goes_on_without_the_file_that_it_was_begun_with() -> None:
    Path("base.ckpt").rename("elsewhere.ckpt")
    with pytest.raises(SpecError, match=r"there is no file .*base\.ckpt.* tempopt resume NAME"):
        api.search(spec(), storage=URL, workers=1)
    # the same weights at another place are the same study
    assert tempopt.search(spec("elsewhere.ckpt"), storage=URL, workers=1).verdict is not None
    assert as_by_hand(tickets()) >= {"baseline", "search", "confirm"}


@pytest.mark.long
@pytest.mark.usefixtures("begun")
def test_other_weights_are_another_study() -> None:
    torch.save(by_hand.weights(seed=8), "base.ckpt")
    with pytest.raises(StudyChanged, match=r"study\.start_from\.sha256: was"):
        api.search(spec(), storage=URL, workers=1)
    for begin in ({"path": "base.ckpt", "strict": False}, None):
        with pytest.raises(StudyChanged, match=r"study\.start_from"):
            api.search(spec(begin), storage=URL, workers=1)


@pytest.mark.long
@pytest.mark.usefixtures("begun")
def test_an_agent_that_finds_another_content_trains_nothing() -> None:
    # of the same size
    torch.save(by_hand.weights(seed=8), kept())
    with pytest.raises(UsageError, match=r"study\.start_from: .* has another content \(SHA-256 "):
        api.resume("tuned", storage=URL, workers=1)
    assert {(row.state, row.attempt) for row in tickets()} == {("waiting", 0)}
    kept().unlink()
    Path("base.ckpt").unlink()
    with pytest.raises(UsageError, match=r"are not at .*/tempopt-runs/tuned/weights/[0-9a-f]{64}\.ckpt"):
        api.resume("tuned", storage=URL, workers=1)
    assert {(row.state, row.attempt) for row in tickets()} == {("waiting", 0)}


@pytest.mark.long
@pytest.mark.usefixtures("begun")
def test_who_has_the_file_puts_it_where_agents_look_for_it() -> None:
    torch.save(by_hand.weights(seed=8), kept())
    assert api.search(spec(), storage=URL, workers=1).verdict is not None
    assert kept().read_bytes() == Path("base.ckpt").read_bytes()
    as_by_hand(tickets())


@pytest.mark.long
@pytest.mark.usefixtures("begun")
def test_the_weights_follow_the_study_to_another_place_and_go_with_it() -> None:
    name = kept().name
    Path("base.ckpt").rename("elsewhere.ckpt")
    assert api.resume("tuned", storage=URL, workers=1, checkpoints="other").verdict is not None
    as_by_hand(tickets())
    there = Path(weights_url("other", "tuned", name))
    assert there.read_bytes() == Path("elsewhere.ckpt").read_bytes()
    (there.parent / "mine.txt").write_text("mine")
    left = admin.delete(URL, "tuned").left
    assert not there.exists() and (there.parent / "mine.txt").exists()
    assert any("weights" in why for why in left.values())


@pytest.mark.long
@pytest.mark.usefixtures("begun")
def test_a_deleted_study_leaves_no_weights() -> None:
    admin.collect(URL)
    assert kept().is_file()
    assert admin.delete(URL, "tuned").left == {}
    assert not Path("tempopt-runs/tuned").exists()
    assert Path("base.ckpt").is_file()


@pytest.mark.long
@pytest.mark.usefixtures("begun")
def test_a_study_from_a_file_goes_on_where_its_weights_are(tmp_path: Path) -> None:
    dumped = transfer.dump(URL, "tuned", tmp_path / "tuned.tempopt")
    assert digest() in dumped.no_weights
    shutil.rmtree("tempopt-runs")
    # somebody else's file of that name
    mine = Path("base.ckpt").read_bytes()
    torch.save(by_hand.weights(seed=8), "base.ckpt")
    loaded = transfer.load("sqlite:///other.db", tmp_path / "tuned.tempopt", name="other")
    assert "has another content" in loaded.no_weights
    Path("base.ckpt").write_bytes(mine)
    name = kept(name="third")
    loaded = transfer.load("sqlite:///third.db", tmp_path / "tuned.tempopt", name="third")
    assert loaded.no_weights == "" and name.read_bytes() == mine
    Path("base.ckpt").unlink()
    assert api.resume("third", storage="sqlite:///third.db", workers=1).verdict is not None
    with pytest.raises(UsageError, match=r"are not at .*/other/weights/"):
        api.resume("other", storage="sqlite:///other.db", workers=1)


@pytest.mark.long
def test_agents_fetch_the_weights_from_a_bucket_once(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import s3fs

    s3fs.S3FileSystem().put_file("base.ckpt", f"{bucket}/given/base.ckpt")
    sha = digest()
    Path("base.ckpt").unlink()
    result = tempopt.search(
        spec(f"{bucket}/given/base.ckpt"), storage=URL, workers=1, checkpoints=f"{bucket}/runs"
    )
    assert result.verdict is not None
    as_by_hand(tickets())
    name = file_name(sha)
    copy, there = Path("tempopt-runs/tuned/weights", name), f"{bucket}/runs/tuned/weights/{name}"
    assert hashlib.sha256(copy.read_bytes()).hexdigest() == sha
    assert s3fs.S3FileSystem().cat_file(there) == copy.read_bytes()
    assert admin.delete(URL, "tuned").left == {}
    assert not copy.exists()
    s3fs.S3FileSystem.clear_instance_cache()
    assert not s3fs.S3FileSystem().exists(there)


@pytest.mark.long
def test_what_is_wrong_is_said_before_anything_is_stored(capsys: pytest.CaptureFixture[str]) -> None:
    torch.save(by_hand.weights(classes=4), "base.ckpt")
    for asked in (
        lambda: api.check(spec(), dry_run=True),
        lambda: api.plan(spec(), storage=URL),
        lambda: api.search(spec(), storage=URL, workers=1),
    ):
        with pytest.raises(SpecError, match=r"study\.start_from: .* 2 weights with another shape: head\."):
            asked()
    for path in ("nowhere.ckpt", "tempopt-runs", "."):
        with pytest.raises(SpecError, match=r'study\.start_from is "'):
            api.check(spec(path))
    assert not Path("tempopt.db").exists() or not study_names()
    assert not Path("tempopt-runs").exists()


def study_names() -> list[str]:
    with Store.open(URL, create=False) as store:
        return [each.study.name for each in store.list_studies()]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (7, r"study\.start_from: given 7\. Give the path of a checkpoint"),
        ({"strict": False}, r"study\.start_from: given .*Give the path"),
        ({"path": "a", "prefx": "b"}, r"study\.start_from\.prefx"),
        ({"path": "a", "strict": "yes"}, r"study\.start_from\.strict"),
        ({"path": ""}, r"study\.start_from\.path"),
        ({"path": "a", "sha256": "12"}, r"study\.start_from\.sha256"),
    ],
)
def test_a_key_that_is_wrong_is_refused(given: Any, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        StudySpec.parse(spec(given), source="the spec")


def test_a_spec_that_names_other_weights_than_the_file_is_refused() -> None:
    given = {"path": "base.ckpt", "sha256": "0" * 64}
    with pytest.raises(SpecError, match=r"study\.start_from\.sha256 is 0000.* has the SHA-256 [0-9a-f]{64}"):
        api.search(spec(given), storage=URL)


@pytest.mark.long
def test_a_comparison_starts_from_the_weights_too(capsys: pytest.CaptureFixture[str]) -> None:
    given = spec(seeds={"confirm": 2})
    del given["search"]
    sets = {"a": {"temperature_init": 1.0}, "b": {"temperature_init": 2.0}}
    tempopt.compare(given, sets, storage=URL, workers=1, name="tuned")
    for row in tickets():
        tau = row.parameters["temperature_init"]
        expected = by_hand.trained_by_hand(by_hand.weights(), tau=tau)
        assert row.value == pytest.approx(by_hand.value_by_hand(expected, "test", tau), rel=1e-3)
    assert main(["show", "tuned", "--storage", URL]) == 0
    assert f"runs start from: base.ckpt, SHA-256 {digest()}" in capsys.readouterr().out


@pytest.mark.long
def test_behind_a_server_the_file_is_sent_and_agents_fetch_it(served: Served, folder: Path) -> None:
    result = api.search(spec(), storage=served.url, workers=1)
    assert result.verdict is not None
    rows = served.store.tickets(served.store.load_study("tuned").id)
    assert as_by_hand(rows) >= {"baseline", "constant", "search", "confirm"}
    there = Path(weights_url(str(served.checkpoints), "tuned", kept().name))
    assert there.read_bytes() == kept().read_bytes() == Path("base.ckpt").read_bytes()
    assert admin.delete(served.url, "tuned").left == {}
    assert not there.exists()
