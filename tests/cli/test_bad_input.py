"""What a person who gets it wrong is told by the command line: one message, exit code 2, nothing begun.

A test for each line of the promise, and for the ways in which people get such things wrong. Commands run in
the test's own process, since an interpreter takes seconds to start; test_main.py starts some.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, inspect, text

from tempopt import cli
from tempopt.spec.load import load_spec
from tempopt.storage.checkpoints import DEFAULT_FOLDER
from tempopt.storage.opening import open_store
from tempopt.storage.rows import NewTicket
from tests.cli.conftest import SECRET, WRITTEN, holds_no_password
from tests.servers import descendants, empty_database, find_or_start

SPEC = """\
study:
  {name: toy, metric: val_loss, direction: minimize, trials: 2, parallel: 1, candidates: 1,
  arms: {baseline: 1, constant: 1}, seeds: {choose: 1, confirm: 2}}
model: {class_path: toy_modules.Toy}
data: {class_path: toy_modules.ToyData}
trainer: {max_steps: 10, accelerator: cpu}
search: {temperature_init: {low: 0.25, high: 4.0}}
"""

Start = Callable[..., subprocess.Popen[str]]
Runner = Callable[..., str]


def _set(*settings: str) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a person with a spec, ``toy.yaml``, that is in order."""
    (tmp_path / "toy.yaml").write_text(SPEC, encoding="utf-8")
    return tmp_path


@pytest.fixture
def start(folder: Path) -> Iterator[Start]:
    """Yield a starter of ``python -m tempopt`` in the folder; keyword arguments set its environment."""
    processes: list[subprocess.Popen[str]] = []

    def run(*words: str, **environment: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "tempopt", *words],
            cwd=folder,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        processes.append(process)
        return process

    yield run
    for process in processes:
        process.kill()
        process.communicate()


