"""Agents that carry out a study with a proxy: which program a run gets, and what leaving and dying change."""

from __future__ import annotations

import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tempopt.agent.continuation import same_question
from tempopt.errors import SpecError, StudyChanged
from tempopt.records.rows import AT_PROXY
from tempopt.spec.model_sizes import size_of
from tempopt.spec.study_spec import StudySpec
from tempopt.store.store import Store
from tempopt.study.api import resume, search
from tests import fake_worker
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
)

FAR = 10.0


def proxied(**proxy: Any) -> dict[str, Any]:
    small = {"set": {"trainer.max_steps": 8}}
    return toy_spec(trials=6, seeds={"choose": 3, "confirm": 4}, proxy={**small, **proxy})


def moved(**changes: Any) -> dict[str, Any]:
    return proxied(temperature=0.5, **changes)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """The study as one agent carries it out when nothing happens to it."""
    with pytest.MonkeyPatch.context() as patch:
        fake_worker.install(patch)
        return undisturbed_study(tmp_path_factory.mktemp("alone"), moved)


@pytest.mark.usefixtures("fake_workers")
def test_one_worker_serves_both_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    value_at = fake_worker.value_at

    def told(request: Any, step: int, salt: str = "") -> float:
        return value_at(request, step, salt) + FAR * (request.program.trainer["max_steps"] == 8)

    monkeypatch.setattr(fake_worker, "value_at", told)
    result = search(moved(), storage=URL, workers=1)
    complete = [t for t in result.runs if t.outcome == "complete" and t.value is not None]
    assert {t.kind for t in complete} >= {"baseline", "search", "choose", "transfer", "confirm"}
    assert all((t.value > FAR) == (t.kind in AT_PROXY) for t in complete if t.value is not None)
    assert result.proxy is not None and result.verdict is not None


@pytest.mark.usefixtures("fake_workers")
def test_a_study_that_is_left_in_the_search_and_in_the_transfer_is_the_same(alone: Ended) -> None:
    begun(moved(), when=lambda snapshot: snapshot.done["search"] >= 3)
    begun(moved(), when=lambda snapshot: snapshot.done["transfer"] >= 1)
    kinds = {t.kind for t in tickets() if t.state == "waiting"}
    assert kinds == {"transfer"}
    again = ended(resume("toy", storage=URL, workers=1))
    assert same(again, alone)
    assert again.result.verdict == alone.result.verdict
    assert again.result.proxy is not None and alone.result.proxy is not None
    assert again.result.proxy.at_largest == alone.result.proxy.at_largest


def test_whoever_writes_the_same_spec_again_goes_on_with_the_sizes_that_were_found() -> None:
    spec = StudySpec.parse(proxied(temperature="head_dim"), source="the test")
    found = spec.with_found({}, sizes={"head_dim": [2, 8], "steps": [8, 24], "parameters": [63, 171]})
    row = SimpleNamespace(name="toy", spec=found.to_json(), amendments=None)
    assert same_question(row, spec) == found  # type: ignore[arg-type]
    other = StudySpec.parse(proxied(temperature="head_dim", head_dim=[2, 16]), source="the test")
    with pytest.raises(StudyChanged, match=r"study.proxy.head_dim: was \[2, 8\], now \[2, 16\]"):
        same_question(row, other)  # type: ignore[arg-type]


@pytest.mark.long
@pytest.mark.usefixtures("fake_workers")
def test_a_study_whose_agent_is_killed_goes_on_to_the_same_bits(alone: Ended, tmp_path: Path) -> None:
    process = start(moved(), tmp_path, fake=True)
    wait_until(lambda rows: any(t.kind == "transfer" and t.state == "running" for t in rows))
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=240)
    again = ended(resume("toy", storage=URL, workers=1))
    assert (again.facts, again.reports) == (alone.facts, alone.reports)
    assert again.result.verdict == alone.result.verdict


def in_sizes(**changes: Any) -> dict[str, Any]:
    sets = [{"trainer.max_steps": 8}, {"trainer.max_steps": 16}]
    return proxied(set=sets, temperature=[0.3, 0.2], **changes)


@pytest.mark.usefixtures("fake_workers")
def test_each_size_trains_its_own_program(monkeypatch: pytest.MonkeyPatch) -> None:
    value_at, far = fake_worker.value_at, {8: 2 * FAR, 16: FAR, 24: 0.0}

    def told(request: Any, step: int, salt: str = "") -> float:
        return value_at(request, step, salt) + far[request.program.trainer["max_steps"]]

    monkeypatch.setattr(fake_worker, "value_at", told)
    result = search(in_sizes(), storage=URL, workers=1)
    complete = [t for t in result.runs if t.outcome == "complete" and t.value is not None]
    assert {size_of(t, result.spec) for t in complete if t.kind == "transfer"} >= {1}
    assert all(2 - size_of(t, result.spec) == t.value // FAR for t in complete if t.value is not None)


@pytest.fixture(scope="module")
def alone_in_sizes(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """The study with a size in between as one agent carries it out when nothing happens to it."""
    with pytest.MonkeyPatch.context() as patch:
        fake_worker.install(patch)
        return undisturbed_study(tmp_path_factory.mktemp("sizes"), in_sizes)


@pytest.mark.usefixtures("fake_workers")
def test_a_study_that_is_left_at_the_size_in_between_is_the_same(alone_in_sizes: Ended) -> None:
    begun(in_sizes(), when=lambda snapshot: snapshot.done["transfer"] >= 1)
    assert {t.size for t in tickets() if t.state == "waiting"} == {1}
    again = ended(resume("toy", storage=URL, workers=1))
    assert same(again, alone_in_sizes)
    assert again.result.proxy is not None and alone_in_sizes.result.proxy is not None
    assert again.result.proxy.finalists == alone_in_sizes.result.proxy.finalists
    assert again.result.verdict == alone_in_sizes.result.verdict


@pytest.mark.long
@pytest.mark.usefixtures("fake_workers")
def test_a_study_whose_agent_is_killed_between_sizes_goes_on_to_the_same_bits(
    alone_in_sizes: Ended, tmp_path: Path
) -> None:
    process = start(in_sizes(), tmp_path, fake=True)
    wait_until(lambda rows: any(t.size == 1 and t.state == "running" for t in rows))
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=240)
    again = ended(resume("toy", storage=URL, workers=1))
    assert (again.facts, again.reports) == (alone_in_sizes.facts, alone_in_sizes.reports)
    assert again.result.verdict == alone_in_sizes.result.verdict


@pytest.mark.usefixtures("fake_workers")
def test_a_rule_whose_size_nobody_finds_is_refused_before_anything_is_written() -> None:
    # workers that train nothing see no heads
    with pytest.raises(SpecError, match=r"could not see one dimension.*as in head_dim: \[8, 32\]"):
        search(proxied(temperature="head_dim"), storage=URL, workers=1)
    with Store.open(URL) as store:
        assert store.list_studies() == []
