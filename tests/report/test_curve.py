"""The picture of one run: its data, the document that is drawn of it, and how Optuna opens it."""

from __future__ import annotations

import dataclasses
import io
import math
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import optuna
import pytest
from optuna.artifacts import download_artifact, get_all_artifact_meta
from optuna.artifacts.exceptions import ArtifactNotFound

from tempopt.records.changes import Began, Ended, Outcomes, Reported, Wanted
from tempopt.records.rows import NewTicket, RunRow, TrialParam
from tempopt.report.dashboard.artifacts import Curves
from tempopt.report.dashboard.run_curve import RunCurve, run_curve
from tempopt.report.dashboard.run_curve_svg import draw
from tempopt.store.artifacts import curve_id
from tempopt.store.optuna_calls import make_study
from tempopt.store.store import Store

SVG = "{http://www.w3.org/2000/svg}"
PARAMETERS = {"schedule": "linear", "temperature_init": 2.0, "temperature_final": 0.5}
X = '{"name": "FloatDistribution", "attributes": {"step": null, "low": 0.0, "high": 1.0, "log": false}}'
HOSTILE = "<script>alert(1)</script>&\"'" + "x" * 500


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(f"sqlite:///{tmp_path}/tempopt.db") as opened:
        yield opened


def run(
    store: Store, *, name: str = "pairs", end: str = "pruned", reports: dict[int, float], steps: int
) -> RunRow:
    """Return a run of a search ticket with a trial of 100 steps, as it has ended."""
    make_study(store.url, name=name, direction="maximize", metric=name)
    spec = {"study": {"name": name, "metric": name, "direction": "maximize"}}
    study = store.create_study(name, spec, "0")
    store.add_tickets(study.id, [NewTicket(kind="search", arm="search", number=7, seed=1)])
    ticket = store.take_ticket(study.id, "a", Wanted(limits={"search": None}, lease=60.0, max_attempts=3))
    assert ticket is not None
    params = [TrialParam(name="x", value=0.5, distribution=X)]
    store.begin(ticket.id, 1, PARAMETERS, {"x": 0.5}, params)
    value = None if end == "diverged" else 0.5
    outcomes = Outcomes(outcome=end, value=value, steps=steps, seconds=1.0, attributes={"tau_final": 0.5})  # type: ignore[arg-type]
    changes: list[Any] = [Began(ticket_id=ticket.id, attempt=1, total_steps=100, code="c")]
    changes += [Reported(ticket_id=ticket.id, attempt=1, step=s, value=v) for s, v in reports.items()]
    changes += [Ended(ticket_id=ticket.id, attempt=1, outcomes=outcomes)]
    assert store.write(study.id, changes, agent="a", lease=60.0).refused == {}
    found = store.run(ticket.id)
    assert found is not None
    return found


def test_the_data_are_the_reports_and_the_plan_over_the_steps(store: Store) -> None:
    curve = run_curve(run(store, reports={10: 0.25, 20: math.nan, 30: 0.5}, steps=30))
    assert (curve.name, curve.end, curve.steps, curve.total_steps) == ("search-7", "pruned", 30, 100)
    assert curve.values == ((10, 0.25), (30, 0.5))
    steps, temperatures = zip(*curve.temperatures["τ"], strict=True)
    assert (steps[0], steps[-1], len(steps)) == (0, 100, 101)
    # the last step is at progress 1, and so is what would come after it
    expected = [2.0 - 1.5 * min(step / 99, 1.0) for step in steps]
    assert temperatures == pytest.approx(expected)


def test_each_named_temperature_has_its_line_and_its_name_in_the_picture(store: Store) -> None:
    parameters = {"contrast.as_found": 0.5, "contrast.temperature_init": 0.1, "head.as_found": 2.0}
    found = run(store, reports={}, steps=30)
    ticket = dataclasses.replace(found.ticket, parameters=parameters)
    curve = run_curve(dataclasses.replace(found, ticket=ticket))
    levels = {name: {level for _, level in points} for name, points in curve.temperatures.items()}
    assert levels == {"contrast": {0.1}, "head": {2.0}}
    assert ">contrast  </tspan>" in draw(curve) and ">head</tspan>" in draw(curve) and "τ" not in draw(curve)
    del parameters["head.as_found"]
    alone = run_curve(dataclasses.replace(found, ticket=dataclasses.replace(ticket, parameters=parameters)))
    assert ">temperature contrast</text>" in draw(alone)


