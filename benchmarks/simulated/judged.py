"""What the verdicts of simulated studies claim, beside what is true in their worlds: one record a study.

Knows the answers of a verdict by what they are made of and not by their names, so that an answer that a later
version adds is recorded as well; it has a truth where its name is known here.
"""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from scipy.stats import binomtest

from benchmarks.simulated.drawn import world_for
from benchmarks.simulated.whole import StudySimulation, sampled_by, with_study
from benchmarks.simulated.worlds import ModelWorld
from tempopt.storage.rows import SEARCH_KINDS, TicketRow
from tempopt.verdict.inference import AS_TRAINED
from tempopt.verdict.paired_evidence import PairedResult
from tempopt.verdict.run_evaluations import inference_plans
from tempopt.verdict.verdict import Verdict

VERDICTS_PATH = Path(__file__).with_name("verdicts.parquet")
LINES = Path("build/verdicts.jsonl")
MORE = 10
"""Search trials that are added after a verdict."""

_WHICH = ("world", "trials", "rounds", "sampler", "explain", "seed")
_DIGITS = 4
# by the name of an answer the arm that it is about, and those that this is compared with: with all at once,
# where there are several
_COMPARES = {
    "total": ("search", ("baseline", "twin")),
    "over_baseline": ("search", ("baseline",)),
    "over_twin": ("search", ("twin",)),
    "against_constant": ("search", ("constant", "constant_twin")),
    "learned": ("learned", ("baseline",)),
    "over_learned": ("search", ("learned",)),
}
# what a verdict says as yes or no, and is no claim of a gain
_NO_CLAIMS = ("at_one", "guards_kept", "has_reference_diverged")


@dataclasses.dataclass(frozen=True, slots=True)
class Cell:
    """Studies that differ in nothing but their seed.

    Args:
        world: Name of the world.
        trials: Search trials before the first verdict.
        rounds: Verdicts.
        sampler: ``knowledge_gradient``, tempopt's own with its pruner, or one of Optuna's without any.
        explain: As in ``study.explain``.
    """

    world: str
    trials: int
    rounds: int
    sampler: str
    explain: bool = False

    def study(self, seed: int) -> dict[str, Any]:
        """Run a study and return its record."""
        world, start_time = world_for(self.world, seed), time.process_time()
        settings = {"seed": seed, "trials": self.trials, "explain": self.explain} | sampled_by(self.sampler)
        simulation = StudySimulation(world, with_study(world.spec, **settings))
        verdicts = []
        for number, verdict in enumerate(simulation.rounds(self.rounds, MORE)):
            round_rows = [row for row in simulation.rows if row.round == number]
            answers = (
                []
                if verdict is None or verdict.round != number
                else _answers(verdict, simulation.rows, world)
            )
            verdicts.append({"answers": answers, "runs": _runs(round_rows)})
        seconds = round(time.process_time() - start_time, 2)
        return {**dataclasses.asdict(self), "seed": seed, "seconds": seconds, "verdicts": verdicts}


def cell_of(record: Mapping[str, Any]) -> Cell:
    """Return the cell that a record is of."""
    return Cell(*(record[field.name] for field in dataclasses.fields(Cell)))


def _runs(rows: list[TicketRow]) -> list[dict[str, Any]]:
    """Return the number of runs by kind; those of another arm of a searching kind and of constants apart."""
    return [{"kind": kind, "runs": count} for kind, count in sorted(Counter(map(_kind, rows)).items())]


def _kind(row: TicketRow) -> str:
    if row.kind in SEARCH_KINDS and row.arm != row.kind:
        return f"{row.kind}:{row.arm}"
    is_constant = set(row.arm.split("+")) <= {"constant", "constant_twin"}
    return f"{row.kind}:constants" if row.kind == "confirm" and is_constant else row.kind


