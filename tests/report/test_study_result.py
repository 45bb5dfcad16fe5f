"""StudyResult at every stage of a study, and the data of ``tempopt show --json``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tempopt.errors import StudyNotFound
from tempopt.report.study_result import load
from tempopt.storage.changes import ClaimRequest, RunEnded, RunOutcome
from tempopt.storage.opening import open_store
from tempopt.storage.rows import KINDS, NewTicket, TicketRow

TEST = ("gain", "ci_low", "ci_high", "p_value")
ANSWER = (*TEST, "significant")
RATIO = ("ratio", "low", "high")
TUNED = dict.fromkeys(("plan", *ANSWER, "curve"))
RATE = ("failed", "runs", "low", "high")
CONSTANTS = ("against_constant", "over_constant", "over_constant_twin")
DOCUMENTED: dict[str, Any] = {
    **dict.fromkeys(("study", "metric", "direction", "state", "agents")),
    "tickets": {kind: ("requested", "done", "running", "waiting", "failed", "withdrawn") for kind in KINDS},
    "trials": ("complete", "pruned", "diverged", "failed", "running"),
    "baseline": ("mean", "sd", "n"),
    "best": ("number", "value", "params"),
    "decision": (
        *("outcome", "metric", "before", "after", "change", "low", "high", "p_value"),
        *("confidence", "seeds", "use", "params", "baseline", "about", "earlier_seeds", "untested", "also"),
    ),
    "findings": None,
    "verdict": {
        "recommendation": (
            *("action", "why", "now", "stays_valid", "params", "at_inference", "gain", "winner_over_it"),
            *("min_gain", "excluded_above", "pairs", "widen", "passed_over"),
        ),
        **dict.fromkeys((*ANSWER, "confidence", "n_pairs", "params", "confirmed_on")),
        **dict.fromkeys(("round", "looks", "alpha")),
        "over_baseline": ANSWER,
        "baseline_params": None,
        "over_twin": ANSWER,
        "twin_params": None,
        **dict.fromkeys(CONSTANTS, ANSWER),
        **dict.fromkeys(("constant_params", "constant_twin_params")),
        "inference_only": {**TUNED, "share": RATIO, "twin": TUNED, "winner": TUNED, "difference": ANSWER},
        "learned": {
            **dict.fromkeys(ANSWER),
            "share": RATIO,
            "winner_over_it": ANSWER,
            **dict.fromkeys(("params", "lr_ratio", "at_end")),
        },
        **dict.fromkeys(("controlled_at_end", "not_learned", "parts")),
        "simplest": {
            **dict.fromkeys(("parts", "params", "holds")),
            "over_baseline": ANSWER,
            "lost": ANSWER,
            "kept": TEST,
        },
        "failures": {"arm": RATE, "reference": RATE, "p_value": None},
        **dict.fromkeys(("unvaried", "guards", "guards_kept")),
    },
    "comparison": None,
    "cost": ("train_seconds", "checkpoint_seconds", "gpu_seconds", "peak_memory"),
    **dict.fromkeys(("alone", "codes", "heads", "ledger", "earlier_verdicts")),
}


def keys_match(data: Any, documented_keys: Any) -> bool:
    if data is None or documented_keys is None:
        return True
    if isinstance(documented_keys, tuple):
        return tuple(data) == documented_keys
    return tuple(data) == tuple(documented_keys) and all(
        keys_match(data[k], documented_keys[k]) for k in documented_keys
    )


def test_a_study_that_has_done_nothing_knows_nothing(
    make_spec: Any, make_ticket: Any, result_of: Any
) -> None:
    waiting = [make_ticket(kind, 0, state="waiting") for kind in ("baseline", "constant", "search")]
    data = result_of(make_spec(), waiting).to_json()
    assert keys_match(data, DOCUMENTED)
    assert data["baseline"] is data["best"] is data["verdict"] is None
    zero_counts = {"done": 0, "running": 0, "failed": 0, "withdrawn": 0}
    assert data["tickets"]["search"] == {"requested": 1, "waiting": 1, **zero_counts}
    assert data["tickets"]["choose"]["requested"] is None
    assert data["trials"] == {"complete": 0, "pruned": 0, "diverged": 0, "failed": 0, "running": 0}
    seconds = {"train_seconds": 6.0, "checkpoint_seconds": 0.0}
    assert data["cost"] == {**seconds, "gpu_seconds": None, "peak_memory": None}
    assert data["alone"] == []
    assert (data["state"], data["agents"]) == ("waiting", 0)


def test_trials_are_counted_by_their_end(make_spec: Any, make_ticket: Any, result_of: Any) -> None:
    search = [
        make_ticket("search", 0, 0.7),
        make_ticket("search", 1, 0.9, trial_number=5),
        make_ticket("search", 2, 0.95, outcome="pruned", seconds=2.0, steps=4, total_steps=10),
        make_ticket("search", 3, None, outcome="diverged"),
        make_ticket("search", 4, None, state="failed", outcome="failed"),
        make_ticket("search", 5, None, state="running"),
        make_ticket("search", 6, None, state="waiting"),
        make_ticket("search", 7, 0.1, outcome="pruned", steps=None),
    ]
    result = result_of(make_spec(), search)
    assert result.trials == {"complete": 2, "pruned": 2, "diverged": 1, "failed": 1, "running": 1}
    assert result.best is not None and (result.best.number, result.best.value) == (5, 0.9)
    assert result.tickets["search"].requested == 8
    loss = result_of(make_spec(direction="minimize"), search).best
    assert loss is not None and loss.value == 0.7


def test_a_finished_study_has_its_answers(
    make_spec: Any, whole_study: list[TicketRow], result_of: Any, measure_baseline: Any
) -> None:
    spec = make_spec()
    result = result_of(spec, whole_study, measure_baseline(whole_study), state="done")
    data = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert keys_match(data, DOCUMENTED)
    verdict = data["verdict"]
    assert verdict["significant"] is True
    assert verdict["gain"] == pytest.approx(0.1 * 1.015)
    assert verdict["params"] == result.winner == {"temperature_init": 5.0}
    assert (verdict["n_pairs"], verdict["confirmed_on"]) == (4, "test")
    # the winner is a constant itself
    assert verdict["against_constant"] is verdict["over_constant"] is verdict["constant_params"] is None
    assert verdict["inference_only"]["share"]["ratio"] == pytest.approx(0.3)
    assert verdict["inference_only"]["winner"]["plan"] == "as trained"
    assert verdict["inference_only"]["difference"]["gain"] == pytest.approx(0.07 * 1.015)
    levels = [float(plan.removeprefix("constant=")) for plan in list(verdict["inference_only"]["curve"])[:-2]]
    assert levels == sorted(levels) and min(levels) < 1 and max(levels) > 10
    assert list(verdict["inference_only"]["curve"])[-2:] == ["as trained", "winner"]
    assert (verdict["alpha"], verdict["confidence"]) == (0.05, 0.95)
    assert verdict["baseline_params"] == verdict["twin_params"] == {"temperature_init": 1.0}
    assert (verdict["parts"], verdict["simplest"], verdict["failures"]) == ([], None, None)
    assert verdict["constant_twin_params"] is None
    assert verdict["learned"] is None
    assert data["tickets"]["confirm"]["requested"] == 8
    assert data["tickets"]["ablation"]["requested"] == 0
    kinds = [finding["kind"] for finding in data["findings"]]
    assert kinds[0] == "decision" and kinds[-1] == "cost"
    assert data["findings"][0]["gain"] == verdict["gain"] and data["findings"][0]["state"] == "shown"
    assert data["decision"]["outcome"] == "gain" and data["decision"]["change"] == verdict["gain"]


def test_what_was_withdrawn_is_neither_waiting_nor_to_come(
    make_spec: Any, make_ticket: Any, result_of: Any
) -> None:
    tickets = [make_ticket("search", 0, 0.5)]
    tickets += [make_ticket("search", number, state="withdrawn") for number in (1, 2)]
    result = result_of(make_spec(), tickets, state="done")
    count = result.tickets["search"]
    assert (count.requested, count.done, count.withdrawn) == (3, 1, 2)
    assert count.waiting == count.running == count.failed == 0
    assert sum(result.trials.values()) == 1
    assert result.tickets["confirm"].requested == 0


def test_a_study_is_loaded_from_the_store(make_spec: Any, tmp_path: Path) -> None:
    spec = make_spec()
    with open_store(f"sqlite:///{tmp_path / 'store.db'}") as store:
        row = store.create_study("pairs", spec.to_json(), spec.identity())
        store.add_tickets(row.id, [NewTicket(kind="baseline", arm="baseline", number=0, seed=3)])
        ticket = store.take_ticket(
            row.id, "here", ClaimRequest(max_number_by_kind={"baseline": None}, lease=60.0, max_attempts=3)
        )
        assert ticket is not None
        store.begin(ticket.id, ticket.attempt, {"temperature_init": 1.0}, {}, None)
        assert (load(store, "pairs").state, load(store, "pairs").agents) == ("running", 1)
        outcomes = RunOutcome(outcome="complete", value=0.25, steps=10, seconds=1.5, checkpoint_seconds=0.5)
        end_change = RunEnded(ticket_id=ticket.id, attempt=ticket.attempt, outcomes=outcomes)
        store.write(row.id, [end_change], agent="here", lease=60.0)
        result = load(store, "pairs")
        assert (result.state, result.agents) == ("waiting", 0)
        assert result.cost.checkpoint_seconds == 0.5
        assert result.baseline is not None and result.baseline.mean == 0.25
        assert result.cost.train_seconds == 1.5
        with pytest.raises(StudyNotFound, match='Unknown study "pair"'):
            load(store, "pair")
