"""What a study says of its proxy, in plain words and as plain data; computes nothing."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tempopt.results.wording import baseline_name, duration, numbers, set_text, signed
from tempopt.spec.proxy import moved_names
from tempopt.statistics.paired_tests import PairedTest

if TYPE_CHECKING:
    from tempopt.confirmation.proxy_order import Finalist, ProxyOrder
    from tempopt.results.study_result import StudyResult
    from tempopt.spec.study_spec import StudySpec

_SCALE_FREE = "Schedules run by progress, layer and head patterns by the model's own layers and heads."
_TOLD = {"held": "held", "reversed": "reversed", "not_decided": "not decided"}


def proxy_sizes(spec: StudySpec) -> list[str]:
    """Return the sizes of a study's proxy and at full size, as far as they are known, and how τ goes over."""
    proxy = spec.study.proxy
    if proxy is None:
        return []
    sizes = [
        ", ".join(
            [
                *([f"{proxy.parameters[at]:,} parameters"] if proxy.parameters else []),
                *([f"{proxy.steps[at]} steps a run"] if proxy.steps else []),
            ]
        )
        for at in (0, 1)
    ]
    told = f": {sizes[0]}; at full size {sizes[1]}" if all(sizes) else ""
    return [f"The search trains a proxy ({_set(spec)}){told}.", f"From it to full size {_rule(spec)}."]


def _set(spec: StudySpec) -> str:
    assert spec.study.proxy is not None
    return ", ".join(f"{name}={_value(each)}" for name, each in spec.study.proxy.set.items())


def _value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _rule(spec: StudySpec) -> str:
    """Return how ln τ moves, as the end of a sentence."""
    proxy = spec.study.proxy
    assert proxy is not None
    if proxy.temperature == "same":
        return "temperatures stay as they are"
    if proxy.shift is None:
        return f"temperatures move by {proxy.temperature}, once its sizes are known"
    by = "as given"
    if isinstance(proxy.temperature, str):
        sizes = proxy.head_dim if proxy.temperature == "head_dim" else proxy.length
        assert sizes is not None
        by = f"{proxy.temperature}: {sizes[0]} to {sizes[1]}"
    shift, times = f"{proxy.shift:+.3g}".replace("-", "−"), math.exp(proxy.shift)
    return f"ln τ moves by {shift} ({by}), which multiplies temperatures by {times:.3g}"


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
    yield (
        f"searched and chosen on a proxy ({_set(spec)}), proved at full size. "
        "What only a larger model gains from, the proxy cannot find."
    )
    yield f"  from the proxy to full size {_rule(spec)}{_kept(result, found)}. {_SCALE_FREE}"
    if found.finalists:
        told = "; ".join(_finalist(each, result) for each in found.finalists)
        yield f"  compared at full size, in the order of the proxy: {told}."
    if found.order != "reversed":
        yield f"  {_order(result, found)}"
    yield f"  {_cost(found)}"


def _kept(result: StudyResult, found: ProxyOrder) -> str:
    """Return which values of the configuration the rule has moved, and which it has not."""
    if found.parameters is None:
        return ""
    moved, kept = moved_names(result.spec, found.parameters)
    texts = [f"moved: {', '.join(moved)}"] if moved else []
    texts += [f"taken over as they are: {', '.join(kept)}"] if kept else []
    return f" ({'; '.join(texts)})" if texts else ""


def _finalist(each: Finalist, result: StudyResult) -> str:
    what = baseline_name(result.spec) if each.at_one else set_text(each.parameters)
    full, small = ("no value" if value is None else f"{value:.4g}" for value in (each.full, each.proxy))
    return f"{what} {full} on {each.pairs} seeds (on the proxy {small})"


def _order(result: StudyResult, found: ProxyOrder) -> str:
    """Return what became of the order of the proxy, with the numbers."""
    baseline = baseline_name(result.spec)
    if found.parameters is None:
        return f"the order of the proxy at full size is not known yet: nothing is compared with {baseline}."
    small = "no two runs can be compared" if found.on_proxy is None else _told(found.on_proxy)
    if found.at_full is None:
        return f"the order of the proxy at full size is not known yet; over {baseline} on the proxy: {small}."
    where = "confirming pairs" if found.confirmed else "pairs of the transfer"
    return (
        f"the order of the proxy at full size: {_TOLD[found.order]}. {set_text(found.parameters)} over "
        f"{baseline}: on the proxy {small}, where it was chosen by these runs; at full size "
        f"{_told(found.at_full)}, {found.at_full.n_pairs} {where}."
    )


def _told(test: PairedTest) -> str:
    return f"{signed(test)} ({numbers(test)})"


def _cost(found: ProxyOrder) -> str:
    cost = found.cost
    shares = (
        f"{_percent(cost.full_steps)} of all steps and {_percent(cost.full_seconds)} of the training time"
    )
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
    moved, kept = ([], []) if found.parameters is None else moved_names(result.spec, found.parameters)
    return {
        "set": section.set,
        "rule": section.temperature,
        "shift_of_ln_tau": section.shift,
        "sizes": section.sizes,
        "moved": moved,
        "taken_over": kept,
        "order": found.order,
        "params": found.parameters,
        "confirmed": found.confirmed,
        "gain_on_proxy": _test_json(found.on_proxy),
        "gain_at_full": _test_json(found.at_full),
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
