"""Two agents of one person on one machine never have the same card, however either of them ends."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tempopt.agent.gpu_locks import claim_gpus
from tempopt.agent.machine import Machine
from tempopt.agent.placement import Placement, assign_placements, count_workers
from tempopt.errors import UsageError
from tempopt.spec.resources import Need

MACHINE = Machine(cores=64, cards=("GPU-a", "GPU-b", "MIG-GPU-c/1/0"))
_AGENT = """
import sys
from tests.agent.test_gpu_locks import MACHINE, deal_gpus
from tempopt.agent.gpu_locks import claim_gpus
with claim_gpus(MACHINE, deal_gpus(float(sys.argv[1]), int(sys.argv[2]))) as places:
    print(*(card for placement in places for card in placement.gpus), flush=True)
    sys.stdin.read()
"""


def deal_gpus(gpus: float, count: int | None = None) -> Callable[[Machine], list[Placement]]:
    """Return what deals so many workers of so many cards each, None: all that fit."""
    need = Need(gpus=gpus, ranks=max(1, int(gpus)))
    return lambda machine: assign_placements(
        need, count_workers(need, machine, num_requested=count, max_workers=99), machine
    )


def cards(places: list[Placement]) -> list[str]:
    return [card for placement in places for card in placement.gpus or ()]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the locks, made by the first agent."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path / f"tempopt-{os.getuid()}"


def agent(gpus: float, count: int) -> subprocess.Popen[str]:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", _AGENT, str(gpus), str(count)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root)


def claimed_by(process: subprocess.Popen[str]) -> list[str]:
    assert process.stdout is not None
    return process.stdout.readline().split()


def test_a_card_is_one_processs_until_it_is_killed() -> None:
    with agent(0.5, 3) as first:
        assert claimed_by(first) == ["GPU-a", "GPU-a", "GPU-b"]
        with claim_gpus(MACHINE, deal_gpus(0.25)) as places:
            assert set(cards(places)) == {"MIG-GPU-c/1/0"}
            with pytest.raises(UsageError, match=rf"Taken: GPU-a by process {first.pid}; GPU-b by process"):
                with claim_gpus(MACHINE, deal_gpus(1.0)):
                    raise AssertionError("a card was given out twice")
        first.kill()
        first.wait()
    with claim_gpus(MACHINE, deal_gpus(1.0)) as places:
        assert cards(places) == list(MACHINE.cards)


def test_two_that_begin_at_the_same_moment_share_out_what_there_is() -> None:
    with agent(1.0, 1) as first_agent, agent(1.0, 1) as second_agent, agent(1.0, 1) as third:
        processes = (first_agent, second_agent, third)
        assert sorted(card for process in processes for card in claimed_by(process)) == sorted(MACHINE.cards)
        for process in processes:
            process.kill()


def test_what_was_not_taken_or_was_refused_is_free() -> None:
    with claim_gpus(MACHINE, deal_gpus(1.0, 1)) as places:
        assert cards(places) == ["GPU-a"]
        with pytest.raises(UsageError, match="3 workers"), claim_gpus(MACHINE, deal_gpus(1.0, 3)):
            raise AssertionError("there are but two")
        with claim_gpus(MACHINE, deal_gpus(1.0)) as placements:
            assert cards(placements) == ["GPU-b", "MIG-GPU-c/1/0"]
    with claim_gpus(MACHINE, deal_gpus(1.0)) as places:
        assert cards(places) == list(MACHINE.cards)


def test_gpus_assigned_by_the_scheduler_and_trials_without_gpus_claim_nothing(folder: Path) -> None:
    dealt_machine = dataclasses.replace(MACHINE, is_restricted=True)
    with claim_gpus(dealt_machine, deal_gpus(1.0)), claim_gpus(dealt_machine, deal_gpus(1.0)) as places:
        assert cards(places) == list(MACHINE.cards)
    with claim_gpus(Machine(cores=2), deal_gpus(0.0)) as places:
        assert len(places) == 2
    assert not folder.exists()
    with claim_gpus(MACHINE, deal_gpus(0.0, 2)), claim_gpus(MACHINE, deal_gpus(1.0)) as places:
        assert len(places) == 3


def test_the_folder_is_closed_to_others_and_one_that_is_not_ours_is_refused(
    folder: Path, tmp_path: Path
) -> None:
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    with claim_gpus(MACHINE, deal_gpus(1.0)):
        assert folder.stat().st_mode & 0o777 == 0o700
    other_folder = tmp_path / "elsewhere"
    folder.rename(other_folder)
    folder.symlink_to(other_folder)
    with (
        pytest.raises(UsageError, match=r"belongs to another user.*TMPDIR"),
        claim_gpus(MACHINE, deal_gpus(1.0)),
    ):
        raise AssertionError("a folder of another user was used")
