"""Checkpoints of workers that know a server alone: put and got over a line that breaks, and gone on from."""

from __future__ import annotations

import dataclasses
import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tempopt.storage.changes import AttemptReleased, CheckpointRecorded
from tempopt.storage.checkpoints import open_filesystem
from tempopt.storage.http import filesystem
from tempopt.storage.http.filesystem import SERVER, ServerFileSystem
from tempopt.storage.rows import Checkpoint
from tempopt.training.messages import CheckpointFailed, CheckpointRef, Started
from tempopt.training.run import LightningRun
from tests.server.http_agent import FILE, RUN, URL, HttpAgent, held_ticket
from tests.server.http_server import RunningServer

Handler = Callable[[httpx.Request], httpx.Response]
CONTENT = bytes(range(256)) * 20


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.write_bytes(CONTENT)
    return path


@pytest.fixture
def make_file_system(monkeypatch: pytest.MonkeyPatch) -> Callable[[Handler], ServerFileSystem]:
    """Return a function that makes a file system whose server, and whose object store, answer so."""
    monkeypatch.setenv(SERVER, "https://tempopt.example.com")
    monkeypatch.setenv("TEMPOPT_TOKEN", "the-token")
    monkeypatch.setattr(filesystem, "_JITTER", _NoWait())

    def make(handler: Handler) -> ServerFileSystem:
        client = httpx.Client

        def fake_client(**options: Any) -> httpx.Client:
            options.pop("verify", None)
            return client(transport=httpx.MockTransport(handler), **options)

        monkeypatch.setattr(httpx, "Client", fake_client)
        return ServerFileSystem()

    return make


class _NoWait:
    def uniform(self, low: float, high: float) -> float:
        return 0.0


def _refusal(status: int, code: str) -> httpx.Response:
    return httpx.Response(status, json={"error": {"code": code, "message": f"It is {code}."}})


# ---- a line that breaks


def test_an_upload_of_which_the_server_has_lost_pieces_is_sent_again_from_there(
    holder: HttpAgent, small_pieces: None, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs, path = open_filesystem(URL)
    send = filesystem._request_json
    offsets: list[int] = []
    folder = holder.server.checkpoints / "toy" / RUN

    def fake_send(server: Any, method: str, path: str, **kwargs: Any) -> Any:
        if method != "PUT":
            return send(server, method, path, **kwargs)
        if len(offsets) == 2:
            (part,) = folder.iterdir()
            os.truncate(part, 1500)
        if len(offsets) == 4:
            shutil.rmtree(folder)
        offsets.append(kwargs["params"]["offset"])
        return send(server, method, path, **kwargs)

    monkeypatch.setattr(filesystem, "_request_json", fake_send)
    fs.put_file(str(source), path)
    assert offsets == [0, 1000, 2000, 1500, 2500, 0, 1000, 2000, 3000, 4000, 5000]
    assert (folder / FILE).read_bytes() == CONTENT


def test_a_server_that_loses_every_piece_is_given_up(
    make_file_system: Callable[[Handler], ServerFileSystem], source: Path
) -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            return httpx.Response(200, json={"url": "", "piece": 1000, "size": 0})
        if request.method == "GET":
            return httpx.Response(200, json={"bytes": 0, "is_complete": False})
        return _refusal(409, "piece_missing")

    with pytest.raises(OSError, match="losing pieces of step-8-1.ckpt"):
        make_file_system(handler).put_file(str(source), f"toy/{RUN}/{FILE}")


@pytest.mark.parametrize("sends_all", [False, True])
def test_a_download_that_breaks_off_goes_on_where_it_was(
    make_file_system: Callable[[Handler], ServerFileSystem],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sends_all: bool,
) -> None:
    monkeypatch.setattr(filesystem, "_CHUNK_BYTES", 1024)
    ranges: list[str | None] = []

    def broken_content() -> Iterator[bytes]:
        yield CONTENT[:4096]
        raise httpx.ReadError("reset")

    def handler(request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            return httpx.Response(200, json={"url": "", "piece": 1000, "size": len(CONTENT)})
        ranges.append(request.headers.get("range"))
        if len(ranges) == 1:
            return httpx.Response(200, content=broken_content())
        return (
            httpx.Response(200, content=CONTENT) if sends_all else httpx.Response(206, content=CONTENT[4096:])
        )

    make_file_system(handler).get_file(f"toy/{RUN}/{FILE}", str(tmp_path / "got"))
    assert ranges == [None, "bytes=4096-"] and (tmp_path / "got").read_bytes() == CONTENT


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
    make_file_system: Callable[[Handler], ServerFileSystem], source: Path, status: int, code: str
) -> None:
    turns = itertools.count()

    def handler(request: httpx.Request) -> httpx.Response:
        if next(turns) % 3:
            return _refusal(status, code) if code else httpx.Response(status, text="<html>Bad gateway</html>")
        if request.method == "POST":
            return httpx.Response(200, json={"url": "", "piece": 4000, "size": 0})
        return httpx.Response(200, json={"bytes": 0, "is_complete": True})

    make_file_system(handler).put_file(str(source), f"toy/{RUN}/{FILE}")


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
    make_file_system: Callable[[Handler], ServerFileSystem], source: Path, status: int, code: str
) -> None:
    methods = []

    def handler(request: httpx.Request) -> httpx.Response:
        methods.append(request.method)
        return _refusal(status, code)

    with pytest.raises(OSError, match=f"It is {code}."):
        make_file_system(handler).put_file(str(source), f"toy/{RUN}/{FILE}")
    assert set(methods) == {"POST"} and len(methods) == 1