def _answers(verdict: Verdict, rows: list[TicketRow], world: ModelWorld) -> list[dict[str, Any]]:
    judged_rows = [
        row for row in rows if row.round == verdict.round and row.kind not in (*SEARCH_KINDS, "choose")
    ]
    # one run may stand for several arms, and other kinds may call theirs what confirmed ones are called
    judged_rows.sort(key=lambda row: row.kind == "confirm")
    arms = {arm: row.parameters or {} for row in judged_rows for arm in row.arm.split("+")}
    answers = []
    for name, answer, share in _all_answers(verdict):
        test = answer.paired
        numbers = (test.gain, test.ci_low, test.ci_high, test.p_value)
        answers.append(_answer_entry(name, answer.significant, _truth(name, share, arms, world), *numbers))
    answers += _of_inference(verdict, arms, world) if {"baseline", "search", "twin"} <= arms.keys() else []
    answers += _shares(verdict, arms, world)
    # what a verdict makes of its answers together
    for name in dir(type(verdict)):
        claim = getattr(verdict, name) if isinstance(getattr(type(verdict), name), property) else None
        if isinstance(claim, bool) and name not in _NO_CLAIMS:
            answers.append({"name": name, "shown": claim})
    assert verdict.recommendation is not None, "a verdict that is made recommends something"
    answers.append(
        {"name": "recommends", "shown": verdict.recommendation.action_without_training != "change_nothing"}
    )
    return answers


def _answer_entry(
    name: str, is_shown: bool, truth: float | None, gain: float, low: float, high: float, p: float = math.nan
) -> dict[str, Any]:
    numbers = {"gain": gain, "low": low, "high": high, "p": p}
    rounded_numbers = {key: round(float(value), _DIGITS) for key, value in numbers.items()}
    is_covered = None if truth is None else bool(low <= truth <= high)
    truth = None if truth is None else round(truth, _DIGITS)
    return {"name": name, "shown": is_shown, "held": is_covered, "truth": truth, **rounded_numbers}


def _of_inference(
    verdict: Verdict, arms: Mapping[str, Mapping[str, Any]], world: ModelWorld
) -> list[dict[str, Any]]:
    """Return what is said of models that were tuned at inference, but for the baseline's."""
    inference, answers = verdict.inference_only, []
    if inference is None:
        return []
    plans = {AS_TRAINED: None, **inference_plans(world.spec, arms["search"])}

    def tuned_gain(arm: str, plan_name: str) -> float:
        return world.worth(arms[arm], plans[plan_name])

    for name, arm, inference_answer in (
        ("twin", "twin", inference.twin),
        ("winner", "search", inference.winner),
    ):
        if inference_answer is not None:
            test, truth = (
                inference_answer.answer.paired,
                tuned_gain(arm, inference_answer.plan_name) - world.worth(arms[arm]),
            )
            answers.append(
                _answer_entry(f"inference:{name}", False, truth, test.gain, test.ci_low, test.ci_high)
            )
    if inference.difference is not None and inference.winner is not None:
        truth = tuned_gain("search", inference.winner.plan_name) - tuned_gain("baseline", inference.plan_name)
        test = inference.difference.paired
        answers.append(
            _answer_entry("inference:difference", False, truth, test.gain, test.ci_low, test.ci_high)
        )
    trained_gain = world.worth(arms["search"]) - world.worth(arms["twin"])
    if inference.share is not None and inference.twin is not None and trained_gain:
        truth = (tuned_gain("twin", inference.twin.plan_name) - world.worth(arms["twin"])) / trained_gain
        ratio = inference.share
        answers.append(
            _answer_entry("share:inference_only", False, truth, ratio.ratio, ratio.low, ratio.high)
        )
    return answers


