"""Seeds as functions of their purpose, without state or random generators."""

from __future__ import annotations

import hashlib


def derive(*parts: int | str) -> int:
    """Return the seed for a purpose, the same on every machine and in every version.

    Args:
        parts: Names and numbers, as in ``derive(study_seed, "confirm", pair)``.

    Returns:
        An integer with 0 <= seed < 2**63; different parts give independent seeds (BLAKE2b).
    """
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def shared_seed(number: int, num_shared: int) -> int:
    """Return the index of the shared seed of a run.

    Each seed has one of every ``num_shared`` consecutive numbers. The order changes from block to block,
    since in a design that covers a space evenly every second point lies in the same half of the space.

    Args:
        number: Number of the run, >= 0.
        num_shared: Number of shared seeds, >= 1.
    """
    block = number // num_shared
    return (number + derive("shared", block)) % num_shared


def seed_name(kind: str) -> str:
    """Return the name from which the seeds of a kind of training are derived.

    The name of the baseline is that of the recorded studies that docs and benchmarks quote.
    """
    return "unit" if kind == "baseline" else kind
