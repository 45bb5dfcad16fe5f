"""Where learned and controlled temperatures ended, in plain words and as plain data."""

from __future__ import annotations

from tempopt.confirmation.learned import Learned
from tempopt.confirmation.measured_ends import Ends
from tempopt.temperature import PER_HEAD

_NAMED = 4


def rate_text(found: Learned) -> str:
    """Return how fast the temperatures were learned."""
    times = "the" if found.lr_ratio == 1 else f"{found.lr_ratio:.4g} times the"
    each = "one for each head, " if found.params.get(PER_HEAD) else ""
    return f"{each}with {times} learning rate of the weights"


def ends_text(ends: Ends) -> str:
    """Return where the temperatures ended, in the geometric mean over the runs, and from which to which."""
    places = {name: each for name, each in ends.items() if place_of(name)}
    named = {name: each for name, each in ends.items() if name not in places}
    told = [_end(name, each) for name, each in named.items()]
    if len(places) <= _NAMED:
        told += [_end(f"τ of {place_of(name)}", each) for name, each in places.items()]
    else:
        low, high = (pick(places, key=lambda name: places[name][0]) for pick in (min, max))
        both = (f"{places[name][0]:.3g} in {place_of(name)}" for name in (low, high))
        told.append(f"τ from {' to '.join(both)}")
    return f"at the end of training {', '.join(told) or 'not measured'}"


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
