"""Finished studies for tests and benchmarks of the report: rows as agents write them, without any training.

The runs follow a small made-up world in which sharp attention late in training is good, so that plots have
something to show and what they should show is known.
"""

from __future__ import annotations

import base64
import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
from sqlalchemy import create_engine, insert

from tempopt.report.study_result import StudyResult, assemble
from tempopt.spec.study_spec import StudySpec
from tempopt.storage.models import ATTENTION_MAP, MEASUREMENT, TICKET
from tempopt.storage.opening import open_store
from tempopt.storage.optuna_calls import make_study
from tempopt.storage.queries import STAGES
from tempopt.storage.rows import Kind, Measurement, NewTicket, StudyRow, TicketRow
from tempopt.storage.ticket_queries import arms_of, parameters_of
from tempopt.temperature import TemperatureParameters
from tempopt.verdict.pairs import more_pairs
from tempopt.verdict.run_evaluations import OBSERVED, evaluations
from tempopt.verdict.stages import next_tickets

STUDY_START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
MACHINES = (("node-a", "NVIDIA H200 (cuda:0)"), ("node-b", "NVIDIA H200 (cuda:1)"), ("laptop", "cpu"))
STEPS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What a study is to look like.

    Args:
        trials: Search trials.
        ends: How trials end, again and again in this order; None: as the world has it.
        reports: Validations of a whole run.
        layers: Layers whose entropy the confirmation measures; 0: it measures none.
        heads: Heads of each.
        gain: What the winner's temperature is worth.
        confirmed: Whether it was confirmed.
        study: Keys of the ``study:`` section.
        search: Names that are searched beside the temperatures; a learning rate ``lr`` is best at 0.01.
        temperatures: The ``temperatures:`` section.
        attends: Whether attention's temperature is searched.
        more_pairs: Pairs that were added to the verdict, in a round of their own.
        nan: Whether every second report is no number.
        cards: Whether runs were trained on cards.
    """

    trials: int = 40
    ends: Sequence[str] | None = None
    reports: int = 10
    layers: int = 3
    heads: int = 4
    gain: float = 0.12
    confirmed: bool = True
    study: Mapping[str, Any] = field(default_factory=dict)
    search: Mapping[str, Any] = field(default_factory=dict)
    temperatures: Mapping[str, Any] = field(default_factory=dict)
    attends: bool = True
    more_pairs: int = 0
    nan: bool = False
    cards: bool = True

    def spec(self) -> StudySpec:
        """Return the study's spec."""
        attention = {
            "temperature_init": {"low": 0.25, "high": 4.0, "log": True},
            "temperature_final": {"low": 0.25, "high": 4.0, "log": True},
            "schedule": ["constant", "linear", "cosine", "exponential"],
            "layer_pattern": ["uniform", "linear"],
            "layer_ratio": {"low": 0.5, "high": 2.0},
        }
        return StudySpec.parse(
            {
                "study": {
                    "name": "pairs",
                    "metric": "val_accuracy",
                    "direction": "maximize",
                    "trials": self.trials,
                    "pruner": "median",
                    # large enough that every part of a report has something to show
                    "arms": {
                        "baseline": max(1, self.trials // 2) if self.search else 3,
                        "constant": max(1, self.trials // 2),
                    },
                    "candidates": 3,
                    "seeds": {"choose": 4, "confirm": 8},
                    "explain": True,
                    **self.study,
                },
                "model": {"class_path": "package.module.Model", "init_args": {"d_model": 8}},
                "data": {"class_path": "package.module.Data", "init_args": {"batch_size": 4}},
                "trainer": {"max_steps": STEPS},
                "temperatures": dict(self.temperatures),
                "search": {**(attention if self.attends else {}), **self.search},
            },
            source="the test",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticStudy:
    """A study as rows."""

    row: StudyRow
    tickets: list[TicketRow]
    measurements: list[Measurement]
    maps: dict[int, dict[str, Any]] = field(default_factory=dict)

    def result(self) -> StudyResult:
        """Return the study as it is read."""
        return assemble(self.row, self.tickets, self.measurements, needs_measurements=True, maps=self.maps)


def make(world: World) -> SyntheticStudy:
    """Return the rows of a study."""
    maker = _Maker(world, seed=3)
    rows = maker.search()
    if world.confirmed:
        maker.prove(rows)
    if world.more_pairs:
        rows += [maker.judged_row(ticket) for ticket in more_pairs(rows, maker.spec, world.more_pairs)]
        maker.prove(rows)
    return maker.study(rows)


def runs_of(result: StudyResult, kind: Kind, arm: str | None = None) -> list[TicketRow]:
    """Return the runs of a kind (and arm) in the order of work."""
    return [run for run in result.runs if run.kind == kind and arm in (None, *arms_of(run))]


def finish(world: World, synthetic: SyntheticStudy) -> SyntheticStudy:
    """Return a study whose search is over, as it was changed, with all that proves it."""
    maker, rows = _Maker(world, seed=4), list(synthetic.tickets)
    maker.prove(rows)
    return maker.study(rows)


def _maps(world: World) -> dict[str, Any]:
    """Return maps of heads of which each attends to the token before; the first of them is named."""
    cells = (255 * np.eye(16, k=-1)).astype(np.uint8)
    shape = {"queries": 32, "keys": 32, "rows": 16, "columns": 16}
    picture = {**shape, "most": 0.9, "cells": base64.b64encode(cells.tobytes()).decode()}
    numbers = {"score": 0.9, "low": 0.8, "high": 0.95, "value": 0.91, "chance": 0.06}
    places = [(layer, head) for layer in range(world.layers) for head in range(world.heads)]
    heads = [{"layer": layer, "head": head, **picture} for layer, head in places]
    named_heads = [{"layer": 0, "head": 0, "measure": "previous_token", **numbers}]
    moments = {"start": (0, []), "middle": (STEPS // 2, named_heads), "end": (STEPS - 1, named_heads)}
    return {
        "moments": {
            name: {"step": step, "heads": heads, "measures": measures}
            for name, (step, measures) in moments.items()
        },
        "notes": [],
    }


def write(url: str, synthetic: SyntheticStudy) -> None:
    """Write a study's rows into a store that has no study yet."""
    with open_store(url) as store:
        study = store.create_study(synthetic.row.name, synthetic.row.spec, synthetic.row.spec_hash)
        engine = create_engine(store.url)
    columns = {column.name for column in TICKET.columns} & {field.name for field in fields(TicketRow)}
    columns -= {"lease"}
    with engine.begin() as connection:
        tickets = [
            {
                **{name: getattr(ticket, name) for name in columns},
                "checkpoints": [],
                "study_id": study.id,
                "stage": STAGES[ticket.kind],
            }
            for ticket in synthetic.tickets
        ]
        connection.execute(insert(TICKET), tickets)
        measurement_rows = [
            {
                "ticket_id": measurement.ticket_id,
                "name": measurement.name,
                "step": measurement.step,
                "value": measurement.value if math.isfinite(measurement.value) else None,
            }
            for measurement in synthetic.measurements
        ]
        if measurement_rows:
            connection.execute(insert(MEASUREMENT), measurement_rows)
        if synthetic.maps:
            map_rows = [{"ticket_id": id, "maps": head_maps} for id, head_maps in synthetic.maps.items()]
            connection.execute(insert(ATTENTION_MAP), map_rows)
    engine.dispose()
    # last, as agents do: who watches the store takes a study that is done for complete
    with open_store(url) as store:
        store.set_state(study.id, synthetic.row.state)


def write_with_optuna(url: str, world: World) -> None:
    """Write a study with an Optuna study of the same name, which has no trials yet."""
    write(url, make(world))
    study = world.spec().study
    with open_store(url) as store:
        make_study(store.url, name=study.name, direction=study.direction, metric=study.metric)


def _worth(world: World, parameters: Mapping[str, Any]) -> float:
    """Return the value that parameters reach without luck: best at τ = 0.5 late and 1.5 early."""
    schedule = TemperatureParameters.from_mapping(parameters).plan(1).schedule
    late, early_log = math.log2(schedule(1.0) / 0.5), math.log2(schedule(0.0) / 1.5)
    temperature_effect = world.gain * (math.exp(-(late**2)) + 0.3 * math.exp(-(early_log**2)) - 0.5)
    return 0.6 + temperature_effect - 0.04 * math.log10(parameters.get("lr", 0.01) / 0.01) ** 2


def _evaluated_worth(world: World, temperature: Mapping[str, Any]) -> float:
    """Return what models are worth that are evaluated at a plan's final temperature."""
    late = math.log2(TemperatureParameters.from_mapping(temperature).plan(1).schedule(1.0) / 0.5)
    return 0.5 * world.gain * math.exp(-(late**2))


class _Maker:
    """Draws the rows of a study in a world."""

    def __init__(self, world: World, *, seed: int) -> None:
        self.world, self.spec, self.draw = world, world.spec(), random.Random(seed)

    def search(self) -> list[TicketRow]:
        """Return the runs of the search and of its arms."""
        names = self.spec.ordinary_names
        rows = [self._ended_row("baseline", i, self._sample(names)) for i in range(self.spec.num_baseline)]
        for i, constant in enumerate(self.spec.constants()):
            rows.append(self._ended_row("constant", i, {**constant, **self._sample(names)}))
        for i in range(self.world.trials):
            rows.append(self._ended_row("search", i, self._sample(self.spec.search)))
        return rows

    def prove(self, rows: list[TicketRow]) -> None:
        """Add all runs that follow from those of the search."""
        while new_tickets := next_tickets(rows, self.spec):
            rows += [self.judged_row(ticket) for ticket in new_tickets]

    def study(self, rows: list[TicketRow]) -> SyntheticStudy:
        """Return the study of these runs with what they measured."""
        # as the store's keys: rising in the order of work
        rows = [replace(row, id=index) for index, row in enumerate(rows, start=1)]
        study = StudyRow(
            id=1,
            name=self.spec.study.name,
            spec=self.spec.to_json(),
            spec_hash=self.spec.identity(),
            state="done" if self.world.confirmed else "running",
            created=STUDY_START,
        )
        measurements = list(self._measurements(rows))
        looked_at = [row for row in rows if row.kind == "confirm" and row.pair == 0 and self.world.layers]
        maps = {row.id: _maps(self.world) for row in looked_at if not set(OBSERVED).isdisjoint(arms_of(row))}
        return SyntheticStudy(row=study, tickets=rows, measurements=measurements, maps=maps)

    def judged_row(self, ticket: NewTicket) -> TicketRow:
        """Return a run that proves something, from its ticket."""
        parameters = dict(ticket.parameters or {})
        # seeds are easy or hard for all arms alike
        luck = random.Random(ticket.seed).gauss(0, 0.02)
        value = _worth(self.world, parameters) + luck + self.draw.gauss(0, 0.01)
        names = ("kind", "arm", "number", "seed", "candidate", "pair", "round")
        fields = {name: getattr(ticket, name) for name in names}
        return self._row("complete", value, parameters=parameters, **fields)

    def _sample(self, names: Iterable[str]) -> dict[str, Any]:
        params: dict[str, Any] = {}
        for name in names:
            domain = self.spec.search[name]
            if hasattr(domain, "choices"):
                params[name] = self.draw.choice(domain.choices)
            elif domain.log:
                params[name] = round(domain.low * (domain.high / domain.low) ** self.draw.random(), 6)
            else:
                params[name] = round(domain.low + (domain.high - domain.low) * self.draw.random(), 6)
        return params

    def _ended_row(self, arm: Kind, number: int, params: Mapping[str, Any]) -> TicketRow:
        parameters = self.spec.parameters(arm, params)  # type: ignore[arg-type]
        value = _worth(self.world, parameters) + self.draw.gauss(0, 0.012)
        outcome, ends = "complete", self.world.ends
        if arm == "search" and ends is not None:
            outcome = ends[number % len(ends)]
        elif arm == "search":
            doomed = value < 0.58 and self.draw.random() < 0.7 and number > 5
            outcome = "pruned" if doomed else "diverged" if self.draw.random() < 0.03 else "complete"
        fields = {"kind": arm, "arm": arm, "number": number, "seed": number, "sampled": dict(params)}
        return self._row(outcome, value, parameters=parameters, **fields)

    def _row(self, outcome: str, value: float, **fields: Any) -> TicketRow:
        is_complete, number = outcome == "complete", fields["number"]
        steps = STEPS if is_complete else STEPS * self.draw.randrange(2, 6) // 10
        machine, device = MACHINES[number % len(MACHINES)] if self.world.cards else MACHINES[-1]
        seconds = 0.03 * steps * (1 + 0.2 * self.draw.random())
        values: dict[str, Any] = {
            **dict.fromkeys(("candidate", "pair", "error", "sampled")),
            "id": 0,
            "study_id": 1,
            "trial_number": number if fields["kind"] == "search" else None,
            "state": "failed" if outcome == "failed" else "done",
            "outcome": outcome,
            "attempt": 1,
            "value": value if is_complete else value - 0.1 if outcome == "pruned" else None,
            "diverged_at": steps if outcome == "diverged" else None,
            "agent": f"{machine}:1:0:0.1",
            "machine": machine,
            "device": device,
            "seconds": seconds,
            "gpu_seconds": seconds if device != "cpu" else 0.0,
            "steps": steps,
            "total_steps": STEPS,
            "code": "0f1e2d3c4b5a",
            "started": STUDY_START + timedelta(seconds=30 * number),
            "finished": STUDY_START + timedelta(seconds=30 * number + 25),
        }
        return TicketRow(**{**values, **fields})

    def _measurements(self, rows: Sequence[TicketRow]) -> Iterator[Measurement]:
        winner = parameters_of([row for row in rows if row.kind == "confirm"], "search")
        for row in rows:
            yield from self._reports(row)
            if row.kind == "ablation" and "learned" in arms_of(row):
                yield from _learned_measurements(self.world, row)
            if row.kind != "confirm":
                continue
            arms, params = arms_of(row), row.parameters or {}
            if not set(arms).isdisjoint(OBSERVED):
                yield from _entropies(self.world, row)
            for evaluation in evaluations("confirm", arms, self.spec, winner or {}, params):
                if row.value is None:
                    continue
                gain = 0.0
                is_as_trained = evaluation.name.endswith(":winner") and "search" in arms
                if evaluation.temperature is not None and not is_as_trained:
                    gain = _evaluated_worth(self.world, evaluation.temperature)
                    gain += self.draw.gauss(0, 0.002) - _evaluated_worth(self.world, params)
                yield Measurement(ticket_id=row.id, step=STEPS, name=evaluation.name, value=row.value + gain)

    def _reports(self, row: TicketRow) -> Iterator[Measurement]:
        end = row.value if row.value is not None else 0.45
        for index in range(1, self.world.reports + 1):
            step = index * STEPS // self.world.reports
            if row.steps is not None and step <= row.steps:
                value = end - 0.35 * math.exp(-4 * step / STEPS) + self.draw.gauss(0, 0.006)
                if self.world.nan and index % 2:
                    value = math.nan
                yield Measurement(ticket_id=row.id, step=step, name="report", value=value)


def _entropies(world: World, row: TicketRow) -> Iterator[Measurement]:
    schedule = TemperatureParameters.from_mapping(row.parameters or {}).plan(1).schedule
    heads = [(layer, head) for layer in range(world.layers) for head in range(world.heads)]
    for layer, head in heads:
        for index in range(24):
            progress = index / 23
            sharpening = (0.3 + 0.1 * head + 0.12 * layer) * progress
            value = (0.95 - sharpening) * min(1.0, schedule(progress) ** 0.25)
            value, step = min(1.0, max(0.0, value)), round(progress * STEPS)
            yield Measurement(ticket_id=row.id, step=step, name=f"entropy/{layer}/{head}", value=value)


def _learned_measurements(world: World, row: TicketRow) -> Iterator[Measurement]:
    """Yield temperatures that go from 1 towards one of their own in each layer, a little apart by run.

    Those that have a name go from where they were found to half of that.
    """
    luck = random.Random(row.seed).gauss(0, 0.05)
    paths = {name: (section["as_found"], -math.log(2.0)) for name, section in world.temperatures.items()}
    paths |= {str(layer): (1.0, -0.5 + 0.4 * layer) for layer in range(world.layers)}
    for name, (first, slope) in paths.items():
        for index in range(24):
            value, step = first * math.exp((slope + luck) * index / 23), round(index / 23 * STEPS)
            yield Measurement(ticket_id=row.id, step=step, name=f"learned/{name}", value=value)
