"""Checkpoints of workers that know a server alone: put and got over a line that breaks, and gone on from."""

from __future__ import annotations

import dataclasses
import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tempopt.records.changes import Kept, Returned
from tempopt.records.rows import Checkpoint
from tempopt.remote import filesystem
from tempopt.remote.filesystem import SERVER, ServerFileSystem
from tempopt.server.app import create_app
from tempopt.store.checkpoints import opened
from tempopt.training.run import Run
from tempopt.workers.messages import NotKept, Saved, Started
from tests.server.conftest import Served, listening, served  # noqa: F401  # a fixture
from tests.server.test_agents import Agent
from tests.server.test_checkpoints import (
    FILE,
    RUN,
    URL,
    _recorded,
    _ticket,
    agent,  # noqa: F401  # a fixture
    small_pieces,  # noqa: F401  # a fixture
)

Handler = Callable[[httpx.Request], httpx.Response]
CONTENT = bytes(range(256)) * 20


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.write_bytes(CONTENT)
    return path


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Callable[[Handler], ServerFileSystem]:
    """Return a function that makes a file system whose server, and whose object store, answer so."""
    monkeypatch.setenv(SERVER, "https://tempopt.example.com")
    monkeypatch.setenv("TEMPOPT_TOKEN", "the-token")
    monkeypatch.setattr(filesystem, "_JITTER", _NoWait())

    def make(handler: Handler) -> ServerFileSystem:
        client = httpx.Client

        def faked(**given: Any) -> httpx.Client:
            given.pop("verify", None)
            return client(transport=httpx.MockTransport(handler), **given)

        monkeypatch.setattr(httpx, "Client", faked)
        return ServerFileSystem()

    return make


class _NoWait:
    def uniform(self, least: float, most: float) -> float:
        return 0.0


def _refused(status: int, code: str) -> httpx.Response:
    return httpx.Response(status, json={"error": {"code": code, "message": f"It is {code}."}})


# ---- a line that breaks