def test_each_try_at_an_object_store_has_a_signature_of_its_own_and_shows_it_no_token(
    make_file_system: Callable[[Handler], ServerFileSystem], source: Path, tmp_path: Path
) -> None:
    signatures, requests = itertools.count(), []

    def handler(request: httpx.Request) -> httpx.Response:
        if request.url.host == "tempopt.example.com":
            assert request.headers["authorization"] == "Bearer the-token"
            return httpx.Response(
                200,
                json={"url": f"https://bucket.example/a?signature={next(signatures)}", "piece": 9, "size": 3},
            )
        assert "authorization" not in request.headers
        requests.append((request.method, request.url.params["signature"]))
        if len(requests) % 2:
            return httpx.Response(503)
        return httpx.Response(200, content=CONTENT if request.method == "GET" else b"")

    fs = make_file_system(handler)
    fs.put_file(str(source), f"toy/{RUN}/{FILE}")
    fs.get_file(f"toy/{RUN}/{FILE}", str(tmp_path / "got"))
    assert requests == [("PUT", "0"), ("PUT", "1"), ("GET", "2"), ("GET", "3")]
    assert (tmp_path / "got").read_bytes() == CONTENT


def test_a_redirection_takes_the_token_nowhere(
    make_file_system: Callable[[Handler], ServerFileSystem], source: Path
) -> None:
    hosts = []

    def handler(request: httpx.Request) -> httpx.Response:
        hosts.append(request.url.host)
        return httpx.Response(307, headers={"location": "https://elsewhere.example/"})

    with pytest.raises(OSError, match="status 307"):
        make_file_system(handler).put_file(str(source), f"toy/{RUN}/{FILE}")
    assert hosts == ["tempopt.example.com"]


def test_patience_is_counted_from_the_first_failure(
    make_file_system: Callable[[Handler], ServerFileSystem], source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times, tries = [0.0], []

    def handler(request: httpx.Request) -> httpx.Response:
        # a large file is on its way for longer than anybody waits for a server
        times[0] += 100.0
        tries.append(times[0])
        raise httpx.ConnectError("refused")

    monkeypatch.setattr(filesystem, "time", _Clock(times))
    with pytest.raises(OSError, match=r"https://tempopt\.example\.com cannot be reached.*\(refused\)"):
        make_file_system(handler).put_file(str(source), f"toy/{RUN}/{FILE}")
    assert tries == [100.0, 200.0, 300.0]


class _Clock:
    def __init__(self, times: list[float]) -> None:
        self._now = times

    def monotonic(self) -> float:
        return self._now[0]

    def sleep(self, seconds: float) -> None:
        pass


# ---- a run


def test_a_run_keeps_and_goes_on_behind_a_server_as_in_a_folder(
    holder: HttpAgent, small_pieces: None, request_for: Any, listener: Any, tmp_path: Path
) -> None:
    local = request_for(checkpoints=str(tmp_path / "local"))
    remote_request = dataclasses.replace(
        local, checkpoints=f"tempopt://toy/{RUN}", folder=str(tmp_path / "near")
    )
    checkpoints: dict[str, list[CheckpointRef]] = {}
    for name, request in (("local", local), ("behind", remote_request)):
        channel = listener(die_at=10)
        with pytest.raises(SystemExit):
            LightningRun(request, channel).execute()
        assert channel.messages_of(CheckpointFailed) == []
        checkpoints[name] = channel.saved
    assert [checkpoint.url for checkpoint in checkpoints["behind"]] == [
        f"tempopt://toy/{RUN}/step-{step}-1.ckpt" for step in (8, 4)
    ]
    attempt = _taken_again(holder.server, holder, checkpoints["behind"])
    channels = {"local": listener(), "behind": listener(), "undisturbed": listener()}
    runs_by_name = {
        "local": LightningRun(
            dataclasses.replace(local, attempt=2, resume=checkpoints["local"]), channels["local"]
        ),
        "behind": LightningRun(
            dataclasses.replace(remote_request, attempt=attempt, resume=checkpoints["behind"]),
            channels["behind"],
        ),
        "undisturbed": LightningRun(request_for(), channels["undisturbed"]),
    }
    results = {name: run.execute() for name, run in runs_by_name.items()}
    for name in ("local", "behind"):
        assert (
            channels[name].messages_of(Started)[0].step == 8
            and channels[name].messages_of(CheckpointFailed) == []
        )
        assert results[name].reports == results["undisturbed"].reports
        assert results[name].measurements == results["undisturbed"].measurements
    assert [checkpoint.step for checkpoint in channels["behind"].saved] == [
        checkpoint.step for checkpoint in channels["local"].saved
    ]
    # nothing that was on its way is left
    assert list((tmp_path / "near").iterdir()) == []


def _taken_again(server: RunningServer, holder: HttpAgent, checkpoints: list[CheckpointRef]) -> int:
    """Have the run's checkpoints recorded and the run returned and taken again; return its attempt."""
    ticket = held_ticket(holder)
    for saved_checkpoint in reversed(checkpoints):
        checkpoint = Checkpoint(
            step=saved_checkpoint.step,
            url=saved_checkpoint.url,
            digest=saved_checkpoint.digest,
            size=saved_checkpoint.size,
        )
        holder.sync(CheckpointRecorded(ticket_id=ticket.id, attempt=ticket.attempt, checkpoint=checkpoint))
    holder.sync(AttemptReleased(ticket_id=ticket.id, attempt=ticket.attempt))
    ticket_row = holder.take()
    assert ticket_row is not None and ticket_row.id == ticket.id
    return ticket_row.attempt
