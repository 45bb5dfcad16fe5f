"""A study that is there, and a spec that asks for it again: what of the spec is stored."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from tempopt.confirmation.explanation import explanation_tickets
from tempopt.errors import SpecError, UsageError
from tempopt.records.changes import Ended, Outcomes, Wanted
from tempopt.records.rows import KINDS, NewTicket, StudyRow, TicketRow
from tempopt.store.store import Store
from tempopt.study.enlarge import add_explanation, add_pairs, grow, grown, ordered
from tests.simulated import Simulated

LOGGER = {"class_path": "MLFlowLogger", "init_args": {"tracking_uri": "http://host/"}}
SECRET = {"class_path": "MLFlowLogger", "init_args": {"tracking_uri": "http://bob:hunter22@host/"}}


def test_a_logger_is_changed_in_what_is_stored_and_one_with_a_password_is_not_stored(
    make_spec: Any, tmp_path: Path
) -> None:
    began, changed, secret = (
        make_spec({"trainer": {"max_steps": 10, "logger": logger}}) for logger in (True, LOGGER, SECRET)
    )
    name = began.study.name
    with Store.open(f"sqlite:///{tmp_path / 'tempopt.db'}") as store:
        store.create_study(name, began.to_json(), began.identity())
        ordered(store, changed)
        assert store.load_study(name).spec["trainer"]["logger"] == LOGGER
        with pytest.raises(SpecError, match="holds a password or a key") as caught:
            ordered(store, secret)
        assert "hunter22" not in str(caught.value)
        assert store.load_study(name).spec["trainer"]["logger"] == LOGGER


@pytest.mark.parametrize(("pairs", "refused"), [(6, True), (7, False), (12, False)])
def test_more_trials_are_refused_where_their_verdict_could_show_nothing(
    make_spec: Any, tmp_path: Path, pairs: int, refused: bool
) -> None:
    # the level of a second verdict is 2.5 %: signs alone need 2^(1 - 7)
    assert 2.0**-6 < 0.025 < 2.0**-5
    study = Simulated(
        make_spec(trials=4, test="sign_flip", seeds={"confirm": pairs}), lambda t: t.seed % 997 / 997
    ).run()
    with Store.open(f"sqlite:///{tmp_path / 'tempopt.db'}") as store:
        row = began(store, study)
        if refused:
            with pytest.raises(UsageError, match=r"level is 2\.5 %.*takes 7 pairs"):
                grow(store, row, study.spec, 3)
            assert len(store.tickets(row.id)) == len(study.rows)
        else:
            grow(store, row, study.spec, 3)
            assert [t.round for t in store.tickets(row.id) if t.kind == "search"][-3:] == [1, 1, 1]


def began(store: Store, study: Simulated) -> StudyRow:
    """Put a study that is over into a store."""
    name = study.spec.study.name
    row = store.create_study(name, study.spec.to_json(), study.spec.identity())
    new = [
        NewTicket(**{field.name: getattr(t, field.name) for field in dataclasses.fields(NewTicket)})
        for t in study.rows
    ]
    store.add_tickets(row.id, new)
    everything = dict.fromkeys(KINDS)
    while True:
        wanted = Wanted(limits=everything, lease=60.0, max_attempts=3)
        taken = store.take_ticket(row.id, "here", wanted)
        if taken is None:
            return store.load_study(name)
        known = next(t for t in study.rows if (t.kind, t.number) == (taken.kind, taken.number))
        assert known.parameters is not None and known.value is not None
        if taken.parameters is None:
            store.begin(taken.id, taken.attempt, known.parameters, known.sampled or {}, None)
        outcomes = Outcomes(outcome="complete", value=known.value, steps=10, seconds=1.0)
        ended = Ended(ticket_id=taken.id, attempt=taken.attempt, outcomes=outcomes)
        store.write(row.id, [ended], agent="here", lease=60.0)


def test_pairs_are_added_to_a_verdict_and_only_to_one(make_spec: Any, tmp_path: Path) -> None:
    study = Simulated(make_spec(trials=4), lambda t: t.seed % 997 / 997)
    study.search()
    open_yet = Simulated(make_spec(name="open", trials=4), study.worth)
    open_yet.search()
    study.run()
    with Store.open(f"sqlite:///{tmp_path / 'tempopt.db'}") as store:
        unproved = began(store, open_yet)
        with pytest.raises(UsageError, match=r"3 pairs were to be added.*Let it come to a verdict first"):
            add_pairs(store, unproved, open_yet.spec, 3)
        row = began(store, study)
        add_pairs(store, row, study.spec, 0)
        assert len(store.tickets(row.id)) == len(study.rows)
        add_pairs(store, row, study.spec, 3)
        new = [t for t in store.tickets(row.id) if t.round == 1]
        assert {(t.kind, t.state) for t in new} == {("confirm", "waiting")}
        assert {t.pair for t in new} == {0, 1, 2}
        assert store.load_study("pairs").state == "running"


@pytest.mark.parametrize("asked", [{"more": 3}, {"pairs": 3}])
def test_the_share_of_the_next_verdict_is_told_where_one_was_spent(
    make_spec: Any, tmp_path: Path, asked: dict[str, int]
) -> None:
    study = Simulated(make_spec(trials=4), lambda t: t.seed % 997 / 997)
    study.search()
    open_yet = Simulated(make_spec(name="open", trials=4), study.worth)
    open_yet.search()
    study.run()
    with Store.open(f"sqlite:///{tmp_path / 'tempopt.db'}") as store:
        told: list[str] = []
        row, unproved = began(store, study), began(store, open_yet)
        grown(store, unproved, more=3, on_note=told.append)
        grown(store, row, on_note=told.append)
        assert told == []
        grown(store, row, on_note=told.append, **asked)
        share = "The next verdict has the level 2.5 %; the first had 5 %."
        assert told == [share]
        ordered(store, study.spec, more=2, on_note=told.append)
        assert told == [share, share]


def test_an_explanation_is_of_a_verdict_that_there_is_and_of_nothing_else(
    make_spec: Any, tmp_path: Path
) -> None:
    def worth(t: TicketRow) -> float:
        assert t.parameters is not None
        return float(t.seed % 97 / 9700 + (t.parameters["temperature_init"] != 1.0))

    study, open_yet = (Simulated(make_spec(name=name, trials=4), worth) for name in ("pairs", "open"))
    study.run()
    open_yet.search()
    with Store.open(f"sqlite:///{tmp_path / 'tempopt.db'}") as store:
        unproved = began(store, open_yet)
        with pytest.raises(
            UsageError, match=r"was to be explained.*Let it come to a verdict first: tempopt "
        ):
            add_explanation(store, unproved, open_yet.spec)
        row = began(store, study)
        for more in ({"more": 3}, {"pairs": 3}, {"retry_failed": True}):
            with pytest.raises(UsageError, match="An explanation is of the verdict that there is"):
                grown(store, row, explain=True, **more)
        assert len(store.tickets(row.id)) == len(study.rows)
        notes: list[str] = []
        store.set_state(row.id, "done")
        assert grown(store, row, explain=True, on_note=notes.append) == study.spec
        known = {(t.kind, t.number) for t in study.rows}
        added = [t for t in store.tickets(row.id) if (t.kind, t.number) not in known]
        (note,) = notes
        assert note.startswith(f"{len(added)} trainings begin to explain the verdict; at most ") and added
        study.rows = [dataclasses.replace(t, state="done") for t in study.rows]
        begun = len(study.rows)
        while tickets := explanation_tickets(study.rows, study.spec, is_requested=True):
            study.do(tickets)
        assert len(added) < len(study.rows) - begun <= int(note.removesuffix(" in all.").rpartition(" ")[2])
        assert {t.state for t in added} == {"waiting"} and store.load_study("pairs").state == "running"
