"""What a study says of its proxies, in plain words and as plain data; computes nothing."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tempopt.results.wording import baseline_name, duration, numbers, set_text, signed
from tempopt.spec.model_sizes import full_size, moved_names, size_name, to_full, to_proxy
from tempopt.spec.size_race import FIRST_LARGER
from tempopt.statistics.paired_tests import PairedTest

if TYPE_CHECKING:
    from tempopt.confirmation.measured_shift import MeasuredShift
    from tempopt.confirmation.proxy_order import Finalist, ProxyOrder
    from tempopt.results.study_result import StudyResult
    from tempopt.spec.study_spec import StudySpec

_SCALE_FREE = "Schedules run by progress, layer and head patterns by the model's own layers and heads."
_TOLD = {"held": "held", "reversed": "reversed", "not_decided": "not decided"}


def _at(spec: StudySpec, size: int) -> str:
    return f"{'at' if size == full_size(spec) else 'on'} {size_name(spec, size)}"


def proxy_sizes(spec: StudySpec) -> list[str]:
    """Return what is known of the sizes of a study's proxies and at full size, and how τ goes over."""
    proxy = spec.study.proxy
    if proxy is None:
        return []
    told = [_size_text(spec, size) for size in range(full_size(spec) + 1)]
    if len(told) == 2:
        known = f": {told[0]}; at full size {told[1]}" if all(told) else ""
        return [
            f"The search trains a proxy ({_set(spec, 0)}){known}.",
            f"From it to full size {_rule(spec)}.",
        ]
    own = [f"({_set(spec, size)}){f': {text}' if text else ''}" for size, text in enumerate(told[:-1])]
    known = f"; at full size {told[-1]}" if told[-1] else ""
    return [
        f"The search trains proxy 1 {own[0]}. What it finds is compared on "
        f"{', '.join(f'proxy {size} {text}' for size, text in enumerate(own[1:], start=2))}{known}.",
        f"From each size to the next {_rule(spec)}.",
    ]


def _size_text(spec: StudySpec, size: int) -> str:
    """Return how large a size is, as far as it is known."""
    proxy = spec.study.proxy
    assert proxy is not None
    texts = [f"{proxy.parameters[size]:,} parameters"] if proxy.parameters else []
    return ", ".join([*texts, *([f"{proxy.steps[size]} steps a run"] if proxy.steps else [])])


def _set(spec: StudySpec, size: int) -> str:
    assert spec.study.proxy is not None
    return ", ".join(f"{name}={_value(each)}" for name, each in spec.study.proxy.sets[size].items())


def _value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _rule(spec: StudySpec) -> str:
    """Return how ln τ moves, as the end of a sentence."""
    proxy = spec.study.proxy
    assert proxy is not None
    if proxy.temperature == "same":
        return "temperatures stay as they are"
    if proxy.is_unmeasured:
        tried = ", ".join(map(shift_text, proxy.shifts_to_try))
        return f"ln τ moves by the shift that runs show to be best: {tried} or 0"
    if proxy.temperature == "measured" and not any(proxy.shifts or ()):
        return "temperatures stay as they are (measured)"
    if proxy.shifts is None:
        return f"temperatures move by {proxy.temperature}, once its sizes are known"
    by = "measured" if proxy.temperature == "measured" else "as given"
    if proxy.temperature in ("head_dim", "length"):
        sizes = proxy.head_dim if proxy.temperature == "head_dim" else proxy.length
        assert sizes is not None
        by = f"{proxy.temperature}: {' to '.join(map(str, sizes))}"
    shifts = ", ".join(map(shift_text, proxy.shifts))
    times = math.exp(sum(proxy.shifts))
    together = "together " if len(proxy.shifts) > 1 else ""
    return f"ln τ moves by {shifts} ({by}), which {together}multiplies temperatures by {times:.3g}"


def shift_text(shift: float) -> str:
    """Return a shift of ln τ with its sign."""
    return f"{shift:+.3g}".replace("-", "−") if shift else "0"


def reversed_line(result: StudyResult) -> str | None:
    """Return that the order of the proxy is reversed at full size, for the first lines; None: it is not."""
    found = result.proxy
    if found is None or found.order != "reversed":
        return None
    return f"The proxy misled: {_order(result, found)}"


