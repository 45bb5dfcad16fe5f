"""Checkpoints through a server: what an agent may put and get, attacks, and interruptions."""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from tempopt.errors import UsageError
from tempopt.server.app import create_app
from tempopt.storage.changes import AttemptReleased, RunEnded, RunOutcome
from tempopt.storage.checkpoints import open_filesystem
from tempopt.storage.http import filesystem
from tempopt.storage.http.filesystem import SERVER, ServerFileSystem
from tests.server.http_agent import FILE, RUN, URL, HttpAgent, held_ticket, put_piece, record_checkpoint
from tests.server.http_server import RunningServer, serve_app

pytest_plugins = ["tests.training.object_store"]


@pytest.mark.parametrize("size", [0, 1, 999, 1000, 1001, 54_321])
def test_a_file_comes_back_as_it_was_put(
    running_server: RunningServer, holder: HttpAgent, small_pieces: None, tmp_path: Path, size: int
) -> None:
    content = os.urandom(size)
    (tmp_path / "a").write_bytes(content)
    fs, path = open_filesystem(URL)
    fs.put_file(str(tmp_path / "a"), path)
    assert [path.name for path in (running_server.checkpoints / "toy" / RUN).iterdir()] == [FILE]
    record_checkpoint(holder, held_ticket(running_server), content)
    fs.get_file(path, str(tmp_path / "b"))
    assert (tmp_path / "b").read_bytes() == content and fs.size(path) == size


def test_a_part_of_a_file_can_be_fetched(
    running_server: RunningServer, holder: HttpAgent, tmp_path: Path
) -> None:
    (tmp_path / "a").write_bytes(bytes(range(256)))
    fs, path = open_filesystem(URL)
    fs.put_file(str(tmp_path / "a"), path)
    record_checkpoint(holder, held_ticket(running_server), bytes(256))
    answer = holder.http.get(f"/api/checkpoints/toy/{RUN}/{FILE}", headers={"range": "bytes=10-19"})
    assert (answer.status_code, answer.content) == (206, bytes(range(10, 20)))


def test_pieces_may_come_twice_and_a_file_is_there_whole_or_not_at_all(
    running_server: RunningServer, holder: HttpAgent
) -> None:
    target = running_server.checkpoints / "toy" / RUN / FILE
    assert put_piece(holder, 0, b"abc", 8).json() == {"bytes": 3, "is_complete": False}
    assert put_piece(holder, 0, b"abc", 8).json() == {"bytes": 3, "is_complete": False}
    assert not target.exists()
    assert put_piece(holder, 6, b"gh", 8).json()["error"]["code"] == "piece_missing"
    assert put_piece(holder, 3, b"def", 8).json() == {"bytes": 6, "is_complete": False}
    assert put_piece(holder, 6, b"gh", 8).json() == {"bytes": 8, "is_complete": True}
    # the answer to the last one was lost
    assert put_piece(holder, 6, b"gh", 8).json() == {"bytes": 8, "is_complete": True}
    assert target.read_bytes() == b"abcdefgh" and len(list(target.parent.iterdir())) == 1


def test_what_was_broken_off_does_not_fill_the_disk(running_server: RunningServer, holder: HttpAgent) -> None:
    for number in range(12):
        put_piece(holder, 0, b"abc", 8, upload=f"{number:016x}")
    assert len(list((running_server.checkpoints / "toy" / RUN).iterdir())) <= 4


def test_a_piece_that_is_too_large_or_longer_than_the_file_is_refused(
    running_server: RunningServer, holder: HttpAgent, small_pieces: None
) -> None:
    for answer in (
        put_piece(holder, 0, b"x" * 1001, 5000),
        put_piece(holder, 0, b"x" * 10, 9),
        put_piece(holder, 0, b"", 2**50),
    ):
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")
    assert not (running_server.checkpoints / "toy" / RUN / FILE).exists()


