"""CPU cores, main memory and GPUs of this machine that this process may use.

Loads neither torch nor Lightning. NVIDIA's management library, which it uses, starts nothing on a GPU.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")
_MASK = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Resources of a machine that workers can use.

    Args:
        cores: CPU cores, >= 1.
        memory: Main memory in bytes; None: not known.
        cards: The free GPUs, each as CUDA_VISIBLE_DEVICES names it: a whole GPU or a MIG instance.
        busy: GPUs that other agents hold, each with the id of the agent's process (0: not known).
        is_restricted: Whether CUDA_VISIBLE_DEVICES assigns GPUs to this process.
        why: Why there are no GPUs, for messages; empty if there are.
    """

    cores: int
    memory: int | None = None
    cards: tuple[str, ...] = ()
    busy: tuple[tuple[str, int], ...] = ()
    is_restricted: bool = False
    why: str = ""

    @property
    def has_gpus(self) -> bool:
        """Whether there are GPUs, free or not."""
        return bool(self.cards or self.busy)


def this_machine() -> Machine:
    """Return the resources of this machine that this process may use."""
    mask = os.environ.get(_MASK)
    uuids_by_card, why = _query_gpu_uuids()
    if mask is None:
        cards = tuple(uuid for instances in uuids_by_card or () for uuid in instances)
    else:
        cards = tuple(visible(mask, uuids_by_card))
        why = "" if cards else f'{_MASK} is "{mask}"'
    return Machine(
        cores=_count_cores(),
        memory=_read_memory_limit(),
        cards=cards,
        is_restricted=mask is not None,
        why=why,
    )


def visible(mask: str, uuids_by_card: Sequence[Sequence[str]] | None = None) -> list[str]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES names, each as it is written there.

    The rules are those of CUDA: the list ends before the first token that names no GPU, or is of another kind
    (index or UUID) than the first token; if a GPU is named twice, the list is empty.

    Args:
        mask: Value of CUDA_VISIBLE_DEVICES.
        uuids_by_card: The UUIDs of each GPU of the machine (under MIG those of its instances); None: not
            known.
    """
    tokens = [token.strip() for token in mask.split(",")]
    uuid_prefix = next((prefix for prefix in ("GPU-", "MIG-") if tokens[0].startswith(prefix)), "")
    cards: list[str] = []
    for token in tokens:
        if token in cards:
            return []
        is_card = (
            _is_uuid(token, uuid_prefix, uuids_by_card) if uuid_prefix else _is_index(token, uuids_by_card)
        )
        if not is_card:
            break
        cards.append(token)
    return cards


def _is_index(token: str, uuids_by_card: Sequence[Sequence[str]] | None) -> bool:
    return (
        token.isdecimal() and token.isascii() and (uuids_by_card is None or int(token) < len(uuids_by_card))
    )


def _is_uuid(token: str, uuid_prefix: str, uuids_by_card: Sequence[Sequence[str]] | None) -> bool:
    # the library does not list the older names of instances (MIG-GPU-.../1/0)
    if not token.startswith(uuid_prefix) or len(token) == len(uuid_prefix):
        return False
    if uuids_by_card is None or token.startswith("MIG-GPU-"):
        return True
    return any(uuid.startswith(token) for instances in uuids_by_card for uuid in instances)


def _query_gpu_uuids() -> tuple[list[list[str]] | None, str]:
    """Return the UUIDs of each GPU (under MIG those of its instances), or None with the reason."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return None, f"no NVIDIA driver answers: {error}"
    try:
        uuids_by_card = [_query_card_uuids(index) for index in range(pynvml.nvmlDeviceGetCount())]
        return uuids_by_card, "" if any(
            uuids_by_card
        ) else "the driver lists no GPU, or none with a MIG instance"
    except pynvml.NVMLError as error:
        return None, f"the NVIDIA driver does not list its GPUs: {error}"
    finally:
        pynvml.nvmlShutdown()


def _query_card_uuids(index: int) -> list[str]:
    """Return the UUID of a GPU, or those of its MIG instances; an empty list if the GPU is lost."""
    import pynvml

    try:
        card = pynvml.nvmlDeviceGetHandleByIndex(index)
        try:
            is_divided = pynvml.nvmlDeviceGetMigMode(card)[0] == pynvml.NVML_DEVICE_MIG_ENABLE
        except pynvml.NVMLError_NotSupported:
            is_divided = False
        if not is_divided:
            return [pynvml.nvmlDeviceGetUUID(card)]
        count = pynvml.nvmlDeviceGetMaxMigDeviceCount(card)
        return [
            uuid
            for instance_index in range(count)
            if (uuid := _query_instance_uuid(card, instance_index)) is not None
        ]
    except pynvml.NVMLError:
        # a GPU that has fallen off its bus, or to which this user has no access
        return []


def _query_instance_uuid(card: object, instance_index: int) -> str | None:
    import pynvml

    try:
        return str(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(card, instance_index)))
    except pynvml.NVMLError_NotFound:
        return None


def _count_cores() -> int:
    # A CPU quota limits time and not cores, but more threads than the quota wait for each other.
    num_allowed_cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    quotas = [quota for folder in _iter_cgroups("cpu") if (quota := _read_cpu_quota(folder)) is not None]
    return max(1, min([num_allowed_cores, *(int(quota) for quota in quotas)]))


def _read_cpu_quota(folder: Path) -> float | None:
    """Return how many cores' time a control group allows, None if it sets no limit."""
    if (quota_text := _read_text(folder / "cpu.max")) is not None:
        quota, _, period = quota_text.partition(" ")
    else:
        quota, period = (_read_text(folder / f"cpu.cfs_{name}_us") or "" for name in ("quota", "period"))
    # "max" in version 2 of control groups and -1 in version 1 are no limits
    return int(quota) / int(period) if quota.isdecimal() and period.isdecimal() else None


def _read_memory_limit() -> int | None:
    limits = [
        int(limit)
        for folder in _iter_cgroups("memory")
        for name in ("memory.max", "memory.limit_in_bytes")
        if (limit := _read_text(folder / name) or "").isdecimal()
    ]
    try:
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (ValueError, OSError):
        # not available on this system
        pass
    return min(limits, default=None)


def _iter_cgroups(controller: str) -> Iterator[Path]:
    """Yield the folders of the control groups of this process, innermost first."""
    for line in (_read_text(_PROC / "self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        top = _CGROUPS / controller if controllers else _CGROUPS
        inner_path = PurePosixPath(path)
        # In a container the path may be that of the host, and only the top folder exists.
        for group in (inner_path, *inner_path.parents):
            yield top / group.relative_to(group.anchor)


def _read_text(file: Path) -> str | None:
    try:
        return file.read_text().strip()
    except OSError:
        return None
