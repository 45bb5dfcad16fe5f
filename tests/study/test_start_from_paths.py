"""The file that ``study.start_from`` names, in every odd way: it is found, or there is one clear error."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tempopt.agent import dry_run, start_weights
from tempopt.agent.start_weights import keep_weights, starting, with_weights
from tempopt.errors import SpecError, UsageError
from tempopt.spec.study_spec import StudySpec
from tempopt.store import weights as kept_weights
from tempopt.workers.placement import Placement
from tests.study.test_start_from import digest, folder, spec  # noqa: F401
from tests.training import starting_modules as by_hand

pytest_plugins = ["tests.training.object_store"]


def parsed(path: str, **given: Any) -> StudySpec:
    return StudySpec.parse(spec({"path": path, **given}), source="the spec")


def found(path: str) -> StudySpec:
    """Return the spec of a study that is begun with this file; it has the weights, whatever their name."""
    with starting(parsed(path)) as begun:
        start = begun.study.start_from
        assert begun.start_at is not None and start is not None
        assert start.sha256 == hashlib.sha256(begun.start_at.read_bytes()).hexdigest() == digest("base.ckpt")
        assert start.path == path
        return begun


def link(path: str) -> str:
    Path(path).symlink_to("base.ckpt")
    return path


def renamed(path: str) -> str:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_bytes(Path("base.ckpt").read_bytes())
    return path


@pytest.mark.parametrize(
    "given",
    [
        lambda: "base.ckpt",
        lambda: "./base.ckpt",
        lambda: f"file://{Path.cwd()}/base.ckpt",
        lambda: link("link.ckpt"),
        lambda: renamed("a folder/with a space.ckpt"),
        lambda: renamed("ünïcode/Gewichte ½.pt"),
        lambda: renamed("no_ending"),
        lambda: renamed("-o"),
        lambda: renamed("quote'\"and$(touch ran).ckpt"),
        lambda: "a/../base.ckpt" if not Path("a").mkdir() else "",
        lambda: "${HERE}/base.ckpt",
        lambda: "~/base.ckpt",
    ],
    ids=lambda given: "",
)
def test_a_file_is_found_whatever_it_is_called(
    given: Callable[[], str],
    folder: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HERE", str(folder))
    monkeypatch.setenv("HOME", str(folder))
    begun = found(given())
    keep_weights(begun, str(folder / "runs"))
    # an agent elsewhere, which has nothing but the study
    os.chdir("/")
    taken = with_weights(StudySpec.from_json(begun.to_json()), [str(folder / "runs")], folder / "here")
    assert taken.start_at is not None and taken.start_at.is_relative_to(folder / "runs" / "tuned" / "weights")
    assert not (folder / "ran").exists()


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("nowhere.ckpt", r'study\.start_from is "nowhere\.ckpt", but there is no file .*/nowhere\.ckpt'),
        ("pipe", r"that is no ordinary file, but a pipe or a device"),
        ("/dev/zero", r"that is no ordinary file"),
        (".", r"that is a folder"),
        ("broken", r"there is no file .*/gone\.ckpt"),
        ("loop", r"study\.start_from"),
        ("a\0b", r"study\.start_from.*NUL"),
        ("x" * 3000, r"study\.start_from .*cannot be used"),
        ("~nobody-of-that-name/a.ckpt", r"study\.start_from.*cannot be used"),
        ("${NOT_SET_ANYWHERE}/a.ckpt", r"study\.start_from\.path.*NOT_SET_ANYWHERE"),
        ("http://example.com/a.ckpt", r"study\.start_from: .*begins with one of .*s3://"),
        ("hf://some/model", r"study\.start_from: .*begins with one of"),
        ("s3://key:secret@bucket/a.ckpt", r"study\.start_from: .*holds a password"),
    ],
    ids=lambda given: str(given)[:12].replace("\0", ""),
)
def test_what_is_no_file_of_weights_gets_one_error(folder: Path, path: str, said: str) -> None:  # noqa: F811
    os.mkfifo("pipe")
    Path("broken").symlink_to("gone.ckpt")
    Path("loop").symlink_to("loop")
    with pytest.raises(SpecError, match=said) as caught, starting(parsed(path)):
        pass
    told = str(caught.value)
    assert "\n" not in told and "secret" not in told


def test_an_object_that_is_not_there_gets_one_error_too(bucket: str) -> None:
    for path in (f"{bucket}/nowhere.ckpt", "s3://no-such-bucket-of-mine/a.ckpt"):
        with pytest.raises(SpecError, match=r"cannot be fetched from s3://.*"), starting(parsed(path)):
            pass


def test_what_an_agent_checked_before_is_not_where_another_studys_weights_lie(
    folder: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dry_run, "rehearse", lambda spec, *given, **more: (spec, None))
    worker: Any = SimpleNamespace(place=Placement())
    for place in ("one", "two"):
        here = parsed("base.ckpt", sha256=digest()).starting_at(folder / place)
        assert dry_run.checked(here, worker, again=False).start_at == folder / place


def test_a_file_that_changes_while_it_is_read_is_not_kept(
    folder: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def changes(path: Path) -> str:
        found = kept_weights.digest_of(path)
        torch.save(by_hand.weights(seed=8), path)
        return found

    monkeypatch.setattr(start_weights, "digest_of", changes)
    with (
        starting(parsed("base.ckpt")) as begun,
        pytest.raises(UsageError, match=r"study\.start_from: .*base\.ckpt has another content"),
    ):
        keep_weights(begun, str(folder / "runs"))
    assert not list(folder.glob("runs/**/*.ckpt"))


def test_a_file_that_changes_while_it_is_copied_is_not_kept(
    folder: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Changing:
        def fsync(self, descriptor: int) -> None:
            os.pwrite(descriptor, b"other", 0)

    with starting(parsed("base.ckpt")) as begun:
        monkeypatch.setattr(kept_weights, "os", Changing())
        with pytest.raises(UsageError, match="has another content"):
            keep_weights(begun, str(folder / "runs"))
    assert not [each for each in folder.glob("runs/**/*") if each.is_file()]


def test_a_file_of_the_same_size_that_was_written_at_once_is_another(folder: Path) -> None:  # noqa: F811
    file = folder / "a"
    stamp = (file.write_bytes(b"one"), file.stat())[1]
    first = kept_weights.digest_of(file)
    with file.open("r+b") as open_file:
        open_file.write(b"two")
    os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert kept_weights.digest_of(file) == hashlib.sha256(b"two").hexdigest() != first


def test_no_room_for_the_copy_says_where(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    class Full:
        def fsync(self, descriptor: int) -> None:
            raise OSError(28, "No space left on device")

    with starting(parsed("base.ckpt")) as begun:
        monkeypatch.setattr(kept_weights, "os", Full())
        with pytest.raises(
            UsageError, match=r"cannot be written to .*runs.* \(.*No space left.*--checkpoints"
        ):
            keep_weights(begun, str(folder / "runs"))
    assert not [each for each in folder.glob("runs/**/*") if each.is_file()]
