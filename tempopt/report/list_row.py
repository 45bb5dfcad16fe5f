"""One line on a study as plain data: what ``tempopt list --json`` and a server's list say of each."""

from __future__ import annotations

from typing import Any

from tempopt.storage.liveness import display_state, is_dead
from tempopt.storage.rows import StudySummary, TicketState


def summary_json(summary: StudySummary) -> dict[str, Any]:
    """Return the documented data of ``tempopt list --json`` about one study."""
    counts: dict[TicketState, int] = {"waiting": 0, "running": 0, "done": 0, "failed": 0, "withdrawn": 0}
    for states in summary.tickets.values():
        for state, count in states.items():
            counts[state] += count
    study = summary.study
    agents = [agent for agent in summary.agents if not is_dead(agent)]
    return {
        "study": study.name,
        "metric": study.spec["study"]["metric"],
        "direction": study.spec["study"]["direction"],
        "state": display_state(study.state, len(agents)),
        "agents": len(agents),
        "created": study.created.isoformat(),
        "tickets": {"requested": sum(counts.values()), **counts},
    }
