"""Checkpoints are written whole or not at all, and one that is damaged is found out."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tempopt.training.checkpoints import RunCheckpoints
from tempopt.training.identity import run_identity
from tempopt.training.messages import (
    CheckpointFailed,
    CheckpointRef,
    CheckpointSaved,
    Evaluation,
    RunRequest,
    Started,
)
from tempopt.training.run import LightningRun
from tests.training.faulty_store import StoreLine

pytest_plugins = ["tests.training.object_store"]


@pytest.fixture
def killed_run(request_for: Any, listener: Any, tmp_path: Path) -> tuple[RunRequest, list[CheckpointRef]]:
    """A request whose first attempt was killed at step 10, and its checkpoints of steps 8 and 4."""
    request = request_for(checkpoints=str(tmp_path / "ticket"))
    channel = listener(die_at=10)
    with pytest.raises(SystemExit):
        LightningRun(request, channel).execute()
    assert [saved.step for saved in channel.saved] == [8, 4]
    return dataclasses.replace(request, attempt=2), channel.saved


def newest(request: RunRequest, saved: list[CheckpointRef]) -> tuple[Path | None, list[str]]:
    return RunCheckpoints(request, run=run_identity(request)).newest(saved)


def of(path: Path, step: int = 8) -> CheckpointRef:
    """What would be recorded of a file as it is now."""
    content = path.read_bytes()
    digest = hashlib.blake2b(content, digest_size=32).hexdigest()
    return CheckpointRef(step=step, url=str(path), digest=digest, size=len(content))


def test_what_is_said_of_a_checkpoint_is_true_of_its_file(killed_run: Any) -> None:
    request, saved = killed_run
    assert [Path(checkpoint.url).name for checkpoint in saved] == ["step-8-1.ckpt", "step-4-1.ckpt"]
    assert [of(Path(checkpoint.url), checkpoint.step) for checkpoint in saved] == saved
    assert sorted(path.name for path in Path(request.checkpoints).iterdir()) == [
        "step-4-1.ckpt",
        "step-8-1.ckpt",
    ]


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda path: path.unlink(), "is not there"),
        (lambda path: path.write_bytes(b""), "is damaged (0 bytes instead of"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "is damaged ("),
        (lambda path: path.write_bytes(bytes(path.stat().st_size)), "is damaged (its bytes are not those"),
    ],
    ids=["gone", "empty", "truncated", "overwritten"],
)
def test_a_checkpoint_that_cannot_be_used_is_named_and_the_one_before_it_is_used(
    killed_run: Any, listener: Any, request_for: Any, damage: Callable[[Path], object], reason: str
) -> None:
    request, saved = killed_run
    expected = LightningRun(request_for(), listener()).execute()
    damage(Path(saved[0].url))
    channel = listener()
    finished = LightningRun(dataclasses.replace(request, resume=saved), channel).execute()
    (started,) = channel.messages_of(Started)
    assert started.step == 4
    (note,) = started.notes
    assert note.startswith(f"The checkpoint step-8-1.ckpt of step 8 {reason}")
    assert note.endswith(": the one of step 4 is used.")
    assert (finished.reports, finished.measurements) == (expected.reports, expected.measurements)


def test_without_a_checkpoint_that_can_be_used_the_run_begins_again(
    killed_run: Any, listener: Any, request_for: Any
) -> None:
    request, saved = killed_run
    Path(saved[0].url).write_bytes(b"no checkpoint")
    Path(saved[1].url).unlink()
    channel = listener()
    finished = LightningRun(dataclasses.replace(request, resume=saved), channel).execute()
    (started,) = channel.messages_of(Started)
    assert started.step == 0
    assert [note.endswith(": the run begins again.") for note in started.notes] == [False, True]
    assert finished.reports == LightningRun(request_for(), listener()).execute().reports


def test_truncation_at_every_thousandth_byte_is_found_out_with_the_digest_and_without(
    killed_run: Any, tmp_path: Path
) -> None:
    request, (saved, before) = killed_run
    content = Path(saved.url).read_bytes()
    path = tmp_path / "damaged.ckpt"
    for size in range(0, len(content), 1000):
        path.write_bytes(content[:size])
        recorded = {
            "is damaged (": dataclasses.replace(saved, url=str(path)),
            "cannot be loaded as data (": of(path),
        }
        for reason, damaged in recorded.items():
            newest_path, (note,) = newest(request, [damaged, before])
            assert newest_path == Path(before.url)
            assert f"of step 8 {reason}" in note
            assert len(note) < 500


def test_a_single_byte_that_is_another_is_found_out(killed_run: Any, tmp_path: Path) -> None:
    request, (saved, before) = killed_run
    content = bytearray(Path(saved.url).read_bytes())
    path = tmp_path / "damaged.ckpt"
    for position in range(0, len(content), 997):
        content[position] ^= 0x20
        path.write_bytes(content)
        content[position] ^= 0x20
        newest_path, notes = newest(request, [dataclasses.replace(saved, url=str(path)), before])
        assert newest_path == Path(before.url)
        assert "its bytes are not those that were written" in notes[0]
        # a wrong file with a digest of its own may be loaded or not, but never ends the process
        newest(request, [of(path), before])


def test_a_checkpoint_that_is_code_is_not_run(killed_run: Any, tmp_path: Path) -> None:
    class CheckpointTrap:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "sprung",)

    request, (_, before) = killed_run
    path = tmp_path / "trap.ckpt"
    torch.save({"tempopt_run": run_identity(request), "state_dict": CheckpointTrap()}, path)
    newest_path, (note,) = newest(request, [of(path), before])
    assert newest_path == Path(before.url)
    assert "cannot be loaded as data" in note
    assert not (tmp_path / "sprung").exists()


def test_a_checkpoint_of_another_run_is_not_taken_up(killed_run: Any) -> None:
    request, saved = killed_run
    newest_path, notes = newest(dataclasses.replace(request, seed=77), saved)
    assert newest_path is None
    assert all("is of another run" in note for note in notes)


def test_what_may_change_between_attempts_does_not_make_it_another_run(
    killed_run: Any, tmp_path: Path
) -> None:
    request, saved = killed_run
    changed_request = dataclasses.replace(
        request,
        attempt=7,
        evaluations=[Evaluation(name="more", on="test")],
        folder=str(tmp_path / "logs"),
        checkpoints=str(tmp_path / "elsewhere"),
        checkpoint_every=1.0,
        resume=saved,
    )
    assert newest(changed_request, saved) == (Path(saved[0].url), [])


@pytest.mark.parametrize("broken", ["save", "replace"])
def test_a_disk_that_is_full_does_not_end_the_run_and_is_said_at_once(
    request_for: Any,
    listener: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    broken: str,
) -> None:
    def full(*names: Any, **options: Any) -> None:
        raise OSError(28, "No space left on device")

    if broken == "save":
        monkeypatch.setattr("lightning.pytorch.strategies.Strategy.save_checkpoint", full)
    else:
        monkeypatch.setattr(Path, "replace", full)
    channel = listener()
    finished = LightningRun(request_for(checkpoints=str(tmp_path / "ticket")), channel).execute()
    assert finished.state == "complete"
    assert finished.reports == LightningRun(request_for(), listener()).execute().reports
    assert channel.messages_of(CheckpointSaved) == []
    assert [message.why for message in channel.messages_of(CheckpointFailed)] == [
        "No space left on device"
    ] * 5
    assert capsys.readouterr().out.count("No space left on device") == 5
    # nothing half-written is left behind
    assert list((tmp_path / "ticket").iterdir()) == []


def test_a_folder_that_is_closed_does_not_end_the_run(
    request_for: Any, listener: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, is_dir, mkdir = tmp_path / "ticket", Path.is_dir, Path.mkdir

    def refuse_folder(path: Path, real: Callable[..., Any], *how: Any, **named: Any) -> Any:
        if path == folder:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *how, **named)

    # root is refused nothing, whatever the mode of a folder
    monkeypatch.setattr(Path, "is_dir", lambda path, *how: refuse_folder(path, is_dir, *how))
    monkeypatch.setattr(Path, "mkdir", lambda path, *how, **named: refuse_folder(path, mkdir, *how, **named))
    channel = listener()
    finished = LightningRun(request_for(checkpoints=str(folder)), channel).execute()
    assert finished.state == "complete"
    assert {message.why for message in channel.messages_of(CheckpointFailed)} == {"Permission denied"}


def test_a_stop_ends_a_run_whose_checkpoint_cannot_be_written(
    request_for: Any, listener: Any, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    request = request_for(checkpoints=str(tmp_path / "file" / "ticket"))
    channel = listener(stop_at=6, keep=True)
    finished = LightningRun(request, channel).execute()
    assert (finished.state, finished.step) == ("stopped", 7)
    assert {message.why for message in channel.messages_of(CheckpointFailed)} == {"Not a directory"}


def test_what_a_killed_attempt_left_half_written_is_removed_and_nothing_else(
    request_for: Any, listener: Any, tmp_path: Path
) -> None:
    (tmp_path / "step-4-1.ckpt.writing").write_bytes(b"half")
    (tmp_path / "step-4-1.ckpt").write_bytes(b"another's")
    LightningRun(request_for(attempt=2, checkpoints=str(tmp_path)), listener(stop_at=5, keep=True)).execute()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "step-4-1.ckpt",
        "step-4-2.ckpt",
        "step-6-2.ckpt",
    ]
    assert (tmp_path / "step-4-1.ckpt").read_bytes() == b"another's"


def test_a_run_goes_on_from_a_checkpoint_in_a_bucket(
    request_for: Any, listener: Any, bucket: str, tmp_path: Path
) -> None:
    expected = LightningRun(request_for(), listener()).execute()
    request = request_for(checkpoints=f"{bucket}/study/search-0001", folder=str(tmp_path))
    channel, resumed_channel = listener(die_at=10), listener()
    with pytest.raises(SystemExit):
        LightningRun(request, channel).execute()
    assert [saved.url for saved in channel.saved] == [
        f"{bucket}/study/search-0001/step-{step}-1.ckpt" for step in (8, 4)
    ]
    gone = dataclasses.replace(channel.saved[0], step=9, url=f"{bucket}/study/search-0001/step-9-1.ckpt")
    damaged = dataclasses.replace(channel.saved[0], digest="00")
    resumed_request = dataclasses.replace(request, attempt=2, resume=[gone, damaged, *channel.saved])
    finished = LightningRun(resumed_request, resumed_channel).execute()
    assert (finished.reports, finished.measurements) == (expected.reports, expected.measurements)
    (started,) = resumed_channel.messages_of(Started)
    assert started.step == 8
    assert ["is not there" in started.notes[0], "is damaged" in started.notes[1]] == [True, True]
    # what was on its way is gone
    assert list(tmp_path.iterdir()) == []


def test_a_bucket_that_is_gone_does_not_end_the_run(
    request_for: Any, listener: Any, bucket: str, tmp_path: Path
) -> None:
    channel = listener()
    request = request_for(checkpoints=f"{bucket}-gone/search-0001", folder=str(tmp_path))
    finished = LightningRun(request, channel).execute()
    assert finished.state == "complete"
    assert "bucket does not exist" in channel.messages_of(CheckpointFailed)[0].why
    assert channel.messages_of(CheckpointSaved) == []
    assert list(tmp_path.iterdir()) == []


def test_a_bucket_that_refuses_for_a_while_does_not_end_the_run(
    request_for: Any, listener: Any, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3fs = pytest.importorskip("s3fs")
    put, uploads = s3fs.S3FileSystem._put_file, []

    async def refuse(fs: Any, *names: Any, **options: Any) -> Any:
        uploads.append(names)
        if len(uploads) == 2:
            # what s3fs makes of an answer 403
            raise PermissionError("Access Denied")
        if len(uploads) == 3:
            raise OSError("[Errno 5] QuotaExceeded: the bucket's quota was exceeded")
        return await put(fs, *names, **options)

    monkeypatch.setattr(s3fs.S3FileSystem, "_put_file", refuse)
    # a client has its methods from when it was made
    s3fs.S3FileSystem.clear_instance_cache()
    channel = listener()
    request = request_for(checkpoints=f"{bucket}/study/search-0001", folder=str(tmp_path))
    finished = LightningRun(request, channel).execute()
    assert finished.reports == LightningRun(request_for(), listener()).execute().reports
    assert [message.saved.step for message in channel.messages_of(CheckpointSaved)] == [4, 16, 20]
    assert [message.why.partition(":")[0] for message in channel.messages_of(CheckpointFailed)] == [
        "PermissionError",
        "OSError",
    ]


def test_an_object_store_that_does_not_answer_does_not_hold_up_the_run(
    request_for: Any, listener: Any, bucket: str, store_line: StoreLine, tmp_path: Path
) -> None:
    expected = LightningRun(request_for(), listener()).execute()
    where = {"checkpoints": f"{bucket}/study/search-0001", "folder": str(tmp_path)}
    request = request_for(**where, checkpoint_timeout=1.0)
    channel = listener(die_at=10)
    with pytest.raises(SystemExit):
        LightningRun(request, channel).execute()
    store_line.fault = "silent"
    resumed_channel = listener()
    resumed_request = dataclasses.replace(request, attempt=2, resume=channel.saved)
    finished = LightningRun(resumed_request, resumed_channel).execute()
    assert finished.reports == expected.reports
    (started,) = resumed_channel.messages_of(Started)
    assert started.step == 0 and started.notes[-1].endswith("no answer for 1 s): the run begins again.")
    assert {message.why for message in resumed_channel.messages_of(CheckpointFailed)} == {"no answer for 1 s"}
    assert list(tmp_path.iterdir()) == []