def _shares(
    verdict: Verdict, arms: Mapping[str, Mapping[str, Any]], world: ModelWorld
) -> list[dict[str, Any]]:
    """Return what is said of shares of the gain, the simplest plan and rates of failure."""
    answers = []
    total_gain = world.worth(arms["search"]) - world.worth(arms["baseline"])
    if verdict.learned is not None and verdict.learned.share is not None and total_gain:
        ratio = verdict.learned.share
        truth = (world.worth(arms["learned"]) - world.worth(arms["baseline"])) / total_gain
        answers.append(_answer_entry("share:learned", False, truth, ratio.ratio, ratio.low, ratio.high))
    if verdict.simplest is not None:
        simple, kept_gain, share = (
            verdict.simplest,
            verdict.simplest.keep_share_test,
            world.spec.study.keep_share,
        )
        worths = (world.worth(params) for params in (simple.params, arms["search"], arms["baseline"]))
        plan, winner, baseline = worths
        truth = plan - share * winner - (1.0 - share) * baseline
        numbers = (kept_gain.gain, kept_gain.ci_low, kept_gain.ci_high, kept_gain.p_value)
        answers.append(_answer_entry("simplest:kept", simple.holds, truth, *numbers))
    if verdict.failures is not None:
        for arm, rate in (("search", verdict.failures.arm), ("baseline", verdict.failures.reference)):
            truth = world.failure_rate(arms[arm])
            numbers = (rate.failed / rate.runs, rate.low, rate.high)
            answers.append(_answer_entry(f"failures:{arm}", False, truth, *numbers))
    return answers


def _all_answers(verdict: Verdict) -> Iterator[tuple[str, PairedResult, Any]]:
    """Yield name, comparison and, if it is one, share of every answer of a verdict."""
    for field in dataclasses.fields(verdict):
        value = getattr(verdict, field.name)
        # recorded studies have it under this name
        field_name = "total" if field.name == "primary" else field.name
        if isinstance(value, Mapping):
            several = [(f"{field_name}:{key}", entry) for key, entry in value.items()]
        elif isinstance(value, list | tuple):
            several = [(f"{field_name}:{getattr(entry, 'name', n)}", entry) for n, entry in enumerate(value)]
        else:
            several = [(field_name, value)]
        for name, entry in several:
            if isinstance(entry, PairedResult):
                yield name, entry, None
            elif isinstance(getattr(entry, "answer", None), PairedResult):
                yield name, entry.answer, entry
    if verdict.learned is not None and verdict.learned.winner_over_it is not None:
        yield "over_learned", verdict.learned.winner_over_it, None


def _truth(name: str, share: Any, arms: Mapping[str, Mapping[str, Any]], world: ModelWorld) -> float | None:
    """Return the gain of an answer in truth; None: it is not known what the answer compares."""
    if name == "inference_only" and {"baseline", "search"} <= arms.keys():
        plan = inference_plans(world.spec, arms["search"]).get(share.plan_name)
        return world.worth(arms["baseline"], plan) - world.worth(arms["baseline"])
    if name.startswith("parts:"):
        return world.worth(arms["search"]) - world.worth(share.params)
    better_arm, references = _COMPARES.get(name, ("", ()))
    reference_values = [world.worth(arms[reference]) for reference in references if reference in arms]
    if better_arm not in arms or not reference_values:
        return None
    return world.worth(arms[better_arm]) - max(reference_values)


