"""Real studies that search on a proxy: both programs are trained, whatever happens to the agents."""

from __future__ import annotations

import html
import json
import math
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tempopt import cli
from tempopt.errors import SpecError
from tempopt.records.rows import AT_PROXY
from tempopt.results.verdict_text import verdict_lines
from tempopt.spec.model_sizes import size_of
from tempopt.study.api import check, resume, search
from tempopt.temperature import is_neutral
from tests.toy_study import (
    URL,
    Ended,
    begun,
    ended,
    same,
    start,
    tickets,
    toy_spec,
    undisturbed_study,
    wait_until,
    work_in,
)

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore:GPU available but not used:UserWarning")]
STEPS = {True: 8, False: 24}


def proxied(init: dict[str, Any] | None = None, **proxy: Any) -> dict[str, Any]:
    """Return a toy study whose proxy is narrower, shorter and has smaller batches."""
    small = {"trainer.max_steps": STEPS[True], "model.width": 2, "data.batch_size": 3}
    # the best temperature goes over by the rule, as the heads of the proxy are a quarter as wide
    spec = toy_spec(
        init=init or {"small_best": 2.0, "best": 4.0},
        trials=6,
        seeds={"choose": 3, "confirm": 4},
        proxy={"temperature": "head_dim"} | ({"set": small} | proxy),
    )
    spec["model"]["class_path"] = "sized_modules.Sized"
    return spec


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    return undisturbed_study(tmp_path_factory.mktemp("undisturbed"), proxied)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work_in(tmp_path, monkeypatch)


def test_what_searches_trains_the_proxy_and_what_proves_is_at_full_size(undisturbed: Ended) -> None:
    result = undisturbed.result
    assert {t.total_steps for t in result.runs if t.kind in AT_PROXY} == {STEPS[True]}
    assert {t.total_steps for t in result.runs if t.kind not in AT_PROXY} == {STEPS[False]}
    assert {"transfer", "confirm"} <= {t.kind for t in result.runs}
    proxy = result.spec.study.proxy
    # q and k of 8 × width weights and width biases, and a head of 27
    assert proxy is not None and proxy.sizes == {
        "head_dim": [2, 8],
        "steps": [8, 24],
        "parameters": [2 * 9 * 2 + 27, 2 * 9 * 8 + 27],
    }
    assert result.proxy is not None and result.proxy.order == "held"
    searched_for, confirmed = (
        {t.parameters["temperature_init"] for t in result.runs if t.kind == kind and t.arm == "search"}
        for kind in ("choose", "confirm")
    )
    assert {each / 2 for each in confirmed} <= searched_for


def test_a_study_that_is_killed_and_left_goes_on_to_the_same_bits(undisturbed: Ended, tmp_path: Path) -> None:
    process = start(proxied(), tmp_path)
    wait_until(lambda rows: any(t.kind == "search" and t.state == "done" for t in rows))
    os.kill(process.pid, signal.SIGKILL)
    process.wait(timeout=60)
    begun(proxied(), when=lambda snapshot: snapshot.done["transfer"] >= 1)
    assert not any(t.kind == "confirm" for t in tickets())
    again = ended(resume("toy", storage=URL, workers=1))
    assert same(again, undisturbed)
    assert again.result.proxy is not None and undisturbed.result.proxy is not None
    assert again.result.proxy.at_largest == undisturbed.result.proxy.at_largest


def measuring() -> dict[str, Any]:
    """Return the same study that measures the shift of ln τ, of which it tries the right one."""
    spec = proxied(temperature="measured", try_shifts=[-0.4, math.log(2.0)])
    spec["study"]["enqueue"] = [{"temperature_init": 2.0, "temperature_final": 2.0, "schedule": "constant"}]
    return spec


