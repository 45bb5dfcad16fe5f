"""Who runs code that a study brings, and who does not; what becomes of it that is missing or was changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tempopt import cli
from tempopt.agent.code import AcceptCode
from tempopt.agent.gate import Gate
from tempopt.agent.observer import Unobserved
from tempopt.bundle.archive import digest_of, packed
from tempopt.errors import BundleRefused, CodeNotAccepted, StudyChanged, UsageError
from tempopt.pool import agent as pool_agent
from tempopt.pool.agent import PoolWorker, Source
from tempopt.pool.behind_server import ServerSource
from tempopt.pool.on_database import DatabaseSource
from tempopt.records.pool import PoolAgent
from tempopt.remote.connection import ServerConnection
from tempopt.store import Store
from tempopt.store.bundles import bundle_url, keep
from tempopt.study import admin, api, transfer
from tests.bundle.conftest import Clone
from tests.pool.conftest import begin
from tests.pool.test_pool_worker import Fake, refused
from tests.server.conftest import Served
from tests.server.conftest import served as served
from tests.toy_study import SMALL, toy_spec

pytestmark = pytest.mark.server

ARCHIVE = packed({"toy_modules.py": b"raise RuntimeError('this code was run')\n"})
DIGEST = digest_of(ARCHIVE)


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A database with a study that brings code, which lies where it should."""
    monkeypatch.chdir(tmp_path)
    url = f"sqlite:///{tmp_path / 'studies.db'}"
    with Store.open(url) as store:
        place(store, tmp_path / "kept")
    return url


def place(store: Store, folder: Path) -> None:
    """Begin a study whose code lies in a folder."""
    row = begin(store, code=DIGEST)
    store.set_checkpoints(row.id, str(folder))
    keep(ARCHIVE, bundle_url(str(folder), "toy", DIGEST))


def serve(source: Source) -> None:
    gate = Gate()
    try:
        source.serve("toy", gpus=0, gate=gate, observer=Unobserved())
    finally:
        gate.close()


def test_no_agent_of_a_database_runs_it_that_was_not_told_to(url: str, tmp_path: Path) -> None:
    for work in (api.join, api.resume):
        with pytest.raises(CodeNotAccepted, match=rf"{DIGEST[:12]}.*--accept-code"):
            work("toy", storage=url, workers=1)
    with Store.open(url) as store:
        with pytest.raises(CodeNotAccepted, match="everybody who may begin studies"):
            serve(DatabaseSource(store, None))
        assert not [each for each in store.tickets(store.load_study("toy").id) if each.attempt]
    assert not (tmp_path / "tempopt-code").exists()


