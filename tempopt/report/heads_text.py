"""Specialisations of the heads of the winner and of the baseline, as text and as plain data."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tempopt.report.formatting import baseline_name
from tempopt.storage.ticket_queries import arms_of, of_kind, rounds_of_verdict

if TYPE_CHECKING:
    from tempopt.report.study_data import StudyData
    from tempopt.storage.rows import TicketRow

_MAX_NAMED_HEADS = 6
_MAX_HEAD_MAPS = 4
SHADES = " ░▒▓█"
"""Shades from no weight to the largest weight of a head, in equal steps."""
_ROLE_BY_ARM = {"search": "winner", "baseline": "baseline"}


def head_runs(result: StudyData) -> dict[str, TicketRow]:
    """Return the runs with observed heads by ``winner`` and ``baseline``; missing ones are left out.

    They belong to the first pair of confirming runs of the verdict, and share their seed.
    """
    of_round = result.round if result.verdict is None else result.verdict.round
    runs_by_name: dict[str, TicketRow] = {}
    for round_number in rounds_of_verdict(result.runs, of_round):
        for run in of_kind(result.runs, "confirm", of_round=round_number):
            for arm in set(arms_of(run)) & _ROLE_BY_ARM.keys() if run.id in result.maps else ():
                runs_by_name.setdefault(_ROLE_BY_ARM[arm], run)
    return {name: runs_by_name[name] for name in _ROLE_BY_ARM.values() if name in runs_by_name}


def named_heads(maps: dict[str, Any], moment: str = "end") -> list[dict[str, Any]]:
    """Return the heads that are named at a moment, the clearest first."""
    measures = maps["moments"].get(moment, {}).get("measures", [])
    return sorted(measures, key=lambda measure: (-measure["score"], measure["layer"], measure["head"]))


def named_runs(result: StudyData) -> Iterator[tuple[str, TicketRow, dict[str, Any]]]:
    """Yield the name for people, the run, and the maps of each run with observed heads."""
    for role, run in head_runs(result).items():
        name = "the winner" if role == "winner" else baseline_name(result.spec)
        yield name, run, result.maps[run.id]


def head_lines(result: StudyData) -> list[str]:
    """Return the specialisations of the heads at the end of training; empty if none was observed."""
    return [
        f"heads of {name} at the end of {run.name}: {heads_text(maps)}."
        for name, run, maps in named_runs(result)
    ]


def heads_text(maps: dict[str, Any], moment: str = "end") -> str:
    """Return the named heads as text, such as ``layer 0 head 1 previous token (0.93)``."""
    measures = named_heads(maps, moment)
    texts = [
        f"layer {measure['layer']} head {measure['head']} {measure_text(measure)}"
        for measure in measures[:_MAX_NAMED_HEADS]
    ]
    remainder = [f"and {len(measures) - _MAX_NAMED_HEADS} more"] if len(measures) > _MAX_NAMED_HEADS else []
    return ", ".join([*texts, *remainder]) or "none specialises in a position"


def measure_text(measure: dict[str, Any]) -> str:
    """Return the name and the score of a measure: 1 is all of the attention, 0 uniform attention."""
    return f"{measure['measure'].replace('_', ' ')} ({measure['score']:.2g})"


def heads_json(result: StudyData) -> dict[str, Any] | None:
    """Return the named heads at each moment as plain data, without maps; None if none was observed."""
    runs = head_runs(result)
    if not runs:
        return None
    return {
        name: {
            "run": run.name,
            **{
                moment: {"step": record["step"], "named": named_heads(result.maps[run.id], moment)}
                for moment, record in result.maps[run.id]["moments"].items()
            },
            "notes": result.maps[run.id]["notes"],
        }
        for name, run in runs.items()
    }


def map_lines(result: StudyData) -> list[str]:
    """Return maps of the heads at the end of training as shades of text, named heads first."""
    lines = []
    for name, run, maps in named_runs(result):
        lines += _render_head_maps(f"{name}, {run.name}", maps)
    return lines or ["No confirming run has had its heads looked at."]


def _render_head_maps(title: str, maps: dict[str, Any]) -> list[str]:
    moments = maps["moments"]
    moment = "end" if "end" in moments else next(iter(moments))
    record = moments[moment]
    measures_by_head = {(m["layer"], m["head"]): f", {measure_text(m)}" for m in named_heads(maps, moment)}
    heads = sorted(record["heads"], key=lambda head: (head["layer"], head["head"]) not in measures_by_head)
    scale = f"queries down, keys across, {SHADES[-1]} is the greatest weight"
    lines = [f"{title}, step {record['step']}; {scale}:"]
    for head in heads[:_MAX_HEAD_MAPS]:
        head_name = f"layer {head['layer']} head {head['head']}"
        suffix = measures_by_head.get((head["layer"], head["head"]), "")
        lines += ["", f"{head_name}{suffix} (greatest weight {head['most']:.2g})"]
        # row by row, 255 is the largest weight of the head
        cells, columns = base64.b64decode(head["cells"]), head["columns"]
        for row in range(head["rows"]):
            line = cells[row * columns : (row + 1) * columns]
            lines.append("".join(SHADES[round((len(SHADES) - 1) * cell / 255)] for cell in line).rstrip())
    if len(heads) > _MAX_HEAD_MAPS:
        lines += ["", f"and {len(heads) - _MAX_HEAD_MAPS} more heads."]
    return [*lines, ""]