def advice(result: StudyResult) -> str:
    """Return a sentence on the proxy for the recommendation; empty unless its order is reversed."""
    if result.proxy is None or result.proxy.order != "reversed":
        return ""
    largest = result.proxy.largest
    if largest < full_size(result.spec):
        where = size_name(result.spec, largest)
        return f" What gains on a smaller proxy loses on {where}: search on that, or at full size."
    return " What gains on the proxy loses at full size: search at full size, or on a larger proxy."


def not_held(result: StudyResult) -> Iterator[str]:
    """Yield that the order of the proxy is not shown to hold at full size; nothing where it is."""
    if result.proxy is not None and result.proxy.order != "held":
        yield _order(result, result.proxy)


def proxy_lines(result: StudyResult) -> list[str]:
    """Return what a study says of its proxy, one statement a line; none where it has none."""
    return [] if result.proxy is None else list(_lines(result, result.proxy))


def _lines(result: StudyResult, found: ProxyOrder) -> Iterator[str]:
    spec = result.spec
    full = full_size(spec)
    sets = "; ".join(_set(spec, size) for size in range(full))
    which = f"the smallest of {full} proxies" if full > 1 else "a proxy"
    yield (
        f"searched and chosen on {which} ({sets}), proved at full size. "
        "What only a larger model gains from, the proxy cannot find."
    )
    where = "from each size to the next" if full > 1 else "from the proxy to full size"
    assert spec.study.proxy is not None
    rule = _rule(spec)
    if spec.study.proxy.is_unmeasured and result.verdict is not None:
        rule = "no shift of ln τ was measured, since no winner of the search was compared"
    yield f"  {where} {rule}{_kept(result, found)}. {_SCALE_FREE}"
    if found.shift is not None:
        yield f"  {_measured(spec, found.shift)}"
    for size in range(1, full + 1):
        if told := [_finalist(each, result) for each in found.finalists if each.size == size]:
            order = size_name(spec, size - 1)
            yield f"  compared {_at(spec, size)}, in the order of {order}: {'; '.join(told)}."
    if found.order != "reversed":
        yield f"  {_order(result, found)}"
    yield f"  {_cost(spec, found)}"


def _measured(spec: StudySpec, found: MeasuredShift) -> str:
    """Return how the shift of ln τ was measured."""
    means = [(each, "no value" if each.value is None else f"{each.value:.4g}") for each in found.tried]
    told = [f"{shift_text(each.shift)} {mean} on {each.pairs} seeds" for each, mean in means]
    text = f"shift of ln τ of the winner of the search, {_at(spec, FIRST_LARGER)}: {'; '.join(told)}"
    if found.gain is None:
        return f"{text}."
    over = shift_text(found.shift) if found.shift else "The best of the others"
    known = "shown" if found.told_apart else "not shown"
    return f"{text}. {over} over 0: {_told(found.gain)}, a difference that is {known}."


def _kept(result: StudyResult, found: ProxyOrder) -> str:
    """Return which values of the configuration the rule has moved, and which it has not."""
    if found.parameters is None:
        return ""
    moved, kept = _moved(result.spec, found)
    texts = [f"moved: {', '.join(moved)}"] if moved else []
    texts += [f"taken over as they are: {', '.join(kept)}"] if kept else []
    return f" ({'; '.join(texts)})" if texts else ""


def _moved(spec: StudySpec, found: ProxyOrder) -> tuple[list[str], list[str]]:
    if found.parameters is None:
        return [], []
    at_full = to_full(spec, to_proxy(spec, found.parameters, found.largest))
    return moved_names(spec, at_full)


def _finalist(each: Finalist, result: StudyResult) -> str:
    what = baseline_name(result.spec) if each.at_one else set_text(each.parameters)
    value, before = ("no value" if known is None else f"{known:.4g}" for known in (each.value, each.before))
    whence = "named for full size" if each.named else f"{_at(result.spec, each.size - 1)} {before}"
    return f"{what} {value} on {each.pairs} seeds ({whence})"