def test_a_worker_puts_its_file_through_a_server_that_is_started_again(
    running_server: RunningServer,
    holder: HttpAgent,
    small_pieces: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(filesystem.time, "sleep", lambda seconds: threading.Event().wait(0.001))
    content = os.urandom(10_000)
    (tmp_path / "a").write_bytes(content)
    fs, path = open_filesystem(URL)
    send, calls = fs._sent, []

    def fail_send(*args: Any) -> Any:
        calls.append(args)
        if len(calls) % 3 == 1:
            raise httpx.ConnectError("refused")
        response = send(*args)
        if len(calls) % 3 == 2:
            # it was written, and the answer was lost
            raise httpx.ReadError("reset")
        return response

    monkeypatch.setattr(fs, "_sent", fail_send)
    fs.put_file(str(tmp_path / "a"), path)
    assert (running_server.checkpoints / "toy" / RUN / FILE).read_bytes() == content and len(calls) > 20


def test_a_server_that_stays_away_is_told_as_a_checkpoint_that_could_not_be_written(
    running_server: RunningServer, holder: HttpAgent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SERVER, "http://127.0.0.1:9")
    monkeypatch.setattr(filesystem, "_PATIENCE_SECONDS", 0.0)
    (tmp_path / "a").write_bytes(b"x")
    with pytest.raises(OSError, match="cannot be reached"):
        ServerFileSystem().put_file(str(tmp_path / "a"), f"toy/{RUN}/{FILE}")


def _codes(holder: HttpAgent, run: str, file: str, study: str = "toy") -> set[str]:
    """Return the codes with which all ways to a file are refused."""
    responses = []
    for purpose in ("put", "get"):
        body = {"study": study, "run": run, "file": file, "size": 3, "purpose": purpose}
        responses.append(holder.http.post("/api/checkpoints/where", json=body))
    path = f"/api/checkpoints/{study}/{run}/{file}"
    query_params = {"upload": "0" * 16, "offset": 0, "total": 3}
    responses += [holder.http.put(path, params=query_params, content=b"abc"), holder.http.get(path)]
    assert all(400 <= response.status_code < 500 for response in responses), [
        response.text for response in responses
    ]
    return {response.json()["error"]["code"] for response in responses}


@pytest.mark.parametrize(
    ("run", "file"),
    [
        (RUN, "..%2f..%2f..%2fetc%2fpasswd"),
        (RUN, "..\\..\\x.ckpt"),
        (RUN, "/etc/passwd"),
        (RUN, "step-8-1.ckpt%00.txt"),
        (RUN, "step-8-1.ckpt.writing"),
        (RUN, "resume-1.ckpt"),
        (RUN, "log.txt"),
        (RUN, "step-" + "9" * 300 + "-1.ckpt"),
        ("..", FILE),
        ("%2e%2e", FILE),
        ("baseline-0000%2f..%2f..", FILE),
        ("nothing-0000", FILE),
        ("baseline-" + "9" * 300, FILE),
        ("baseline-9999999999", FILE),
    ],
)
def test_names_that_are_none_of_a_checkpoint_reach_no_file(
    running_server: RunningServer, holder: HttpAgent, run: str, file: str
) -> None:
    _codes(holder, run, file)
    assert not running_server.checkpoints.exists() or not any(running_server.checkpoints.rglob("*.*"))


def test_only_who_holds_a_run_puts_its_checkpoints_and_only_of_this_attempt(
    running_server: RunningServer, holder: HttpAgent
) -> None:
    assert _codes(holder, "baseline-0001", FILE) == {"checkpoint_not_found", "stale_attempt"}
    assert "stale_attempt" in _codes(holder, RUN, "step-8-2.ckpt")
    thief = HttpAgent(running_server, "thief:1:m:1.1", running_server.new_token("admin"))
    thief.http.headers["authorization"] = f"Bearer {running_server.token}"
    assert "checkpoint_refused" in _codes(thief, RUN, FILE)
    thief.http.close()
    ticket = held_ticket(running_server)
    holder.sync(AttemptReleased(ticket_id=ticket.id, attempt=1))
    assert "checkpoint_refused" in _codes(holder, RUN, FILE)


def test_a_file_that_the_study_does_not_record_is_not_given_out(
    running_server: RunningServer, holder: HttpAgent
) -> None:
    put_piece(holder, 0, b"abc", 3)
    (running_server.checkpoints / "toy" / RUN / "step-9-1.ckpt").write_bytes(b"secret")
    answer = holder.http.get(f"/api/checkpoints/toy/{RUN}/step-9-1.ckpt")
    assert answer.status_code == 404 and b"secret" not in answer.content


def test_links_that_lie_in_the_folder_are_not_followed(
    running_server: RunningServer, holder: HttpAgent, tmp_path: Path
) -> None:
    outside_folder = tmp_path / "outside"
    outside_folder.mkdir()
    (outside_folder / FILE).write_bytes(b"secret")
    folder = running_server.checkpoints / "toy"
    folder.mkdir(parents=True)
    (folder / RUN).symlink_to(outside_folder)
    assert put_piece(holder, 0, b"abc", 3).json()["error"]["code"] == "checkpoint_refused"
    record_checkpoint(holder, held_ticket(running_server), b"secret")
    answer = holder.http.get(f"/api/checkpoints/toy/{RUN}/{FILE}")
    assert answer.status_code == 403 and b"secret" not in answer.content
    (folder / RUN).unlink()
    (folder / RUN).mkdir()
    (folder / RUN / FILE).symlink_to(outside_folder / FILE)
    assert holder.http.get(f"/api/checkpoints/toy/{RUN}/{FILE}").status_code == 403
    assert put_piece(holder, 0, b"abc", 3).json()["error"]["code"] == "checkpoint_refused"
    assert (outside_folder / FILE).read_bytes() == b"secret"


def test_a_study_of_others_is_not_there(running_server: RunningServer, holder: HttpAgent) -> None:
    holder.http.headers["authorization"] = f"Bearer {running_server.new_token('agent', studies='mine-')}"
    assert _codes(holder, RUN, FILE) == {"study_not_found"}


def test_a_url_says_neither_the_server_nor_works_without_one(
    holder: HttpAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SERVER)
    with pytest.raises(UsageError, match="no place for checkpoints"):
        open_filesystem(URL)
    with pytest.raises(UsageError, match=SERVER):
        ServerFileSystem()


def test_an_agent_can_neither_delete_nor_list_stored_checkpoints(holder: HttpAgent) -> None:
    fs, path = open_filesystem(URL)
    with pytest.raises(PermissionError):
        fs.rm_file(path)
    with pytest.raises(PermissionError):
        fs.ls(path)
    with pytest.raises(FileNotFoundError):
        fs.get_file(path, "/dev/null")


def test_bytes_go_straight_to_a_bucket_by_a_request_that_the_server_has_signed(
    running_server: RunningServer,
    holder: HttpAgent,
    bucket: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = create_app(running_server.store, checkpoints=f"{bucket}/kept")
    content = os.urandom(3_000_000)
    (tmp_path / "a").write_bytes(content)
    piece_sizes: list[int] = []

    class SizeCounter:
        def __init__(self, inner: Any) -> None:
            self.inner = inner

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            async def count_bytes(message: Any) -> None:
                piece_sizes.append(len(message.get("body", b"")))
                await send(message)

            await self.inner(scope, receive, count_bytes)

    app.add_middleware(SizeCounter)
    with serve_app(app) as url:
        monkeypatch.setenv(SERVER, url)
        fs, path = open_filesystem(URL)
        fs.put_file(str(tmp_path / "a"), path)
        holder.http.base_url = httpx.URL(url)
        ticket = held_ticket(running_server)
        record_checkpoint(holder, ticket, content)
        assert held_ticket(running_server).checkpoints[0].url == f"{bucket}/kept/toy/{RUN}/{FILE}"
        fs.get_file(path, str(tmp_path / "b"))
        response = holder.http.post(
            "/api/checkpoints/where",
            json={"study": "toy", "run": RUN, "file": FILE, "size": 6 * 1024**3, "purpose": "put"},
        )
        assert response.json()["url"] == "", "no request puts as much at once"
        outcomes = RunOutcome(outcome="complete", value=1.0, steps=24, seconds=1.0)
        holder.sync(RunEnded(ticket_id=ticket.id, attempt=1, outcomes=outcomes))
        with pytest.raises(FileNotFoundError):
            fs.get_file(path, str(tmp_path / "c"))
    assert hashlib.sha256((tmp_path / "b").read_bytes()).digest() == hashlib.sha256(content).digest()
    assert sum(piece_sizes) < 50_000, "the bytes went through the server"
    bucket_fs, _ = open_filesystem(bucket)
    bucket_fs.invalidate_cache()
    assert bucket_fs.find(f"{bucket}/kept") == [], "the server deletes what no run needs any more"
