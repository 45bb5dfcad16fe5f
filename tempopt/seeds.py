"""Seeds as functions of what they are for; holds no state and draws nothing."""

from __future__ import annotations

import hashlib


def derive(*parts: int | str) -> int:
    """Return the seed for what ``parts`` name, the same on every machine and in every version.

    Args:
        parts: Names and numbers, as in ``derive(study_seed, "confirm", pair)``.

    Returns:
        An integer with 0 <= seed < 2**63; different parts give independent seeds (BLAKE2b).
    """
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def shared_seed(number: int, num_shared: int) -> int:
    """Return which of some shared seeds a run of a number is trained with.

    Each seed has one of every ``num_shared`` consecutive numbers, in an order that changes from block to
    block: of a design that covers a space evenly, every second point lies in the same half of it.

    Args:
        number: Number of the run, >= 0.
        num_shared: Seeds that are shared, >= 1.
    """
    block = number // num_shared
    return (number + derive("shared", block)) % num_shared


def seed_name(kind: str) -> str:
    """Return the name under which the seeds of a kind of training are derived.

    That of the baseline is what it was when the studies were recorded that docs and benchmarks quote.
    """
    return "unit" if kind == "baseline" else kind