def _order(result: StudyResult, found: ProxyOrder) -> str:
    """Return what became of the order of each proxy, with the numbers."""
    spec, baseline = result.spec, baseline_name(result.spec)
    whose = "the proxy" if full_size(spec) == 1 else "the proxies"
    if found.parameters is None:
        return f"the order of {whose} at full size is not known yet: nothing is compared with {baseline}."
    gains = [
        f"{_at(spec, size)} {'no two runs can be compared' if each.gain is None else _told(each.gain)}"
        for size, each in enumerate(found.sizes)
    ]
    if found.at_largest is None:
        known = "; ".join(gains).removeprefix("on the proxy ")
        where = " on the proxy" if full_size(spec) == 1 else ""
        return f"the order of {whose} at full size is not known yet; over {baseline}{where}: {known}."
    gains[0] += ", where it was chosen by these runs"
    where = "confirming pairs" if found.confirmed else "pairs of the transfer"
    last = f"{_at(spec, found.largest)} {_told(found.at_largest)}, {found.at_largest.n_pairs} {where}"
    return (
        f"{_orders(spec, found)}. {set_text(found.parameters)} over {baseline}: {'; '.join([*gains, last])}."
        f"{_stopped(spec, found)}"
    )


def _orders(spec: StudySpec, found: ProxyOrder) -> str:
    """Return of each proxy whether its order held, as the beginning of a sentence."""
    told = [f"{size_name(spec, size)}: {_TOLD[each.order]}" for size, each in enumerate(found.sizes)]
    if full_size(spec) == 1:
        return f"the order of the proxy at full size: {_TOLD[found.order]}"
    return f"the order {_at(spec, found.largest)}, of {'; of '.join(told)}"


def _stopped(spec: StudySpec, found: ProxyOrder) -> str:
    if found.largest == full_size(spec):
        return ""
    return (
        f" There {baseline_name(spec)} alone was left, so that nothing was compared with it at a larger size."
    )


def _told(test: PairedTest) -> str:
    return f"{signed(test)} ({numbers(test)})"


def _cost(spec: StudySpec, found: ProxyOrder) -> str:
    cost = found.cost
    shares = f"{_percent(cost.steps[-1])} of all steps and {_percent(cost.shares[-1])} of the training time"
    if full_size(spec) > 1:
        own = [f"{_percent(share)} on {size_name(spec, at)}" for at, share in enumerate(cost.shares[:-1])]
        shares += f", {', '.join(own)}"
    if cost.searched_at_full is None:
        return f"at full size: {shares}."
    times = cost.searched_at_full / cost.seconds if cost.seconds else 1.0
    return (
        f"at full size: {shares}. The same runs with the search at full size: about "
        f"{duration(cost.searched_at_full)}, {times:.2g} times as much."
    )


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def proxy_json(result: StudyResult) -> dict[str, Any] | None:
    """Return the same as the data of ``tempopt show --json``; None without a proxy."""
    found, section = result.proxy, result.spec.study.proxy
    if found is None or section is None:
        return None
    moved, kept = _moved(result.spec, found)
    return {
        "sets": section.sets,
        "rule": section.temperature,
        "shifts_of_ln_tau": None if section.is_unmeasured else section.shifts,
        "sizes": section.sizes,
        "moved": moved,
        "taken_over": kept,
        "order": found.order,
        "params": found.parameters,
        "confirmed": found.confirmed,
        "compared_at": found.largest,
        "proxies": [{"order": each.order, "gain": _test_json(each.gain)} for each in found.sizes],
        "gain": _test_json(found.at_largest),
        "measured_shift": found.shift
        and {
            **dataclasses.asdict(found.shift),
            "gain": _test_json(found.shift.gain),
        },
        "finalists": [dataclasses.asdict(each) for each in found.finalists],
        "cost": dataclasses.asdict(found.cost),
    }


def _test_json(test: PairedTest | None) -> dict[str, Any] | None:
    if test is None:
        return None
    ends = {name: getattr(test, name) for name in ("ci_low", "ci_high")}
    return {
        "gain": test.gain,
        **{name: value if math.isfinite(value) else None for name, value in ends.items()},
        "p_value": test.p_value,
        "n_pairs": test.n_pairs,
    }
