"""How trials are divided among agents, none of which reaches beyond one node."""

from __future__ import annotations

from collections.abc import Sequence


def split_over(rooms: Sequence[int], per_agent: int, workers: int) -> list[int]:
    """Return the workers of each agent, none with more than a node has room for.

    Those beyond all room have to wait for some, and wait in agents that fit on the largest node.

    Args:
        rooms: How many trials fit on each node.
        per_agent: No agent has more workers than that.
        workers: How many trials are to run side by side.
    """
    largest = min(per_agent, max(rooms, default=0) or per_agent)
    agents: list[int] = []
    for room in (*rooms, workers):
        node_workers = min(room, workers - sum(agents))
        agents += [min(largest, node_workers - done) for done in range(0, node_workers, largest)]
    return agents
