"""Checkpoints through a server: in pieces and by signed requests, what is kept of them, who may do what."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tempopt.errors import UsageError
from tempopt.server import checkpoints as routes
from tempopt.server import files, uploads
from tempopt.server.app import create_app
from tempopt.server.errors import ApiError
from tempopt.service.lifecycle import collect_garbage, delete
from tempopt.storage.changes import AttemptReleased, RunEnded, RunOutcome
from tempopt.storage.checkpoints import open_filesystem
from tempopt.storage.http import filesystem
from tempopt.storage.http.filesystem import SERVER, ServerFileSystem
from tests.server.http_agent import FILE, RUN, URL, HttpAgent, held_ticket, put_piece, record_checkpoint
from tests.server.http_server import RunningServer, serve_app
from tests.training.faulty_store import StoreLine

pytestmark = pytest.mark.usefixtures("holder")
WHERE = "/api/checkpoints/where"


pytest_plugins = ["tests.training.object_store"]


@pytest.fixture
def in_bucket(holder: HttpAgent, bucket: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of the run's folder in a bucket, below which a second server keeps checkpoints."""
    monkeypatch.setattr(filesystem, "_ASSEMBLY_POLL_SECONDS", 0.0)
    with serve_app(create_app(holder.server.store, checkpoints=f"{bucket}/kept")) as url:
        monkeypatch.setenv(SERVER, url)
        holder.http.base_url = httpx.URL(url)
        yield f"{bucket}/kept/toy/{RUN}"