def test_an_upload_goes_on_where_it_was_when_the_server_is_started_again(
    served: Served,  # noqa: F811
    agent: Agent,  # noqa: F811
    small_pieces: None,  # noqa: F811
    source: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(filesystem, "_JITTER", _NoWait())
    checkpoints = served.checkpoints.as_uri()
    with ExitStack() as servers:
        first = ExitStack()
        url = first.enter_context(listening(create_app(served.store, checkpoints=checkpoints)))
        monkeypatch.setenv(SERVER, url)
        fs, path = opened(URL)
        send, sent, refused = fs._sent, [], []

        def sending(*given: Any) -> Any:
            offset = given[2]["offset"]
            if len(sent) == 3 and not refused:
                first.close()
                try:
                    return send(*given)
                except httpx.TransportError:
                    refused.append(offset)
                    app = create_app(served.store, checkpoints=checkpoints)
                    servers.enter_context(listening(app, port=int(url.rpartition(":")[2])))
                    raise
            sent.append(offset)
            return send(*given)

        monkeypatch.setattr(fs, "_sent", sending)
        fs.put_file(str(source), path)
    assert refused == [3000] and sent == [0, 1000, 2000, 3000, 4000, 5000], "no piece was sent twice"
    folder = served.checkpoints / "toy" / RUN
    assert {each.name: each.read_bytes() for each in folder.iterdir()} == {FILE: CONTENT}


def test_an_upload_of_which_the_server_has_lost_pieces_is_sent_again_from_there(
    served: Served,  # noqa: F811
    agent: Agent,  # noqa: F811
    small_pieces: None,  # noqa: F811
    source: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fs, path = opened(URL)
    send, sent = fs._sent, []
    folder = served.checkpoints / "toy" / RUN

    def sending(*given: Any) -> Any:
        if len(sent) == 2:
            (part,) = folder.iterdir()
            os.truncate(part, 1500)
        if len(sent) == 4:
            shutil.rmtree(folder)
        sent.append(given[2]["offset"])
        return send(*given)

    monkeypatch.setattr(fs, "_sent", sending)
    fs.put_file(str(source), path)
    assert sent == [0, 1000, 2000, 1500, 2500, 0, 1000, 2000, 3000, 4000, 5000]
    assert (folder / FILE).read_bytes() == CONTENT


def test_a_server_that_loses_every_piece_is_given_up(
    answering: Callable[[Handler], ServerFileSystem], source: Path
) -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            return httpx.Response(200, json={"url": "", "piece": 1000, "size": 0})
        if request.method == "GET":
            return httpx.Response(200, json={"bytes": 0, "whole": False})
        return _refused(409, "piece_missing")

    with pytest.raises(OSError, match="loses pieces of step-8-1.ckpt"):
        answering(handler).put_file(str(source), f"toy/{RUN}/{FILE}")


def test_a_download_that_breaks_off_goes_on_where_it_was(
    answering: Callable[[Handler], ServerFileSystem],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(filesystem, "_CHUNK", 1024)
    asked: list[str | None] = []

    def broken() -> Iterator[bytes]:
        yield CONTENT[: 1024 * 4]
        raise httpx.ReadError("reset")

    def handler(request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            return httpx.Response(200, json={"url": "", "piece": 1000, "size": len(CONTENT)})
        asked.append(request.headers.get("range"))
        if len(asked) == 1:
            return httpx.Response(200, content=broken())
        return httpx.Response(206, content=CONTENT[1024 * 4 :])

    answering(handler).get_file(f"toy/{RUN}/{FILE}", str(tmp_path / "got"))
    assert asked == [None, "bytes=4096-"] and (tmp_path / "got").read_bytes() == CONTENT


def test_a_server_that_sends_all_of_it_again_is_understood(
    answering: Callable[[Handler], ServerFileSystem],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(filesystem, "_CHUNK", 1024)
    asked: list[str] = []

    def broken() -> Iterator[bytes]:
        yield CONTENT[:2048]
        raise httpx.ReadError("reset")

    def handler(request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            return httpx.Response(200, json={"url": "", "piece": 1000, "size": len(CONTENT)})
        asked.append(str(request.url))
        return httpx.Response(200, content=broken() if len(asked) == 1 else CONTENT)

    answering(handler).get_file(f"toy/{RUN}/{FILE}", str(tmp_path / "got"))
    assert (tmp_path / "got").read_bytes() == CONTENT


# ---- what may pass, and what may not


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (408, "too_slow"),
        (429, "rate_limited"),
        (500, "internal"),
        (500, "storage"),
        (502, ""),
        (503, "storage_busy"),
        (503, "checkpoints_away"),
        (504, ""),
    ],
)
def test_what_may_pass_is_tried_again(
    answering: Callable[[Handler], ServerFileSystem], source: Path, status: int, code: str
) -> None:
    turns = itertools.count()

    def handler(request: httpx.Request) -> httpx.Response:
        if next(turns) % 3:
            return _refused(status, code) if code else httpx.Response(status, text="<html>Bad gateway</html>")
        if request.method == "POST":
            return httpx.Response(200, json={"url": "", "piece": 4000, "size": 0})
        return httpx.Response(200, json={"bytes": 0, "whole": True})

    answering(handler).put_file(str(source), f"toy/{RUN}/{FILE}")


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, "usage"),
        (401, "token_revoked"),
        (403, "checkpoint_refused"),
        (409, "stale_attempt"),
        (413, "too_large"),
        (507, "not_written"),
    ],
)
def test_what_will_not_pass_is_told_at_once(
    answering: Callable[[Handler], ServerFileSystem], source: Path, status: int, code: str
) -> None:
    asked = []

    def handler(request: httpx.Request) -> httpx.Response:
        asked.append(request.method)
        return _refused(status, code)

    with pytest.raises(OSError, match=f"It is {code}."):
        answering(handler).put_file(str(source), f"toy/{RUN}/{FILE}")
    assert set(asked) == {"POST"} and len(asked) == 1


def test_each_try_at_an_object_store_has_a_signature_of_its_own_and_shows_it_no_token(
    answering: Callable[[Handler], ServerFileSystem], source: Path, tmp_path: Path
) -> None:
    signed, tried = itertools.count(), []

    def handler(request: httpx.Request) -> httpx.Response:
        if request.url.host == "tempopt.example.com":
            assert request.headers["authorization"] == "Bearer the-token"
            return httpx.Response(
                200, json={"url": f"https://bucket.example/a?signature={next(signed)}", "piece": 9, "size": 3}
            )
        assert "authorization" not in request.headers
        tried.append((request.method, request.url.params["signature"]))
        if len(tried) % 2:
            return httpx.Response(503)
        return httpx.Response(200, content=CONTENT if request.method == "GET" else b"")

    fs = answering(handler)
    fs.put_file(str(source), f"toy/{RUN}/{FILE}")
    fs.get_file(f"toy/{RUN}/{FILE}", str(tmp_path / "got"))
    assert tried == [("PUT", "0"), ("PUT", "1"), ("GET", "2"), ("GET", "3")]
    assert (tmp_path / "got").read_bytes() == CONTENT


def test_a_redirection_takes_the_token_nowhere(
    answering: Callable[[Handler], ServerFileSystem], source: Path
) -> None:
    hosts = []

    def handler(request: httpx.Request) -> httpx.Response:
        hosts.append(request.url.host)
        return httpx.Response(307, headers={"location": "https://elsewhere.example/"})

    with pytest.raises(OSError, match="status 307"):
        answering(handler).put_file(str(source), f"toy/{RUN}/{FILE}")
    assert hosts == ["tempopt.example.com"]


def test_patience_is_counted_from_the_first_failure(
    answering: Callable[[Handler], ServerFileSystem], source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, tries = [0.0], []

    def handler(request: httpx.Request) -> httpx.Response:
        # a large file is on its way for longer than anybody waits for a server
        now[0] += 100.0
        tries.append(now[0])
        raise httpx.ConnectError("refused")

    monkeypatch.setattr(filesystem, "time", _Clock(now))
    with pytest.raises(OSError, match=r"https://tempopt\.example\.com cannot be reached.*\(refused\)"):
        answering(handler).put_file(str(source), f"toy/{RUN}/{FILE}")
    assert tries == [100.0, 200.0, 300.0]


class _Clock:
    def __init__(self, now: list[float]) -> None:
        self._now = now

    def monotonic(self) -> float:
        return self._now[0]

    def sleep(self, seconds: float) -> None:
        pass


def test_a_token_that_is_replaced_on_the_way_is_read_anew(
    served: Served,  # noqa: F811
    agent: Agent,  # noqa: F811
    small_pieces: None,  # noqa: F811
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = tmp_path / "token"
    file.write_text(os.environ["TEMPOPT_TOKEN"])
    file.chmod(0o600)
    monkeypatch.delenv("TEMPOPT_TOKEN")
    monkeypatch.setenv("TEMPOPT_TOKEN_FILE", str(file))
    fs, path = opened(URL)
    send, sent = fs._sent, []

    def sending(server: Any, *given: Any) -> Any:
        sent.append(given)
        if len(sent) == 3:
            file.write_text(served.new_token("agent"))
            # what was shown before is not accepted any more
            server.client.auth._token = "tok_gone"
        return send(server, *given)

    monkeypatch.setattr(fs, "_sent", sending)
    fs.put_file(str(source), path)
    assert (served.checkpoints / "toy" / RUN / FILE).read_bytes() == CONTENT


# ---- a run


def test_a_run_keeps_and_goes_on_behind_a_server_as_in_a_folder(
    served: Served,  # noqa: F811
    agent: Agent,  # noqa: F811
    small_pieces: None,  # noqa: F811
    request_for: Any,
    listener: Any,
    tmp_path: Path,
) -> None:
    local = request_for(checkpoints=str(tmp_path / "local"))
    behind = dataclasses.replace(local, checkpoints=f"tempopt://toy/{RUN}", folder=str(tmp_path / "near"))
    saved: dict[str, list[Saved]] = {}
    for name, request in (("local", local), ("behind", behind)):
        channel = listener(die_at=10)
        with pytest.raises(SystemExit):
            Run(request, channel).execute()
        assert channel.of(NotKept) == []
        saved[name] = channel.saved
    assert [each.url for each in saved["behind"]] == [
        f"tempopt://toy/{RUN}/step-{step}-1.ckpt" for step in (8, 4)
    ]
    again = _taken_again(served, agent, saved["behind"])
    heard = {"local": listener(), "behind": listener(), "undisturbed": listener()}
    finished = {
        "local": Run(dataclasses.replace(local, attempt=2, resume=saved["local"]), heard["local"]),
        "behind": Run(dataclasses.replace(behind, attempt=again, resume=saved["behind"]), heard["behind"]),
        "undisturbed": Run(request_for(), heard["undisturbed"]),
    }
    results = {name: run.execute() for name, run in finished.items()}
    for name in ("local", "behind"):
        assert heard[name].of(Started)[0].step == 8 and heard[name].of(NotKept) == []
        assert results[name].reports == results["undisturbed"].reports
        assert results[name].measurements == results["undisturbed"].measurements
    assert [each.step for each in heard["behind"].saved] == [each.step for each in heard["local"].saved]
    # nothing that was on its way is left
    assert list((tmp_path / "near").iterdir()) == []


def _taken_again(served: Served, agent: Agent, saved: list[Saved]) -> int:  # noqa: F811
    """Have the run's checkpoints recorded and the run given back and taken again; return its attempt."""
    ticket = _ticket(served)
    for each in reversed(saved):
        kept = Checkpoint(step=each.step, url=each.url, digest=each.digest, size=each.size)
        agent.sync(Kept(ticket_id=ticket.id, attempt=ticket.attempt, checkpoint=kept))
    agent.sync(Returned(ticket_id=ticket.id, attempt=ticket.attempt))
    taken = agent.take()
    assert taken is not None and taken.id == ticket.id
    return taken.attempt


def test_a_run_that_may_not_put_goes_on_without_a_checkpoint(
    served: Served,  # noqa: F811
    agent: Agent,  # noqa: F811
    request_for: Any,
    listener: Any,
    tmp_path: Path,
) -> None:
    request = request_for(checkpoints="tempopt://toy/baseline-0001", folder=str(tmp_path / "near"))
    channel = listener()
    finished = Run(request, channel).execute()
    assert finished.state == "complete" and channel.saved == []
    assert "baseline-0001" in channel.of(NotKept)[0].why


def test_what_the_server_has_not_any_more_is_no_checkpoint_to_go_on_from(
    served: Served,  # noqa: F811
    agent: Agent,  # noqa: F811
    request_for: Any,
    listener: Any,
    tmp_path: Path,
) -> None:
    request = request_for(checkpoints=f"tempopt://toy/{RUN}", folder=str(tmp_path / "near"))
    channel, heard = listener(die_at=10), listener()
    with pytest.raises(SystemExit):
        Run(request, channel).execute()
    again = _taken_again(served, agent, channel.saved)
    (served.checkpoints / "toy" / RUN / "step-8-1.ckpt").unlink()
    Run(dataclasses.replace(request, attempt=again, resume=channel.saved), heard).execute()
    (started,) = heard.of(Started)
    assert started.step == 4 and "step-8-1.ckpt of step 8 is not there" in started.notes[0]


def test_a_file_that_was_recorded_is_seen(served: Served, agent: Agent, source: Path) -> None:  # noqa: F811
    fs, path = opened(URL)
    fs.put_file(str(source), path)
    assert not fs.exists(path)
    _recorded(agent, _ticket(served), CONTENT)
    assert fs.exists(path) and fs.info(path)["size"] == len(CONTENT)
