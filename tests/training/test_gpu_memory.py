"""What a run takes of a card, checked without one: torch's calls are noted down instead."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from tempopt.training import gpu_memory
from tempopt.training.messages import Failed, RunRequest
from tempopt.training.run import LightningRun
from tempopt.training.worker import build_failed_message

CUDA = torch.device("cuda", 0)
CPU = torch.device("cpu")


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Stand in for a card of 80 GiB, and return a record of the calls to it."""
    record: dict[str, Any] = {}
    properties = type("Properties", (), {"name": "NVIDIA H200", "total_memory": 80 * 2**30})
    calls: dict[str, Any] = {
        "set_per_process_memory_fraction": lambda share, device: record.update(share=share, device=device),
        "reset_peak_memory_stats": lambda device: record.update(peak=0),
        "max_memory_allocated": lambda device: 3 * 2**30,
        "get_device_name": lambda device: "NVIDIA H200",
        "is_initialized": lambda: True,
        "current_device": lambda: 0,
        "get_device_properties": lambda device: properties,
        "empty_cache": lambda: record.update(emptied=True),
    }
    for name, call in calls.items():
        monkeypatch.setattr(torch.cuda, name, call)
    return record


def test_a_run_is_capped_and_the_next_one_without_a_cap_is_not(card: dict[str, Any]) -> None:
    gpu_memory.start_memory_tracking(CUDA, 0.25)
    assert card == {"share": 0.25, "device": CUDA, "peak": 0}
    gpu_memory.start_memory_tracking(CUDA, None)
    assert card["share"] == 1.0


def test_memory_is_given_back_where_cuda_is_in_use(
    card: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu_memory.release()
    assert card.pop("emptied")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    gpu_memory.release()
    assert card == {}


@pytest.mark.parametrize(
    ("device", "ranks", "text"),
    [
        (CUDA, 1, "NVIDIA H200 (cuda:0)"),
        (CUDA, 2, "2 x NVIDIA H200"),
        (CPU, 1, "cpu"),
        (CPU, 4, "4 x cpu"),
    ],
)
def test_a_device_is_named_for_a_person(
    card: dict[str, Any], device: torch.device, ranks: int, text: str
) -> None:
    assert gpu_memory.device_name(device, ranks) == text


OUT_OF_MEMORY = (
    "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.20 GiB of which 3.00 "
    "GiB is free. 19.80 GiB allowed; Of the allocated memory 18.00 GiB is allocated by PyTorch, and 1.00 GiB "
    "is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting "
    "PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)
CUDA_ERRORS = [
    torch.OutOfMemoryError(OUT_OF_MEMORY),
    torch.AcceleratorError(
        "CUDA error: out of memory\nCompile with `TORCH_USE_CUDA_DSA` to enable assertions."
    ),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    RuntimeError("NCCL error: unhandled cuda error. Last error:\nCuda failure 2 'out of memory'"),
]


def failure_of(error: BaseException, request: RunRequest) -> Failed:
    return build_failed_message(request, error, memory_share=request.memory_share)


@pytest.mark.parametrize("error", CUDA_ERRORS, ids=lambda error: str(error)[:30])
def test_a_cards_memory_that_ran_out_is_told_from_all_else(
    card: dict[str, Any], request_for: Any, error: RuntimeError
) -> None:
    failure = failure_of(error, request_for())
    assert failure.kind == "gpu_memory"
    assert type(error).__name__ in failure.message


def test_it_is_said_on_which_card_under_which_cap_and_for_what(
    card: dict[str, Any], request_for: Any
) -> None:
    failure = failure_of(torch.OutOfMemoryError(OUT_OF_MEMORY), request_for(memory_share=0.25))
    assert failure.message.startswith(
        "The memory of NVIDIA H200 (80.0 GiB) did not suffice; the run was allowed 25% of it. "
        "OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB."
    )
    assert "PYTORCH_ALLOC_CONF" not in failure.message
    assert failure.message.endswith("(resources.gpus).")
    assert "allowed all of it" in failure_of(torch.OutOfMemoryError(OUT_OF_MEMORY), request_for()).message


def test_memory_that_ran_out_under_a_compiler_is_found(request_for: Any) -> None:
    wrapped = RuntimeError("backend='inductor' raised")
    wrapped.inner_exception = torch.OutOfMemoryError(OUT_OF_MEMORY)  # type: ignore[attr-defined]
    raised = RuntimeError("while fitting")
    raised.__cause__ = wrapped
    assert failure_of(raised, request_for()).kind == "gpu_memory"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (
            RuntimeError(
                "[enforce fail at alloc_cpu.cpp:131] err == 0. DefaultCPUAllocator: can't allocate memory: "
                "you tried to allocate 99 bytes. Error code 12 (Cannot allocate memory)"
            ),
            "infrastructure",
        ),
        (MemoryError(), "infrastructure"),
        (OSError(28, "No space left on device"), "disk"),
        (FileNotFoundError(2, "No such file or directory"), "infrastructure"),
        (RuntimeError("CUDA error: device-side assert triggered"), "error"),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), "error"),
    ],
)
def test_other_failures_are_not_a_cards_memory(request_for: Any, error: Exception, kind: str) -> None:
    assert failure_of(error, request_for()).kind == kind


def test_a_run_that_asks_for_more_main_memory_than_there_is_fails_as_lost(
    request_for: Any, listener: Any
) -> None:
    with pytest.raises(RuntimeError) as excinfo:
        LightningRun(request_for("Greedy"), listener()).execute()
    assert failure_of(excinfo.value, request_for()).kind == "infrastructure"


def pin_memory_flags(run: LightningRun) -> dict[str, Any]:
    return {name: getattr(run.owner, f"{name}_dataloader")().pin_memory for name in ("train", "val", "test")}


def test_batches_are_pinned_for_a_card_and_only_for_one(
    request_for: Any, listener: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = LightningRun(request_for(), listener())
    run.datamodule.setup("fit")
    assert pin_memory_flags(run) == {"train": False, "val": False, "test": False}
    monkeypatch.setattr(LightningRun, "_device", CUDA)
    assert pin_memory_flags(run) == {"train": True, "val": True, "test": True}


def test_streams_are_not_pinned(request_for: Any, listener: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LightningRun, "_device", CUDA)
    monkeypatch.setattr(gpu_memory, "start_memory_tracking", lambda device, share: None)
    run = LightningRun(request_for(data_class="StreamData", data={"positioned": False}), listener())
    run.datamodule.setup("fit")
    with pytest.warns(UserWarning, match="do not know their position"):
        loader = run.datamodule.train_dataloader()
    assert isinstance(loader, DataLoader)
    assert not loader.pin_memory