@pytest.fixture
def disable_signing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for object stores that sign no requests, or not with these keys."""
    monkeypatch.setattr(routes, "_SIGNING_PROTOCOLS", ())


def _files_in(folder: str) -> dict[str, bytes]:
    """Return what lies in a folder, by name."""
    fs, path = open_filesystem(folder)
    fs.invalidate_cache()
    return {name.rpartition("/")[2]: fs.cat_file(name) for name in fs.find(path)}


@pytest.fixture(params=["folder", "bucket"])
def run_folder(request: pytest.FixtureRequest, running_server: RunningServer, disable_signing: None) -> str:
    """Where the checkpoints of the run lie, which come in pieces through the server."""
    if request.param == "bucket":
        return str(request.getfixturevalue("in_bucket"))
    return str(running_server.checkpoints / "toy" / RUN)


@pytest.mark.parametrize("size", [0, 1, 1000, 1001, 23_456])
def test_a_file_comes_back_as_it_was_put(
    holder: HttpAgent, run_folder: str, small_pieces: None, tmp_path: Path, size: int
) -> None:
    content = os.urandom(size)
    (tmp_path / "a").write_bytes(content)
    fs, path = open_filesystem(URL)
    fs.put_file(str(tmp_path / "a"), path)
    assert _files_in(run_folder) == {FILE: content}
    record_checkpoint(holder, held_ticket(holder), content)
    fs.get_file(path, str(tmp_path / "b"))
    assert (tmp_path / "b").read_bytes() == content and fs.size(path) == size
    if size > 10:
        for byte_range, expected_bytes in (("bytes=3-9", content[3:10]), ("bytes=900-", content[900:])):
            answer = holder.http.get(f"/api/checkpoints/toy/{RUN}/{FILE}", headers={"range": byte_range})
            assert (answer.status_code, answer.content) == (206, expected_bytes)


def test_pieces_may_come_twice_and_a_file_is_there_whole_or_not_at_all(
    holder: HttpAgent, run_folder: str
) -> None:
    uploads_url = f"/api/checkpoints/toy/{RUN}/{FILE}/uploads/{'0' * 16}"
    assert holder.http.get(uploads_url).json() == {"bytes": 0, "is_complete": False}
    for _ in range(2):
        assert put_piece(holder, 0, b"abc", 8).json() == {"bytes": 3, "is_complete": False}
    assert put_piece(holder, 6, b"gh", 8).json()["error"]["code"] == "piece_missing"
    assert holder.http.get(uploads_url).json() == {"bytes": 3, "is_complete": False}
    assert FILE not in _files_in(run_folder)
    assert put_piece(holder, 3, b"def", 8).json() == {"bytes": 6, "is_complete": False}
    # the answer to the last one was lost
    for _ in range(2):
        assert put_piece(holder, 6, b"gh", 8).json() == {"bytes": 8, "is_complete": True}
    assert holder.http.get(uploads_url).json() == {"bytes": 8, "is_complete": True}
    assert put_piece(holder, 8, b"", 8).json() == {"bytes": 8, "is_complete": True}
    assert _files_in(run_folder)[FILE] == b"abcdefgh"


def _step(holder: HttpAgent, step: int, content: bytes = b"abc", **options: Any) -> httpx.Response:
    query_params = {"upload": "0" * 16, "offset": 0, "total": len(content), **options}
    return holder.http.put(
        f"/api/checkpoints/toy/{RUN}/step-{step}-1.ckpt", params=query_params, content=content
    )


def test_a_large_file_is_asked_for_again_until_it_is_in_its_place(
    holder: HttpAgent,
    in_bucket: str,
    disable_signing: None,
    small_pieces: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(uploads, "_JOIN_SECONDS", 0.0)
    go_on, has_joined, join, begun_uploads = threading.Event(), threading.Event(), uploads._join, []

    def slow(*args: Any) -> None:
        begun_uploads.append(args)
        go_on.wait(30)
        join(*args)
        has_joined.set()

    monkeypatch.setattr(uploads, "_join", slow)
    content = os.urandom(4321)
    (tmp_path / "a").write_bytes(content)
    fs, path = open_filesystem(URL)
    send = filesystem._request_json
    answers: list[Any] = []

    def record_answer(server: Any, method: str, path: str, **kwargs: Any) -> Any:
        if method != "PUT":
            return send(server, method, path, **kwargs)
        answers.append(send(server, method, path, **kwargs))
        if len(answers) > 6:
            # the last piece, and twice more
            go_on.set()
        return answers[-1]

    monkeypatch.setattr(filesystem, "_request_json", record_answer)
    fs.put_file(str(tmp_path / "a"), path)
    assert has_joined.wait(30)
    assert _files_in(in_bucket) == {FILE: content} and len(begun_uploads) == 1


def test_an_object_that_cannot_be_put_together_is_not_there_and_is_tried_again(
    holder: HttpAgent, in_bucket: str, disable_signing: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs, _ = open_filesystem(in_bucket)
    cat, failures = type(fs)._cat_file, [True]

    async def fail_once(self: Any, path: str, *args: Any, **options: Any) -> Any:
        if failures and path.endswith(".3.writing"):
            failures.clear()
            raise OSError("reset")
        return await cat(self, path, *args, **options)

    monkeypatch.setattr(type(fs), "_cat_file", fail_once)
    type(fs).clear_instance_cache()
    put_piece(holder, 0, b"abc", 6)
    response = put_piece(holder, 3, b"def", 6)
    assert (response.status_code, response.json()["error"]["code"]) == (503, "checkpoints_away")
    assert FILE not in _files_in(in_bucket)
    assert put_piece(holder, 3, b"def", 6).json() == {"bytes": 6, "is_complete": True}
    assert _files_in(in_bucket) == {FILE: b"abcdef"}


def test_a_signed_request_takes_a_file_of_the_size_that_was_said_alone(
    holder: HttpAgent, in_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"study": "toy", "run": RUN, "file": FILE, "size": 1000, "purpose": "put"}
    url = httpx.URL(holder.http.post(WHERE, json=body).json()["url"])
    url_params = dict(url.params)
    assert (url_params["X-Amz-SignedHeaders"], url_params["X-Amz-Expires"]) == ("content-length;host", "900")
    monkeypatch.setattr(files, "LARGEST", 999)
    assert holder.http.post(WHERE, json=body).json()["error"]["code"] == "too_large"


def test_a_worker_without_any_key_of_the_bucket_puts_and_gets_and_loads_no_client_of_it(
    holder: HttpAgent, in_bucket: str, tmp_path: Path
) -> None:
    content = os.urandom(100_000)
    (tmp_path / "a").write_bytes(content)

    def worker(statements: str) -> None:
        code = (
            "import os, sys; from tempopt.storage.checkpoints import open_filesystem;"
            "assert not [name for name in os.environ if name.startswith('AWS')];"
            f"fs, path = open_filesystem({URL!r}); {statements};"
            "assert not {'s3fs', 'botocore', 'sqlalchemy'} & set(sys.modules)"
        )
        names = ("TEMPOPT_SERVER", "TEMPOPT_TOKEN")
        env = {"HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
        env |= {name: os.environ[name] for name in names}
        result = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
        assert (result.returncode, result.stderr) == (0, "")

    worker(f"fs.put_file({str(tmp_path / 'a')!r}, path)")
    assert _files_in(in_bucket) == {FILE: content}
    record_checkpoint(holder, held_ticket(holder), content)
    worker(f"fs.get_file(path, {str(tmp_path / 'b')!r})")
    assert (tmp_path / "b").read_bytes() == content


# ---- what is kept


def _in_folder(server: RunningServer, name: str) -> bool:
    return (server.checkpoints / "toy" / RUN / name).exists()


def test_unrecorded_files_are_limited_to_four(holder: HttpAgent) -> None:
    _step(holder, 2)
    record_checkpoint(holder, held_ticket(holder), b"abc", step=2)
    (holder.server.checkpoints / "toy" / RUN / "log.txt").write_text("kept")
    for step in range(10, 20):
        assert _step(holder, step).json()["is_complete"]
    names = {path.name for path in (holder.server.checkpoints / "toy" / RUN).iterdir()}
    recorded_files, newest = {"step-2-1.ckpt", "log.txt"}, {f"step-{step}-1.ckpt" for step in range(15, 20)}
    assert names == recorded_files | newest
    # the one that is put just now is not counted, whatever its number
    _step(holder, 1)
    assert _in_folder(holder.server, "step-1-1.ckpt") and _in_folder(holder.server, "step-2-1.ckpt")


def test_unrecorded_objects_are_limited_to_four(holder: HttpAgent, in_bucket: str) -> None:
    for step in range(10, 20):
        body = {"study": "toy", "run": RUN, "file": f"step-{step}-1.ckpt", "size": 3, "purpose": "put"}
        httpx.put(holder.http.post(WHERE, json=body).json()["url"], content=b"abc").raise_for_status()
    assert sorted(_files_in(in_bucket)) == [f"step-{step}-1.ckpt" for step in range(15, 20)]


def test_an_object_store_that_does_not_answer_holds_no_request(
    holder: HttpAgent, store_line: StoreLine, in_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "_STORE_SECONDS", 1.0)
    store_line.fault = "silent"
    body = {"study": "toy", "run": RUN, "file": FILE, "size": 3, "purpose": "put"}
    assert holder.http.post(WHERE, json=body).json()["url"].startswith(store_line.url)
    with pytest.raises(ApiError, match="cannot be reached now"):
        uploads.size_in_store(f"{in_bucket}/{FILE}")


@pytest.mark.parametrize("clear_study", [delete, collect_garbage], ids=["delete", "gc"])
def test_what_was_broken_off_goes_with_the_study(
    holder: HttpAgent, run_folder: str, clear_study: Callable[..., Any]
) -> None:
    store = holder.server.store
    put_piece(holder, 0, b"abc", 8)
    store.set_checkpoints(store.load_study("toy").id, run_folder.removesuffix(f"/toy/{RUN}"))
    assert len(_files_in(run_folder)) == 1
    if clear_study is collect_garbage:
        outcomes = RunOutcome(outcome="complete", value=1.0, steps=24, seconds=1.0)
        holder.sync(RunEnded(ticket_id=held_ticket(holder).id, attempt=1, outcomes=outcomes))
    else:
        body = {"study": "toy", "agent": holder.name, "session": holder.session, "study_id": holder.study_id}
        holder.http.post("/api/agents/leave", json=body).raise_for_status()
    clear_study(holder.server.storage, "toy")
    assert _files_in(run_folder) == {}


def test_one_run_has_one_name(holder: HttpAgent) -> None:
    for run in ("baseline-00000", "baseline-000000000"):
        query_params: dict[str, Any] = {"upload": "0" * 16, "offset": 0, "total": 3}
        answer = holder.http.put(f"/api/checkpoints/toy/{run}/{FILE}", params=query_params, content=b"abc")
        assert answer.json()["error"]["code"] == "checkpoint_not_found"
    assert not holder.server.checkpoints.exists()


def test_a_study_is_not_known_by_another_spelling(holder: HttpAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    # as on databases that compare names without regard to case
    row = holder.server.store.load_study("toy")
    monkeypatch.setattr(type(holder.server.store), "load_study", lambda self, name: dataclasses.replace(row))
    body = {"study": "TOY", "run": RUN, "file": FILE, "size": 3, "purpose": "put"}
    assert holder.http.post(WHERE, json=body).json()["error"]["code"] == "study_not_found"


def test_a_disk_that_is_full_is_said_at_once(
    holder: HttpAgent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    answer = put_piece(holder, 0, b"abc", 3)
    assert (answer.status_code, answer.json()["error"]["code"]) == (507, "not_written")
    (tmp_path / "a").write_bytes(b"abc")
    fs, path = open_filesystem(URL)
    with pytest.raises(OSError, match="No space left on device"):
        fs.put_file(str(tmp_path / "a"), path)


# ---- what may be put and got, and attacks


def test_what_was_broken_off_does_not_fill_the_disk(holder: HttpAgent) -> None:
    for number in range(12):
        put_piece(holder, 0, b"abc", 8, upload=f"{number:016x}")
    assert len(list((holder.server.checkpoints / "toy" / RUN).iterdir())) <= 4


def test_unfinished_uploads_expire(
    holder: HttpAgent, run_folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_piece(holder, 0, b"abc", 8)
    put_piece(holder, 0, b"abc", 3, upload="1" * 16, file="step-9-1.ckpt")
    uploads.delete_expired(run_folder.removesuffix(f"/{RUN}"))
    assert len(_files_in(run_folder)) == 2
    # as if time had passed
    monkeypatch.setattr(uploads, "EXPIRY_SECONDS", -60.0)
    put_piece(holder, 3, b"d", 8)
    uploads.delete_expired(run_folder.removesuffix(f"/{RUN}"))
    assert _files_in(run_folder) == {"step-9-1.ckpt": b"abc"}


def test_unfinished_uploads_of_a_token_are_limited(
    holder: HttpAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "LARGEST_UNFINISHED", 20)
    names = [f"{number:016x}" for number in range(3)]
    replies = [put_piece(holder, 0, b"abc", 8, upload=name) for name in (*names, names[0])]
    assert [reply.status_code for reply in replies] == [200, 200, 413, 200]
    assert replies[2].json()["error"]["code"] == "too_large"
    assert put_piece(holder, 3, b"defgh", 8, upload=names[0]).json()["is_complete"]
    assert put_piece(holder, 0, b"abc", 8, upload=names[2]).status_code == 200


def test_a_piece_that_is_too_large_or_longer_than_the_file_is_refused(
    holder: HttpAgent, small_pieces: None
) -> None:
    for answer in (
        put_piece(holder, 0, b"x" * 1001, 5000),
        put_piece(holder, 0, b"x" * 10, 9),
        put_piece(holder, 0, b"", 2**50),
    ):
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")
    assert not (holder.server.checkpoints / "toy" / RUN / FILE).exists()


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
def test_names_that_are_none_of_a_checkpoint_reach_no_file(holder: HttpAgent, run: str, file: str) -> None:
    _codes(holder, run, file)
    assert not holder.server.checkpoints.exists() or not any(holder.server.checkpoints.rglob("*.*"))


def test_only_who_holds_a_run_puts_its_checkpoints_and_only_of_this_attempt(holder: HttpAgent) -> None:
    assert _codes(holder, "baseline-0001", FILE) == {"checkpoint_not_found", "stale_attempt"}
    assert "stale_attempt" in _codes(holder, RUN, "step-8-2.ckpt")
    thief = HttpAgent(holder.server, "thief:1:m:1.1", holder.server.new_token("admin"))
    thief.http.headers["authorization"] = f"Bearer {holder.server.token}"
    assert "checkpoint_refused" in _codes(thief, RUN, FILE)
    thief.http.close()
    ticket = held_ticket(holder)
    holder.sync(AttemptReleased(ticket_id=ticket.id, attempt=1))
    assert "checkpoint_refused" in _codes(holder, RUN, FILE)


def test_a_file_that_the_study_does_not_record_is_not_given_out(holder: HttpAgent) -> None:
    put_piece(holder, 0, b"abc", 3)
    (holder.server.checkpoints / "toy" / RUN / "step-9-1.ckpt").write_bytes(b"secret")
    answer = holder.http.get(f"/api/checkpoints/toy/{RUN}/step-9-1.ckpt")
    assert answer.status_code == 404 and b"secret" not in answer.content


def test_links_that_lie_in_the_folder_are_not_followed(holder: HttpAgent, tmp_path: Path) -> None:
    outside_folder = tmp_path / "outside"
    outside_folder.mkdir()
    (outside_folder / FILE).write_bytes(b"secret")
    folder = holder.server.checkpoints / "toy"
    folder.mkdir(parents=True)
    (folder / RUN).symlink_to(outside_folder)
    assert put_piece(holder, 0, b"abc", 3).json()["error"]["code"] == "checkpoint_refused"
    record_checkpoint(holder, held_ticket(holder), b"secret")
    answer = holder.http.get(f"/api/checkpoints/toy/{RUN}/{FILE}")
    assert answer.status_code == 403 and b"secret" not in answer.content
    (folder / RUN).unlink()
    (folder / RUN).mkdir()
    (folder / RUN / FILE).symlink_to(outside_folder / FILE)
    assert holder.http.get(f"/api/checkpoints/toy/{RUN}/{FILE}").status_code == 403
    assert put_piece(holder, 0, b"abc", 3).json()["error"]["code"] == "checkpoint_refused"
    assert (outside_folder / FILE).read_bytes() == b"secret"


def test_a_url_says_neither_the_server_nor_works_without_one(
    holder: HttpAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SERVER)
    with pytest.raises(UsageError, match="not supported for checkpoints"):
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
    holder: HttpAgent, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = create_app(holder.server.store, checkpoints=f"{bucket}/kept")
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
        ticket = held_ticket(holder)
        record_checkpoint(holder, ticket, content)
        assert held_ticket(holder).checkpoints[0].url == f"{bucket}/kept/toy/{RUN}/{FILE}"
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