def test_a_shift_is_measured_to_the_same_bits_where_the_race_is_killed(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    whole = undisturbed_study(tmp_path / "whole", measuring)
    result = whole.result
    assert result.proxy is not None and result.proxy.shift is not None
    assert result.proxy.shift.shift == math.log(2.0) and result.proxy.order == "held"
    small = {t.parameters["temperature_init"] for t in result.runs if t.kind in AT_PROXY and t.parameters}
    (confirmed,) = {
        t.parameters["temperature_init"] for t in result.runs if t.kind == "confirm" and t.arm == "search"
    }
    assert any(confirmed == pytest.approx(2.0 * each) for each in small)
    process = start(measuring(), tmp_path)
    wait_until(lambda rows: any(t.kind == "transfer" and t.state in ("running", "done") for t in rows))
    os.kill(process.pid, signal.SIGKILL)
    process.wait(timeout=60)
    again = ended(resume("toy", storage=URL, workers=1))
    assert same(again, whole) and again.result.proxy is not None
    assert again.result.proxy.shift == result.proxy.shift


def test_a_planted_reversal_is_found_out_and_said(capsys: pytest.CaptureFixture[str]) -> None:
    # colder is better on the proxy, and hotter at full size
    spec = proxied({"best": 2.0}, temperature="same")
    spec["study"]["enqueue"] = [{"temperature_init": 0.5, "temperature_final": 0.5, "schedule": "constant"}]
    result = search(spec, storage=URL, workers=1)
    assert result.proxy is not None and result.proxy.order == "reversed"
    _, second, todo, *_ = verdict_lines(result)
    assert second.startswith("  The proxy misled")
    # the planted metric reads the temperature, so that evaluating at another one gains, and training does not
    assert todo.startswith("  What to do: train as before, at τ = 1")
    assert result.recommendation is not None and result.recommendation.parameters["temperature_init"] == 1.0
    capsys.readouterr()
    assert cli.main(["show", "toy", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["proxy"]["order"] == "reversed"
    assert cli.main(["report", "toy", "-o", "-", "--plotlyjs", "cdn"]) == 0
    page = html.unescape(capsys.readouterr().out)
    assert cli.main(["show", "toy"]) == 0
    for text in (" ".join(page.split()), " ".join(capsys.readouterr().out.split())):
        assert "The proxy misled: the order of the proxy at full size: reversed." in text
        assert "loses at full size: search at full size, or on a larger proxy." in text


def in_sizes(init: dict[str, Any] | None = None, **proxy: Any) -> dict[str, Any]:
    """Return the same study with a size in between."""
    sets = [
        {"trainer.max_steps": 8, "model.width": 2, "data.batch_size": 3},
        {"trainer.max_steps": 16, "model.width": 4, "data.batch_size": 4},
    ]
    planted = {"small_best": 2.0, "middle_best": 2.0 * 2**0.5, "best": 4.0}
    return proxied(init or planted, set=sets, **proxy)


@pytest.fixture(scope="module")
def undisturbed_in_sizes(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    return undisturbed_study(tmp_path_factory.mktemp("sizes"), in_sizes)


def test_what_the_smallest_finds_goes_through_the_size_in_between(undisturbed_in_sizes: Ended) -> None:
    result = undisturbed_in_sizes.result
    proxy = result.spec.study.proxy
    assert proxy is not None and proxy.head_dim == [2, 4, 8] and proxy.steps == [8, 16, 24]
    steps = {
        size: {t.total_steps for t in result.runs if size_of(t, result.spec) == size} for size in range(3)
    }
    assert steps == {0: {8}, 1: {16}, 2: {24}}
    assert result.proxy is not None and [each.order for each in result.proxy.sizes] == ["held", "held"]


def test_a_study_that_is_killed_between_its_sizes_goes_on_to_the_same_bits(
    undisturbed_in_sizes: Ended, tmp_path: Path
) -> None:
    process = start(in_sizes(), tmp_path)
    wait_until(lambda rows: any(t.size == 1 and t.state in ("running", "done") for t in rows))
    os.kill(process.pid, signal.SIGKILL)
    process.wait(timeout=60)
    again = ended(resume("toy", storage=URL, workers=1))
    assert same(again, undisturbed_in_sizes)
    assert again.result.proxy is not None and undisturbed_in_sizes.result.proxy is not None
    assert again.result.proxy.sizes == undisturbed_in_sizes.result.proxy.sizes


def test_a_reversal_that_is_planted_at_the_size_in_between_ends_it_there() -> None:
    # colder is better on the smallest, and hotter from the size in between on
    spec = in_sizes({"best": 2.0, "middle_best": 2.0}, temperature="same")
    spec["study"]["enqueue"] = [{"temperature_init": 0.5, "temperature_final": 0.5, "schedule": "constant"}]
    result = search(spec, storage=URL, workers=1)
    assert result.proxy is not None and result.proxy.order == "reversed" and result.proxy.largest == 1
    at_full = [t for t in result.runs if size_of(t, result.spec) == 2]
    assert at_full and all(is_neutral(t.parameters or {}) for t in at_full)
    _, second, *_ = verdict_lines(result)
    assert second.startswith("  The proxy misled: the order on proxy 2, of proxy 1: reversed.")
    assert result.recommendation is not None and is_neutral(result.recommendation.parameters)


def test_the_dry_run_tries_each_size_and_names_the_one_that_fails() -> None:
    told: list[str] = []
    lines = "\n".join(check(in_sizes(), dry_run=True, told=told.append))
    assert "ln τ moves by +0.347, +0.347 (head_dim: 2 to 4 to 8)" in lines
    assert "proxy 2 (trainer.max_steps=16" in lines and "16 steps a run" in lines
    assert {each.split(":")[1].strip() for each in told if "proxy" in each} == {"proxy 1", "proxy 2"}
    spec = in_sizes()
    spec["study"]["proxy"]["set"][1]["model.widht"] = 2
    with pytest.raises(SpecError, match=r'(?s)The proxy \(study.proxy.set.1\).*"widht"'):
        check(spec)


def test_a_proxy_that_is_no_smaller_training_is_refused_with_both_sizes() -> None:
    larger = {"trainer.max_steps": 48, "model.width": 2}
    with pytest.raises(SpecError, match=r"proxy.set: .* 48 steps .* full size 24 .* no smaller"):
        check(proxied({"small_best": 2.0, "best": 4.0, "width": 2}, set=larger), dry_run=True)


def test_the_dry_run_tries_both_and_says_how_large_they_are() -> None:
    told: list[str] = []
    lines = "\n".join(check(proxied(), dry_run=True, told=told.append))
    assert "63 parameters, 8 steps a run; at full size 171 parameters, 24 steps a run" in lines
    assert "ln τ moves by +0.693 (head_dim: 2 to 8)" in lines
    assert sum("proxy: " in each for each in told) == len(told) / 2


def test_an_argument_that_the_class_does_not_have_is_told_of_the_proxy() -> None:
    spec = proxied()
    spec["study"]["proxy"]["set"]["model.widht"] = 2
    with pytest.raises(SpecError, match=r'(?s)The proxy \(study.proxy.set\).*"widht".*Did you mean "width"'):
        check(spec)
