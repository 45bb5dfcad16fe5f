"""``tempopt queue``, ``quota`` and ``agent --pool`` as they are typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tempopt import cli
from tempopt.records.pool import PoolAgent
from tempopt.records.rows import NewTicket, Pooled
from tempopt.store import Store


@pytest.fixture
def storage(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path / 'studies.db'}"
    with Store.open(url) as store:
        row = store.create_study("mine", {}, "hash", pooled=Pooled(owner="ada", queue="vision", parallel=4))
        store.add_tickets(row.id, [NewTicket(kind="search", arm="search", number=0, seed=1)])
        store.pool.hear(PoolAgent(name="gpu1:17:abc:1.1", gpus=1, unable={row.id: "There is no module own."}))
    return url


def test_the_pool_is_shown_as_tables(storage: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["queue", "--storage", storage]) == 0
    out = capsys.readouterr().out
    assert "Agents: 1, of which 0 serve a study" in out
    assert any(line.split()[:5] == ["mine", "ada", "vision", "0", "0"] for line in out.splitlines())
    assert "gpu1:17 cannot serve mine: There is no module own." in out


def test_what_an_agent_says_steers_no_terminal(storage: str, capsys: pytest.CaptureFixture[str]) -> None:
    with Store.open(storage) as store:
        (study,) = store.list_studies()
        said = "\x1b]0;evil\x07\x1b[31mred\r\na line of its own"
        store.pool.hear(
            PoolAgent(name="gpu1:17:abc:1.1", gpus=1, machine=said, unable={study.study.id: said})
        )
    assert cli.main(["queue", "--storage", storage]) == 0
    out = capsys.readouterr().out
    assert all(sign == "\n" or sign.isprintable() for sign in out)
    assert r"\x1b]0;evil" in out and "\na line of its own" not in out


def test_the_pool_is_shown_as_json(storage: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["queue", "--storage", storage, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [each["study"] for each in told["studies"]] == ["mine"]
    assert [each["gpus"] for each in told["agents"]] == [1]


def test_a_study_is_moved(storage: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["queue", "mine", "--priority", "5", "--to", "text", "--storage", storage]) == 0
    assert capsys.readouterr().out == "mine is in the queue text, with priority 5.\n"
    with Store.open(storage) as store:
        assert (store.load_study("mine").queue, store.load_study("mine").priority) == ("text", 5)


def test_quotas_are_set_listed_and_removed(storage: str, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--storage", storage]
    assert cli.main(["quota", "set", "--user", "ada", "--gpu-hours", "100", "--days", "30", *where]) == 0
    assert cli.main(["quota", "set", "--queue", "vision", "--weight", "2", *where]) == 0
    assert cli.main(["quota", "list", "--json", *where]) == 0
    told = capsys.readouterr().out
    assert told.startswith("The quota of ada is set.\nThe quota of the queue vision is set.\n")
    rows = json.loads(told[told.index("[") :])
    assert [(each["queue"], each["user"], each["weight"], each["gpu_hours"]) for each in rows] == [
        ("", "ada", 1.0, 100.0),
        ("vision", "", 2.0, None),
    ]
    assert cli.main(["quota", "list", "--user", "ada", *where]) == 0
    assert "every  ada   1       100        30" in capsys.readouterr().out
    assert cli.main(["quota", "remove", "--user", "ada", *where]) == 0
    assert cli.main(["quota", "remove", "--user", "ada", *where]) == cli.USAGE
    assert 'There is no quota of the user "ada"' in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["queue", "--priority", "5"], "Give the study that is to be moved"),
        (["queue", "mine"], "Say how mine is to be moved"),
        (["queue", "mine", "--priority", "1001"], "not a whole number from -1000 to 1000"),
        (["queue", "mine", "--to", "two words"], "is not allowed"),
        (["queue", "yours", "--priority", "1"], 'There is no study "yours"'),
        (["quota", "set", "--user", "ada"], "Say what is set"),
        (["quota", "set", "--weight", "2"], "Give --queue or --user"),
        (["quota", "list", "--weight", "2"], "is for tempopt quota set"),
        (["quota", "set", "--user", "ada", "--weight", "0"], "above 0"),
        (["quota", "set", "--user", "ada", "--weight", "nan"], "not a number from 0"),
        (["quota", "set", "--user", "ada", "--weight", "1", "--json"], "is for tempopt quota list"),
        (["agent"], "Give the name of a study"),
        (["agent", "mine", "--pool"], "were both given"),
        (["agent", "mine", "--queue", "vision"], "--queue is for agents of the pool"),
        (["agent", "mine", "--idle", "5"], "--idle is for agents of the pool"),
        (["agent", "--pool", "--workers", "2"], "--workers is for an agent of one study"),
        (["agent", "--pool", "--token-file", "t"], "--token-file is for a server"),
        (["agent", "--pool", "--gpus-per-agent", "2"], "to have 2 GPUs"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_message(
    storage: str, words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*words, "--storage", storage]) in (cli.USAGE, cli.FAILED)
    error = capsys.readouterr().err
    assert told in error and error.startswith("tempopt: error: ") and "Traceback" not in error


def test_an_agent_with_nothing_to_do_leaves_when_it_was_told_to(
    storage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with Store.open(storage) as store:
        store.set_state(store.load_study("mine").id, "paused")
        assert cli.main(["agent", "--pool", "--idle", "0.2", "--storage", storage]) == 0
        assert [each.name for each in store.pool.read().agents] == ["gpu1:17:abc:1.1"]
    out = capsys.readouterr().out
    assert "every queue, no GPUs" in out and "Nothing to do for 0.2 s." in out


def test_search_with_a_pool_trains_nothing_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "search",
        "clip_digits",
        "--pool",
        "--workers",
        "2",
        "--storage",
        f"sqlite:///{tmp_path / 'x.db'}",
    ]
    assert cli.main(words) == cli.USAGE
    assert "Take --workers out" in capsys.readouterr().err
    assert not (tmp_path / "x.db").exists()
