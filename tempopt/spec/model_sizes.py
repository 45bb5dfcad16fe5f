"""Which size each run of a study trains, and what parameters are at another size (``study.proxy``).

Sizes are counted from the smallest proxy, 0, to full size, which is the number of proxies: 0 in a study that
has none. Parameter sets of the search are those of the smallest proxy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tempopt.records.rows import AT_PROXY, Kind, NewTicket, TicketRow
from tempopt.spec.temperatures import tempered
from tempopt.temperature.groups import CREDITED
from tempopt.temperature.named import split_name
from tempopt.temperature.scaling import scales_with_length, shifted

if TYPE_CHECKING:
    from tempopt.spec.study_spec import StudySpec


def full_size(spec: StudySpec) -> int:
    """Return the number of full size."""
    return 0 if spec.study.proxy is None else len(spec.study.proxy.sets)


def size_name(spec: StudySpec, size: int) -> str:
    """Return what a size of a study is called, as after *on* or *at*."""
    if size == full_size(spec):
        return "full size"
    return f"proxy {size + 1}" if full_size(spec) > 1 else "the proxy"


def size_of(ticket: TicketRow | NewTicket, spec: StudySpec) -> int:
    """Return the size that a ticket trains."""
    return largest_of(ticket.kind, spec) if ticket.size is None else ticket.size


def largest_of(kind: Kind, spec: StudySpec) -> int:
    """Return the largest size that tickets of a kind train; all but ``transfer`` train no other."""
    return 0 if kind in AT_PROXY else full_size(spec)


def shifted_temperatures(spec: StudySpec) -> list[str]:
    """Return the temperatures whose ln τ the rule moves: attention's is the empty text."""
    proxy = spec.study.proxy
    if proxy is None or proxy.temperature == "same":
        return []
    return [""] if proxy.temperature in ("head_dim", "length") else tempered(spec.search)


def factor(spec: StudySpec, temperature: str, size: int) -> float:
    """Return by what a temperature of the search is multiplied at a size, as far as the spec alone tells.

    1 where the rule does not move it, a dimension is not known yet, or runs measure the shift.
    """
    proxy = spec.study.proxy
    if proxy is None or proxy.temperature == "measured" or temperature not in shifted_temperatures(spec):
        return 1.0
    return math.exp(proxy.shift_to(size) or 0.0)


def to_size(spec: StudySpec, parameters: Mapping[str, Any], size: int) -> dict[str, Any]:
    """Return what a parameter set of the smallest proxy is at a size.

    What has a length scaling follows the length by itself, and is not moved by ``temperature: length``.
    """
    return _moved(spec, parameters, size, 1.0)


def to_full(spec: StudySpec, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a parameter set of the search is at full size; as it is where a study has no proxy."""
    return _moved(spec, parameters, full_size(spec), 1.0)


def to_proxy(spec: StudySpec, parameters: Mapping[str, Any], size: int | None = None) -> dict[str, Any]:
    """Return what :func:`to_size` has made a parameter set of, but for the rounding; None: full size."""
    return _moved(spec, parameters, full_size(spec) if size is None else size, -1.0)


def _moved(spec: StudySpec, parameters: Mapping[str, Any], size: int, sign: float) -> dict[str, Any]:
    found, proxy = dict(parameters), spec.study.proxy
    if proxy is None or (proxy.temperature == "length" and scales_with_length(parameters)):
        return found
    for temperature in shifted_temperatures(spec):
        shift = proxy.shift_to(size)
        assert shift is not None, "a study has begun whose dry run has found no dimension of heads"
        found = shifted(found, sign * shift, temperature)
    return found


def moved_names(spec: StudySpec, parameters: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return which values of a set at full size the rule has moved, and which others were taken over.

    Of the others those that are no temperature, and numbers of keys: whether they transfer, no rule says.
    """
    small = to_proxy(spec, parameters)
    moved = [name for name, value in parameters.items() if small[name] != value]
    kept = [name for name in spec.search if name in parameters and name not in moved and _is_other(name)]
    return moved, kept


def _is_other(name: str) -> bool:
    return name not in CREDITED or split_name(name)[1] in ("n0", "window", "top_k")