def record_key(record: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what tells one study from another."""
    return tuple(record[name] for name in _WHICH)


def load_records(lines: Path = LINES) -> list[dict[str, Any]]:
    """Return the records that there are; of a study that was run again, the last one.

    Those of a version whose studies had other options are left out.
    """
    packed_records: list[dict[str, Any]] = (
        pq.read_table(VERDICTS_PATH).to_pylist() if VERDICTS_PATH.exists() else []
    )
    records = [record for record in packed_records if set(_WHICH) <= record.keys()]
    if lines.exists():
        # the last line of a script that was killed may be half a line
        complete_lines = (line for line in lines.read_text().splitlines(keepends=True) if line.endswith("\n"))
        records += [json.loads(line) for line in complete_lines]
    return list({record_key(record): record for record in records}.values())


def forget(lines: Path = LINES) -> None:
    """Begin anew: what there is was found by other code."""
    lines.unlink(missing_ok=True)
    VERDICTS_PATH.unlink(missing_ok=True)


def keep(record: Mapping[str, Any], lines: Path = LINES) -> None:
    """Write one record down."""
    lines.parent.mkdir(parents=True, exist_ok=True)
    with lines.open("a") as file:
        file.write(json.dumps(record) + "\n")


def pack(lines: Path = LINES) -> None:
    """Put what there is into the table of the repository."""
    records = sorted(load_records(lines), key=record_key)
    pq.write_table(pa.Table.from_pylist(records), VERDICTS_PATH, compression="zstd", compression_level=19)
    lines.unlink(missing_ok=True)
    print(f"{VERDICTS_PATH.name}: {len(records)} studies, {VERDICTS_PATH.stat().st_size} bytes")


# ---- tables of how often verdicts are wrong, and how often right

ALLOWED = 0.025
"""Share of studies, over all rounds of each, in which a gain may be claimed where nothing is to be gained."""

READ_AT = (1, 2, 5)
"""Verdicts after which it is counted whether any so far has shown a gain."""

Record = Mapping[str, Any]
_HEAD = "| world | trials | rounds | sampler | studies "


def tables(records: Iterable[Record]) -> Iterator[str]:
    """Yield the lines of all tables."""
    cells: dict[Cell, list[Record]] = defaultdict(list)
    for record in records:
        cells[cell_of(record)].append(record)
    cells = dict(sorted(cells.items(), key=lambda entry: dataclasses.astuple(entry[0])))
    yield from _false(cells)
    yield from _true(cells)
    yield from _coverage_table(cells)
    yield from _cost(cells)


def first_shown(record: Record, answer: str) -> int | None:
    """Return at which verdict an answer shows a gain for the first time, from 1; None: at none."""
    for number, verdict in enumerate(record["verdicts"], 1):
        if any(
            answer_entry["name"] == answer and answer_entry["shown"] for answer_entry in verdict["answers"]
        ):
            return number
    return None


def by_then(records: Sequence[Record], answer: str, verdicts: int) -> int:
    """Return in how many studies an answer shows a gain at one of the first so many verdicts."""
    return sum((first_shown(record, answer) or verdicts + 1) <= verdicts for record in records)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values that allow for one another (Holm 1979)."""
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(np.argsort(p_values)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def names(records: Iterable[Record]) -> list[str]:
    """Return the names of all answers, in the order in which verdicts have them."""
    answer_names = (
        answer["name"] for record in records for v in record["verdicts"] for answer in v["answers"]
    )
    return list(dict.fromkeys(answer_names))


def _start(cell: Cell, records: Sequence[Record]) -> str:
    sampler = f"{cell.sampler}, explained" if cell.explain else cell.sampler
    return f"| {cell.world} | {cell.trials} | {cell.rounds} | {sampler} | {len(records)} "


def _read_at(cells: Iterable[Cell]) -> list[int]:
    max_rounds = max((cell.rounds for cell in cells), default=1)
    return [num_verdicts for num_verdicts in READ_AT if num_verdicts <= max_rounds]


def _share_cells(cell: Cell, records: Sequence[Record], answer: str, reads: Sequence[int]) -> str:
    counts = [
        by_then(records, answer, num_verdicts) if num_verdicts <= cell.rounds else None
        for num_verdicts in reads
    ]
    return "".join(f"| {'' if n is None else f'{n} ({n / len(records):.1%})'} " for n in counts)


def _false(cells: Mapping[Cell, Sequence[Record]]) -> Iterator[str]:
    rows = [
        (cell, records, answer)
        for cell, records in cells.items()
        for answer in names(records)
        if world_for(cell.world).false(answer)
    ]
    p_values = []
    for cell, records, answer in rows:
        count = by_then(records, answer, cell.rounds)
        p_values.append(binomtest(count, len(records), ALLOWED, alternative="greater").pvalue)
    reads = _read_at(cells)
    yield "Claims of a gain that is not there:\n"
    yield (
        _HEAD
        + "| answer "
        + "".join(f"| by verdict {num_verdicts} " for num_verdicts in reads)
        + "| p | p (Holm) |"
    )
    yield "|---" * (8 + len(reads)) + "|"
    for (cell, records, answer), p, allowing in zip(rows, p_values, holm(p_values), strict=True):
        share_cells = _share_cells(cell, records, answer, reads)
        yield f"{_start(cell, records)}| {answer} {share_cells}| {p:.2g} | {allowing:.2g} |"


def _true(cells: Mapping[Cell, Sequence[Record]]) -> Iterator[str]:
    reads = _read_at(cells)
    yield "\nGains that are there and are shown:\n"
    yield _HEAD + "| answer " + "".join(f"| by verdict {num_verdicts} " for num_verdicts in reads) + "|"
    yield "|---" * (6 + len(reads)) + "|"
    for cell, records in cells.items():
        for answer in names(records):
            if world_for(cell.world).false(answer) is False:
                yield f"{_start(cell, records)}| {answer} {_share_cells(cell, records, answer, reads)}|"


def _coverage_table(cells: Mapping[Cell, Sequence[Record]]) -> Iterator[str]:
    yield "\nIntervals that hold the truth:\n"
    yield (
        _HEAD + "| answer | true gain, mean | said, mean | the same where shown | interval holds it "
        "| all of a study's hold |"
    )
    yield "|---" * 11 + "|"
    for cell, records in cells.items():
        for answer in names(records):
            answer_lists = [_entries_of(record, answer) for record in records]
            answer_lists = [answers for answers in answer_lists if answers]
            if not answer_lists:
                continue
            truth, gain = (
                np.mean([answers[0][key] for answers in answer_lists]) for key in ("truth", "gain")
            )
            first = np.mean([answers[0]["held"] for answers in answer_lists])
            rate_all = np.mean([all(entry["held"] for entry in answers) for answers in answer_lists])
            means_shown = _where_shown(answer_lists)
            numbers = f"| {truth:+.4f} | {gain:+.4f} | {means_shown} | {first:.1%} | {rate_all:.1%} |"
            yield f"{_start(cell, records)}| {answer} {numbers}"


def _where_shown(answer_lists: Sequence[Sequence[Record]]) -> str:
    """Return the means of the true gain and of the estimate over the studies that show one first."""
    first_answers = [answers[0] for answers in answer_lists if answers[0]["shown"]]
    if not first_answers:
        return ""
    truth, gain = (np.mean([entry[key] for entry in first_answers]) for key in ("truth", "gain"))
    return f"{truth:+.4f}, {gain:+.4f}"


def _entries_of(record: Record, answer: str) -> list[Record]:
    """Return what a study's verdicts say by an answer whose truth is known."""
    entries = (entry for verdict in record["verdicts"] for entry in verdict["answers"])
    return [entry for entry in entries if entry["name"] == answer and entry.get("held") is not None]


def _cost(cells: Mapping[Cell, Sequence[Record]]) -> Iterator[str]:
    kinds = sorted({run_count["kind"] for records in cells.values() for run_count in _first_runs(records)})
    yield "\nRuns to the first verdict, mean:\n"
    yield _HEAD + "".join(f"| {kind} " for kind in kinds) + "| all | CPU s a study |"
    yield "|---" * (7 + len(kinds)) + "|"
    for cell, records in cells.items():
        count: dict[str, float] = dict.fromkeys(kinds, 0.0)
        for run_count in _first_runs(records):
            count[run_count["kind"]] += run_count["runs"] / len(records)
        seconds = np.mean([record["seconds"] for record in records])
        numbers = "".join(f"| {count[kind]:.1f} " for kind in kinds)
        yield f"{_start(cell, records)}{numbers}| {sum(count.values()):.1f} | {seconds:.1f} |"


def _first_runs(records: Iterable[Record]) -> Iterator[Record]:
    for record in records:
        yield from record["verdicts"][0]["runs"]
