"""What a run takes of the cards that this process sees: cap, peak, names, and memory that did not suffice.

Which cards those are was decided when the process was started; all else is a few calls of ``torch.cuda``.
"""

from __future__ import annotations

import gc
import re

import torch

# Only torch's own allocator has an error for it; CUDA's libraries say it in words.
_RAN_OUT = re.compile(
    r"(?:CUDA|HIP) (?:driver )?error: out of memory|(?:CUDA|HIP) out of memory|CUBLAS_STATUS_ALLOC_FAILED"
    r"|CUDNN_STATUS_ALLOC_FAILED|CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"
    r"|CUSOLVER_STATUS_ALLOC_FAILED|CUFFT_ALLOC_FAILED|Cuda failure \d* ?'out of memory'",
    re.IGNORECASE,
)
# cuBLAS finds no memory for its handle; where it is not that, another attempt does no harm.
_NO_HANDLE = re.compile(r"CUBLAS_STATUS_NOT_INITIALIZED.*cublasCreate")
_ADVICE = re.compile(r"\s*(?:If reserved but unallocated|\n)")
_CPU_RAN_OUT = re.compile(r"DefaultCPUAllocator: (?:can't allocate|not enough) memory")


def start_memory_tracking(device: torch.device, share: float | None) -> None:
    """Begin the count of a run's memory on its card, and cap it; a cap of the run before is lifted.

    Args:
        device: What the run trains on; nothing is done for one that is no CUDA card.
        share: Share of the card's memory that it may take, in (0, 1]; None: all.
    """
    if device.type == "cuda":
        torch.cuda.set_per_process_memory_fraction(1.0 if share is None else share, device)
        torch.cuda.reset_peak_memory_stats(device)


def peak(device: torch.device) -> int | None:
    """Return the most bytes that were allocated on a run's card since :func:`begin`; None without a card."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None


def release() -> None:
    """Give back what a run that is over holds of the card's memory, so that other processes may have it."""
    if torch.cuda.is_initialized():
        gc.collect()
        torch.cuda.empty_cache()


def device_name(device: torch.device, ranks: int) -> str:
    """Return for a person what a run trains on, as in ``NVIDIA H200 (cuda:0)`` or ``2 x NVIDIA H200``."""
    name = device_kind(device) if device.type == "cuda" else str(device)
    if ranks > 1:
        return f"{ranks} x {name}"
    return f"{name} ({device})" if name != str(device) else name


def device_kind(device: torch.device) -> str:
    """Return what kind of device computes, the same for two cards of one kind."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def is_cuda_oom(error: BaseException) -> bool:
    """Return whether a card's memory did not suffice, be it seen by a compiler that was at work."""
    seen_ids: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen_ids:
        seen_ids.add(id(cause))
        if isinstance(cause, torch.OutOfMemoryError):
            return True
        if isinstance(cause, RuntimeError) and (_RAN_OUT.search(str(cause)) or _NO_HANDLE.search(str(cause))):
            return True
        cause = cause.__cause__ or getattr(cause, "inner_exception", None)
    return False


def is_cpu_oom(error: BaseException) -> bool:
    """Return whether main memory did not suffice for a tensor, for which torch has no error of its own."""
    return isinstance(error, RuntimeError) and _CPU_RAN_OUT.search(str(error)) is not None


def oom_message(error: BaseException, share: float | None) -> str:
    """Return for a person on which card, under which cap and for what the memory did not suffice.

    Args:
        error: What :func:`is_cuda_oom` is true of.
        share: Share of the card's memory that the run was allowed.
    """
    card = "the GPU"
    if torch.cuda.is_initialized():
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        card = f"{properties.name} ({properties.total_memory / 2**30:.1f} GiB)"
    allowed_text = "all of it" if share is None or share == 1.0 else f"{share:.0%} of it"
    # torch adds advice about fragmentation; what was asked for stands before
    reason = _ADVICE.split(str(error).strip())[0].rstrip(".")
    return (
        f"The memory of {card} did not suffice; the run was allowed {allowed_text}. {type(error).__name__}: "
        f"{reason}. Make the batch or the model smaller, or let a trial have more of a GPU (resources.gpus)."
    )