def test_a_long_run_is_thinned_and_one_that_never_began_has_a_picture_all_the_same(store: Store) -> None:
    one = run(store, end="diverged", reports={}, steps=0)
    assert run_curve(one).values == ()
    assert "nothing was reported" in draw(run_curve(one))
    assert "diverged before its first step" in draw(run_curve(one))


def _drawn(curve: RunCurve) -> ElementTree.Element:
    return ElementTree.fromstring(draw(curve))


def test_the_picture_is_a_document_with_both_curves_and_their_axes(store: Store) -> None:
    curve = run_curve(run(store, end="complete", reports={n: n / 100 for n in range(10, 101, 10)}, steps=100))
    root = _drawn(curve)
    assert root.tag == f"{SVG}svg"
    title = root.find(f"{SVG}title")
    assert title is not None and title.text == "search-7: complete after 100 of 100 steps"
    dots = [(float(c.attrib["cx"]), float(c.attrib["cy"])) for c in root.iter(f"{SVG}circle")]
    assert len(dots) == 10
    # more is further up, later is further right, and equal distances stay equal
    gaps = {(round(b[0] - a[0], 0), round(a[1] - b[1], 0)) for a, b in pairwise(dots)}
    assert len(gaps) == 1 and min(gaps.pop()) > 0
    texts = [each.text for each in root.iter(f"{SVG}text")]
    assert {"0", "20", "100", "0.5", "temperature τ", "training steps"} <= set(texts)


def test_what_people_wrote_is_text_and_nothing_else(store: Store) -> None:
    root = _drawn(run_curve(run(store, name=HOSTILE[:255], reports={10: 0.5}, steps=10)))
    assert {each.tag for each in root.iter()} <= {
        f"{SVG}{tag}" for tag in ("svg", "title", "rect", "text", "path", "circle")
    }
    assert any(
        (each.text or "").startswith("<script>alert(1)</script>&\"'") for each in root.iter(f"{SVG}text")
    )


def test_optuna_finds_the_picture_of_a_trial_that_has_ended_and_opens_it(
    store: Store, tmp_path: Path
) -> None:
    one = run(store, reports={10: 0.25, 30: 0.5}, steps=30)
    storage = optuna.storages.get_storage(store.url)
    (trial,) = optuna.load_study(study_name="pairs", storage=storage).get_trials()
    (meta,) = get_all_artifact_meta(trial, storage=storage)
    assert (meta.filename, meta.mimetype, meta.encoding) == ("curve.svg", "image/svg+xml", None)
    assert meta.artifact_id == curve_id(one.ticket.id)
    file = tmp_path / "curve.svg"
    download_artifact(artifact_store=Curves(store), file_path=str(file), artifact_id=meta.artifact_id)
    assert file.read_text(encoding="utf-8") == draw(run_curve(one))
    assert trial.user_attrs["tau_final"] == 0.5
    storage.remove_session()


def test_there_is_no_picture_of_what_is_not_there_and_no_place_for_what_others_keep(store: Store) -> None:
    one = run(store, reports={}, steps=1)
    store.delete_study("pairs")
    for artifact_id in (curve_id(one.ticket.id), "something else"):
        with pytest.raises(ArtifactNotFound):
            Curves(store).open_reader(artifact_id)
    with pytest.raises(NotImplementedError, match="keeps no artifacts of others"):
        Curves(store).write("x", io.BytesIO(b"x"))
    with pytest.raises(NotImplementedError, match="tempopt delete"):
        Curves(store).remove(curve_id(one.ticket.id))
