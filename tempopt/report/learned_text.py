"""Where learned and controlled temperatures ended, in plain words and as plain data."""

from __future__ import annotations

from tempopt.temperature import PER_HEAD
from tempopt.verdict.final_temperatures import Ends
from tempopt.verdict.learned import Learned

_NAMED = 4


def rate_text(learned: Learned) -> str:
    """Return how fast the temperatures were learned."""
    factor = "the" if learned.lr_ratio == 1 else f"{learned.lr_ratio:.4g} times the"
    prefix = "one for each head, " if learned.params.get(PER_HEAD) else ""
    return f"{prefix}with {factor} learning rate of the weights"


def ends_text(ends: Ends) -> str:
    """Return where the temperatures ended, in the geometric mean over the runs, and from which to which."""
    end_by_place = {name: end for name, end in ends.items() if place_of(name)}
    end_by_name = {name: end for name, end in ends.items() if name not in end_by_place}
    texts = [_end(name, end) for name, end in end_by_name.items()]
    if len(end_by_place) <= _NAMED:
        texts += [_end(f"τ of {place_of(name)}", end) for name, end in end_by_place.items()]
    else:
        low, high = (pick(end_by_place, key=lambda name: end_by_place[name][0]) for pick in (min, max))
        extremes = (f"{end_by_place[name][0]:.3g} in {place_of(name)}" for name in (low, high))
        texts.append(f"τ from {' to '.join(extremes)}")
    return f"at the end of training {', '.join(texts) or 'not measured'}"


def place_of(name: str) -> str:
    """Return where in attention a learned temperature is, from its name; empty for one that is not there."""
    layer, _, head = name.partition(".")
    if not layer.isdecimal():
        return ""
    return f"layer {layer}, head {head}" if head else f"layer {layer}"


def _end(name: str, ends: tuple[float, float, float]) -> str:
    mean, low, high = ends
    return f"{name} = {mean:.3g} ({low:.3g} to {high:.3g})"


def ends_json(ends: Ends) -> dict[str, dict[str, float]]:
    """Return the temperatures at the end of training as plain data."""
    return {name: {"mean": mean, "low": low, "high": high} for name, (mean, low, high) in ends.items()}
