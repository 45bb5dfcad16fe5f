"""GPU memory of a run: limit, peak, device names, and out-of-memory errors.

The visible GPUs were set when the process was started; this module uses a few calls of ``torch.cuda``.
"""

from __future__ import annotations

import gc
import re

import torch

# Only torch's own allocator has an error class for it; CUDA's libraries report it as text.
_RAN_OUT = re.compile(
    r"(?:CUDA|HIP) (?:driver )?error: out of memory|(?:CUDA|HIP) out of memory|CUBLAS_STATUS_ALLOC_FAILED"
    r"|CUDNN_STATUS_ALLOC_FAILED|CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"
    r"|CUSOLVER_STATUS_ALLOC_FAILED|CUFFT_ALLOC_FAILED|Cuda failure \d* ?'out of memory'",
    re.IGNORECASE,
)
# cuBLAS has no memory for its handle; if the cause is another one, a further attempt does no harm.
_NO_HANDLE = re.compile(r"CUBLAS_STATUS_NOT_INITIALIZED.*cublasCreate")
_ADVICE = re.compile(r"\s*(?:If reserved but unallocated|\n)")
_CPU_RAN_OUT = re.compile(r"DefaultCPUAllocator: (?:can't allocate|not enough) memory")


def start_memory_tracking(device: torch.device, share: float | None) -> None:
    """Start measuring a run's memory on its GPU, and limit it; the limit of the run before is removed.

    Args:
        device: Device of the run; nothing happens if it is not a CUDA GPU.
        share: Share of the GPU's memory that it may use, in (0, 1]; None for all.
    """
    if device.type == "cuda":
        torch.cuda.set_per_process_memory_fraction(1.0 if share is None else share, device)
        torch.cuda.reset_peak_memory_stats(device)


def peak(device: torch.device) -> int | None:
    """Return the peak of bytes on the GPU since :func:`start_memory_tracking`; None without a GPU."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None


def release() -> None:
    """Release the GPU memory of a finished run for other processes."""
    if torch.cuda.is_initialized():
        gc.collect()
        torch.cuda.empty_cache()


def device_name(device: torch.device, ranks: int) -> str:
    """Return the device of a run as text, such as ``NVIDIA H200 (cuda:0)`` or ``2 x NVIDIA H200``."""
    name = device_kind(device) if device.type == "cuda" else str(device)
    if ranks > 1:
        return f"{ranks} x {name}"
    return f"{name} ({device})" if name != str(device) else name


def device_kind(device: torch.device) -> str:
    """Return the kind of a device, the same for two GPUs of one model."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def is_cuda_oom(error: BaseException) -> bool:
    """Return whether GPU memory was exhausted, including errors that a compiler has wrapped."""
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
    """Return whether main memory was exhausted by a tensor, for which torch has no error class."""
    return isinstance(error, RuntimeError) and _CPU_RAN_OUT.search(str(error)) is not None


def oom_message(error: BaseException, share: float | None) -> str:
    """Return a message with the GPU, the limit and the request that exceeded it.

    Args:
        error: An error for which :func:`is_cuda_oom` is true.
        share: Share of the GPU's memory that the run was allowed.
    """
    card = "the GPU"
    if torch.cuda.is_initialized():
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        card = f"{properties.name} ({properties.total_memory / 2**30:.1f} GiB)"
    allowed_text = "all of it" if share is None or share == 1.0 else f"{share:.0%} of it"
    # torch appends advice about fragmentation after the request
    reason = _ADVICE.split(str(error).strip())[0].rstrip(".")
    return (
        f"The memory of {card} did not suffice; the run was allowed {allowed_text}. {type(error).__name__}: "
        f"{reason}. Make the batch or the model smaller, or let a trial have more of a GPU (resources.gpus)."
    )