@pytest.fixture
def run_failing(folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Runner:
    """Return a runner that gives what a command said on stderr, and sees that it was one message."""
    monkeypatch.chdir(folder)

    def run(*words: str, code: int = 2, **environment: str) -> str:
        capfd.readouterr()
        with monkeypatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            exit_code = cli.main(words)
        message = capfd.readouterr().err
        assert exit_code == code, message
        assert message.startswith("tempopt: error: ")
        assert "Traceback" not in message
        return message

    return run


@pytest.fixture
def run_refused(run_failing: Runner, folder: Path) -> Runner:
    """Return a runner as ``run_failing``, which sees that no study was begun as well."""

    def run(*words: str, **environment: str) -> str:
        message = run_failing(*words, **environment)
        if (folder / "tempopt.db").exists():
            with open_store(f"sqlite:///{folder / 'tempopt.db'}", create=False) as store:
                assert store.list_studies() == []
        assert not (folder / DEFAULT_FOLDER).exists()
        return message

    return run


@pytest.fixture
def begun_database(folder: Path) -> Path:
    """The database of a study that was begun and has finished nothing."""
    path = folder / "tempopt.db"
    spec = load_spec(folder / "toy.yaml")
    with open_store(f"sqlite:///{path}") as store:
        study = store.create_study(spec.study.name, spec.to_json(), spec.identity())
        store.add_tickets(study.id, [NewTicket(kind="search", arm="search", number=0, seed=1)])
    return path


def test_a_module_in_the_current_folder_is_found_and_a_missing_one_is_named(
    run_refused: Runner, folder: Path
) -> None:
    (folder / "mine.py").write_text("from toy_modules import Toy\n\n\nclass Mine(Toy):\n    pass\n")
    message = run_refused(
        "check",
        "toy.yaml",
        *_set("model.class_path=mine.Mine", "model.lr=fast", "model.logz=x"),
        *_set("data.class_path=mind.Data"),
    )
    for fragment in (
        'model.lr: given the text "fast". Allowed for mine.Mine: float.',
        'model: Unknown argument of mine.Mine "logz". Did you mean "logs"?',
        'data.class_path: Unknown module "mind". Did you mean "mine"? Known: mine. '
        f"Looked in {folder} and in installed packages. Install it, change to its folder,",
    ):
        assert fragment in message


PLAIN = """\
import toy_modules
from torch import nn

class Plain(toy_modules.Stock):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(8, 8)
"""


@pytest.mark.parametrize(
    ("settings", "fragment"),
    [
        (["study.metric=val_los"], 'metric "val_los". Did you mean "val_loss"? Known: val_loss. Log it in'),
        (
            ["model.class_path=plain.Plain", "attach={layers: auto}"],
            "No attention was found in Plain",
        ),
        (["data.test=false"], "ToyData.test_dataloader() gives nothing, and the verdict needs data that no"),
        (["model.diverge_at=0"], 'in the dry run: by step 1 the loss or "val_loss" was NaN or infinite'),
        (
            ["trainer.val_check_interval=1000"],
            "`val_check_interval` (1000) must be less than or equal to the",
        ),
    ],
)
def test_what_can_only_be_seen_by_running(
    run_refused: Runner, folder: Path, settings: list[str], fragment: str
) -> None:
    (folder / "plain.py").write_text(PLAIN, encoding="utf-8")
    assert fragment in run_refused("search", "toy.yaml", *_set(*settings))


@pytest.mark.service
def test_a_wrong_password(run_failing: Runner) -> None:
    server, why_not = find_or_start("mariadb")
    if server is None:
        pytest.skip(why_not)
    address = server.base.partition("@")[2]
    message = run_failing("search", "toy.yaml", "--storage", f"mariadb://root:{WRITTEN}@{address}")
    assert f"The database mysql://root:***@{address} failed: Access denied for user 'root'@" in message
    assert "Check the user name and the password in the URL; in them, @ is written %40" in message
    holds_no_password(message)


def test_a_study_is_not_gone_on_with_under_another_spec(run_failing: Runner, begun_database: Path) -> None:
    overrides = _set("search.temperature_init.high=8.0", "trainer.max_steps=20")
    message = run_failing("search", "toy.yaml", *overrides)
    for fragment in (
        'The study "toy" in the store was created with another spec:',
        "search.temperature_init.high: was 4.0, now 8.0",
        "trainer.max_steps: was 10, now 20",
        "Give this study another name (--name), or continue the stored one: tempopt resume toy",
    ):
        assert fragment in message
    message = run_failing("search", "toy.yaml", "--trials", "7")
    assert "this spec has 1 baseline, 1 constant and 7 search tickets." in message
    assert "to add 5 search tickets: tempopt resume toy --trials +5." in message
    with open_store(f"sqlite:///{begun_database}", create=False) as store:
        (summary,) = store.list_studies()
    assert summary.tickets == {"search": {"waiting": 1}}


@pytest.fixture
def database(tmp_path: Path) -> Iterator[str]:
    """The URL of an empty PostgreSQL database."""
    with empty_database("postgresql", tmp_path, "bad_input") as url:
        yield url


@pytest.mark.service
def test_a_search_prints_and_stores_no_password_whether_it_ends_or_is_ended(
    start: Start, database: str, folder: Path
) -> None:
    url = database.replace("postgres@", f"postgres:{WRITTEN}@").replace("+psycopg", "")
    masked_url = url.replace(WRITTEN, "***")
    seeds = "study.seeds={choose: 1, confirm: 2}"
    words = _set("study.trials=1", "study.arms={baseline: 1, constant: 1}", seeds)
    search = start("search", "toy.yaml", "--storage", url, *words)
    out, err = search.communicate(timeout=240)
    assert search.returncode == 0, err
    assert f"tempopt show toy --storage '{masked_url}'" in out

    # beside the folder, all of which is searched for the password below
    file = folder.with_name(f"{folder.name}.url")
    file.write_text(url, encoding="utf-8")
    file.chmod(0o600)
    words = ["--name", "long", *_set("trainer.max_steps=1000000")]
    long = start("search", "toy.yaml", "--storage-file", str(file), *words)
    assert long.stdout is not None
    assert "8 runs" in long.stdout.readline()
    family = [long.pid, *descendants(long.pid)]
    processes = [Path(f"/proc/{pid}/cmdline").read_text() for pid in family] if Path("/proc").is_dir() else []
    long.send_signal(signal.SIGINT)
    long_out, errors = long.communicate(timeout=240)
    assert long.returncode == 130, errors
    assert f"  tempopt resume long --storage-file {file}\n" in long_out

    engine = create_engine(database)
    with engine.connect() as connection:
        tables = inspect(connection).get_table_names()
        table_rows = [connection.execute(text(f'SELECT t::text FROM "{table}" t')).all() for table in tables]
    engine.dispose()
    assert len(table_rows) > 3
    files = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    exposed_text = f"{out}{err}{long_out}{errors}{table_rows}{files}{processes}"
    assert SECRET not in exposed_text
    assert WRITTEN not in exposed_text