def test_no_agent_of_a_server_runs_it_that_was_not_told_to(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    place(served.store, served.checkpoints)
    connection = ServerConnection(served.url, served.new_token("agent"))
    with pytest.raises(CodeNotAccepted, match="--accept-code"):
        serve(ServerSource(connection, None))
    connection.close()
    assert not (tmp_path / "tempopt-code").exists()


def test_the_command_says_so_and_what_to_do(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["agent", "toy", "--storage", url]) == 2
    assert "--accept-code" in capsys.readouterr().err


def test_environments_are_of_code_that_is_accepted(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["agent", "toy", "--storage", url, "--environments", "uv"]) == 2
    assert "Give --accept-code with it" in capsys.readouterr().err


def test_an_agent_of_the_pool_says_so_once_and_leaves_it_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    # it would try others again at once
    monkeypatch.setattr(pool_agent, "_UNABLE_SECONDS", 0.0)
    source, lines = Fake([refused(CodeNotAccepted("It brings its own code.")) for _ in range(9)]), list[str]()
    PoolWorker(source, PoolAgent(name=""), idle=0.3, told=lines.append).run()
    assert source.served == 1
    assert len([line for line in lines if "It brings its own code." in line]) == 1
    assert source.idle()[-1].unable == {7: "It brings its own code."}


def test_an_agent_that_was_told_to_runs_it(url: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="this code was run"):
        api.join("toy", storage=url, workers=1, accept=AcceptCode(folder=tmp_path / "code"))
    assert (tmp_path / "code" / DIGEST / "toy_modules.py").is_file()


@pytest.mark.parametrize("spoilt", [ARCHIVE[:-1], packed({"toy_modules.py": b"EVIL = 1\n"}), b""])
def test_code_that_was_changed_where_it_lies_is_not_unpacked(url: str, tmp_path: Path, spoilt: bytes) -> None:
    (tmp_path / "kept" / "toy" / "code" / f"{DIGEST}.tar").write_bytes(spoilt)
    with pytest.raises(BundleRefused, match="Nothing of it was unpacked"):
        api.join("toy", storage=url, workers=1, accept=AcceptCode(folder=tmp_path / "code"))
    assert not (tmp_path / "code").exists()


def test_code_that_is_not_there_is_missed(url: str, tmp_path: Path) -> None:
    (tmp_path / "kept" / "toy" / "code" / f"{DIGEST}.tar").unlink()
    with pytest.raises(UsageError, match="it is not there.*--with-code DIR"):
        api.join("toy", storage=url, workers=1, accept=AcceptCode(folder=tmp_path / "code"))


def test_more_than_a_bundle_may_have_is_not_read(url: str, tmp_path: Path) -> None:
    with (tmp_path / "kept" / "toy" / "code" / f"{DIGEST}.tar").open("wb") as file:
        file.truncate(10**12)
    with pytest.raises(BundleRefused, match="16000000 are allowed"):
        api.join("toy", storage=url, workers=1, accept=AcceptCode(folder=tmp_path / "code"))


def test_a_study_is_continued_with_the_code_that_it_was_begun_with(url: str, clone: Clone) -> None:
    with pytest.raises(StudyChanged, match=r"(?s)study\.code: was .*two versions are not comparable"):
        api.search(toy_spec(**SMALL), storage=url, with_code=clone({"toy_modules.py": "OTHER = 1\n"}))
    with pytest.raises(StudyChanged, match=r"study\.code: was .*now not given"):
        api.search(toy_spec(**SMALL), storage=url)


def test_code_that_a_spec_names_has_to_be_given(url: str, clone: Clone) -> None:
    with pytest.raises(UsageError, match=r"--with-code \."):
        api.search(toy_spec(code=DIGEST, **SMALL), storage=url)
    with pytest.raises(UsageError, match="Take the key out"):
        api.search(toy_spec(code=DIGEST, **SMALL), storage=url, with_code=clone({"other.py": ""}))
    with pytest.raises(UsageError, match="the SHA-256 of a bundle"):
        api.search(toy_spec(code="abc", **SMALL), storage=url)


def test_a_file_that_was_left_out_is_missed_before_anything_is_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clone: Clone
) -> None:
    monkeypatch.chdir(clone({"other.py": "", ".gitignore": "toy_modules.py\n"}))
    Path("toy_modules.py").write_text("import lightning")
    url = f"sqlite:///{tmp_path / 'new.db'}"
    with pytest.raises(UsageError, match='Unknown module "toy_modules". Known: other'):
        api.search(toy_spec(**SMALL), storage=url, workers=1, with_code=".")
    with Store.open(url) as store:
        assert store.list_studies() == []


def test_it_is_shown(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["show", "toy", "--storage", url]) == 0
    assert f"code: brought by the study, SHA-256 {DIGEST}" in capsys.readouterr().out
    assert api.load_study(url, "toy").to_json()["code"] == DIGEST


def test_it_is_deleted_with_its_study(url: str, tmp_path: Path) -> None:
    done = admin.delete(url, "toy")
    assert done.freed == len(ARCHIVE) and done.left == {} and not (tmp_path / "kept" / "toy").exists()


def test_it_is_in_the_file_of_a_study(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, there = tmp_path / "toy.tempopt", f"sqlite:///{tmp_path / 'there.db'}"
    assert transfer.dump(url, "toy", file).no_code == ""
    admin.delete(url, "toy")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert transfer.load(there, file, name="again").no_code == ""
    with pytest.raises(UsageError, match="this code was run"):
        api.resume("again", storage=there, workers=1, accept=AcceptCode())


def test_a_file_without_it_says_so(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "kept" / "toy" / "code" / f"{DIGEST}.tar").unlink()
    assert cli.main(["dump", "toy", "--storage", url]) == 0
    assert "is not in the file" in capsys.readouterr().out
    assert cli.main(["load", "toy.tempopt", "--storage", f"sqlite:///{tmp_path / 'there.db'}"]) == 0
    assert "--with-code DIR" in capsys.readouterr().out
