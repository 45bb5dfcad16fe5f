"""What this process may use of its machine, by masks, drivers and control groups that are made up."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tempopt.agent import machine
from tempopt.agent.machine import this_machine, visible

CARDS = [["GPU-aaaa-1"], ["GPU-bbbb-2"], ["MIG-cccc-3", "MIG-dddd-4"]]


@pytest.mark.parametrize(
    ("mask", "cards"),
    [
        ("", []),
        ("-1", []),
        ("1,0", ["1", "0"]),
        (" 0 , 2 ", ["0", "2"]),
        ("0,-1,1", ["0"]),
        ("0,9,1", ["0"]),
        ("0,,1", ["0"]),
        ("0,GPU-aaaa-1", ["0"]),
        ("1,1", []),
        ("NoDevFiles", []),
        ("GPU-bbbb-2,GPU-aaaa-1", ["GPU-bbbb-2", "GPU-aaaa-1"]),
        ("GPU-bb,GPU-aa", ["GPU-bb", "GPU-aa"]),
        ("GPU-aaaa-1,GPU-zzzz,GPU-bbbb-2", ["GPU-aaaa-1"]),
        ("GPU-aaaa-1,1", ["GPU-aaaa-1"]),
        ("GPU-,GPU-aa", []),
        ("MIG-dddd-4", ["MIG-dddd-4"]),
        ("MIG-GPU-aaaa-1/7/0", ["MIG-GPU-aaaa-1/7/0"]),
    ],
)
def test_a_mask_is_read_as_cuda_reads_it(mask: str, cards: list[str]) -> None:
    assert visible(mask, CARDS) == cards


def test_a_mask_is_taken_as_it_is_written_where_no_driver_can_be_asked() -> None:
    assert visible("7,GPU-x") == ["7"]
    assert visible("GPU-made-up,GPU-too") == ["GPU-made-up", "GPU-too"]


def nvml(cards: list[Any] | None) -> SimpleNamespace:
    """Return a driver's library that lists these cards: a UUID, or those of instances; None: a lost one."""

    class Error(Exception):
        pass

    class NotSupportedError(Error):
        pass

    class NotFoundError(Error):
        pass

    def init() -> None:
        if cards is None:
            raise Error("Driver Not Loaded")

    def handle(index: int) -> Any:
        assert cards is not None
        if cards[index] is None:
            raise Error("GPU is lost")
        return cards[index]

    def mode(card: Any) -> list[int]:
        if card == "GPU-old":
            raise NotSupportedError
        return [int(isinstance(card, list)), 0]

    def instance(card: list[str], index: int) -> str:
        if card[index] == "":
            raise NotFoundError
        return card[index]

    return SimpleNamespace(
        NVMLError=Error,
        NVMLError_NotSupported=NotSupportedError,
        NVMLError_NotFound=NotFoundError,
        NVML_DEVICE_MIG_ENABLE=1,
        nvmlInit=init,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: len(cards or []),
        nvmlDeviceGetHandleByIndex=handle,
        nvmlDeviceGetMigMode=mode,
        nvmlDeviceGetMaxMigDeviceCount=len,
        nvmlDeviceGetMigDeviceHandleByIndex=instance,
        nvmlDeviceGetUUID=lambda card: card,
    )


@pytest.mark.parametrize(
    ("cards", "mask", "expected", "is_restricted", "why"),
    [
        (["GPU-old", ["MIG-x", "", "MIG-y"], None, "GPU-new"], None,
         ("GPU-old", "MIG-x", "MIG-y", "GPU-new"), False, ""),
        ([["", ""]], None, (), False, "MIG"),
        (None, None, (), False, "Driver Not Loaded"),
        (["GPU-a", "GPU-b"], "1", ("1",), True, ""),
        (["GPU-a", "GPU-b"], "", (), True, 'CUDA_VISIBLE_DEVICES is ""'),
    ],
    ids=["by UUID and instance", "no instance", "no driver", "mask", "empty mask"],
)  # fmt: skip
def test_cards_are_those_of_the_driver_that_the_mask_shows(
    monkeypatch: pytest.MonkeyPatch,
    cards: list[Any] | None,
    mask: str | None,
    expected: tuple[str, ...],
    is_restricted: bool,
    why: str,
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml(cards))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if mask is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", mask)
    local_machine = this_machine()
    assert (local_machine.cards, local_machine.is_restricted) == (expected, is_restricted)
    assert local_machine.has_gpus == bool(expected) and why in local_machine.why


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folders of control groups, of which /jobs/one is this process's, and a machine of eight cores."""
    monkeypatch.setattr(machine, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(machine, "_CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)), raising=False)
    (tmp_path / "proc/self").mkdir(parents=True)
    return tmp_path


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


V2 = {"proc/self/cgroup": "0::/jobs/one\n"}
V1 = {"proc/self/cgroup": "4:memory:/jobs/one\n1:cpu,cpuacct:/jobs/one\n0::/\n"}


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        (V2, 8),
        (V2 | {"cgroup/jobs/one/cpu.max": "max 100000\n"}, 8),
        (V2 | {"cgroup/jobs/one/cpu.max": "250000 100000\n"}, 2),
        (V2 | {"cgroup/jobs/one/cpu.max": "50000 100000\n"}, 1),
        (V2 | {"cgroup/jobs/one/cpu.max": "max 100000\n", "cgroup/jobs/cpu.max": "300000 100000\n"}, 3),
        # in a container the path is the host's, and only the top is there
        (V2 | {"cgroup/cpu.max": "400000 100000\n"}, 4),
        (
            V1 | {"cgroup/cpu/jobs/one/cpu.cfs_quota_us": "-1", "cgroup/cpu/jobs/one/cpu.cfs_period_us": "5"},
            8,
        ),
        (V1 | {"cgroup/cpu/cpu.cfs_quota_us": "600000", "cgroup/cpu/cpu.cfs_period_us": "200000"}, 3),
        ({}, 8),
    ],
)
def test_cores_are_those_that_a_quota_leaves(groups: Path, files: dict[str, str], cores: int) -> None:
    write(groups, files)
    assert this_machine().cores == cores


def test_memory_is_what_a_control_group_leaves(groups: Path) -> None:
    write(groups, V2 | {"cgroup/jobs/one/memory.max": "max"})
    memory = this_machine().memory
    assert memory is not None and memory > 2**20
    write(groups, {"cgroup/jobs/memory.max": "1048576"})
    assert this_machine().memory == 2**20
    # version 1 writes a number that is larger than any memory for none
    write(groups, V1 | {"cgroup/memory/jobs/one/memory.limit_in_bytes": "9223372036854771712"})
    assert this_machine().memory == memory
    write(groups, {"cgroup/memory/memory.limit_in_bytes": "2097152"})
    assert this_machine().memory == 2**21
