"""What a server says to those who keep agents started: how many more would have work."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tempopt.errors import AccessDenied
from tempopt.pool.behind_server import ServerSource
from tempopt.pool.on_database import DatabaseSource
from tempopt.pool.scaling import Shortage
from tempopt.records.pool import PoolAgent, Quota
from tempopt.records.rows import NewTicket, Pooled
from tempopt.remote.connection import ServerConnection
from tests.server.conftest import Served


def _begin(served: Served, name: str, tickets: int, **pooled: str) -> int:
    pooling = Pooled(parallel=8, **pooled)  # type: ignore[arg-type]
    row = served.store.create_study(name, {}, "hash", pooled=pooling)
    new = [NewTicket(kind="search", number=number, arm="baseline", seed=1) for number in range(tickets)]
    served.store.add_tickets(row.id, new)
    return row.id


def _asked(served: Served, token: str, agent: PoolAgent, most: int = 9) -> Shortage:
    connection = ServerConnection(served.url, lambda: token)
    try:
        return ServerSource(connection, None).shortage(agent, most=most)
    finally:
        connection.close()


def test_a_server_counts_as_its_database_does_and_only_what_the_token_may_serve(served: Served) -> None:
    first = _begin(served, "team_a", 3)
    _begin(served, "other", 4, owner="bob", queue="slow")
    token = served.new_token("agent")
    for agent, lacking in (
        (PoolAgent(name="", launch="k1"), 7),
        (PoolAgent(name="", queues=frozenset({"slow"})), 4),
        (PoolAgent(name="", unable={first: ""}), 4),
    ):
        assert _asked(served, token, agent) == Shortage(lacking=lacking)
        assert DatabaseSource(served.store, None).shortage(agent, most=9) == Shortage(lacking=lacking)
    assert _asked(served, token, PoolAgent(name=""), most=2) == Shortage(lacking=2)
    own = served.new_token("agent", studies="team_")
    assert _asked(served, own, PoolAgent(name="")) == Shortage(lacking=3)
    served.store.pool.set_quota(Quota(user="bob", agents=1))
    served.app.state.tempopt.dispatcher._rows_at = float("-inf")
    assert _asked(served, token, PoolAgent(name="")) == Shortage(lacking=4)


def test_agents_are_counted_that_report_with_the_same_key_and_the_same_token(served: Served) -> None:
    id = _begin(served, "team_a", 3)
    token = served.new_token("agent")
    connection = ServerConnection(served.url, lambda: token)
    mine = PoolAgent(name="gpu1:1:abcdef01:1.1-aa", launch="k1", unable={id: "There is no class."})
    others: Sequence[PoolAgent] = [
        PoolAgent(name="gpu1:2:abcdef01:1.1-bb", launch="k2"),
        PoolAgent(name="gpu1:3:abcdef01:1.1-cc", launch="k1", started_by="somebody"),
    ]
    try:
        source = ServerSource(connection, None)
        source.hear(mine, known=None, wait=0.0)
        source.hear(others[0], known=None, wait=0.0)
        served.store.pool.hear(others[1])
        found = source.shortage(PoolAgent(name="", launch="k1"), most=9)
    finally:
        connection.close()
    assert (found.reported, found.unable) == (1, {id: "There is no class."})
    assert found.lacking == 0


def test_a_token_that_may_only_look_is_told_nothing(served: Served) -> None:
    with pytest.raises(AccessDenied):
        _asked(served, served.new_token("view"), PoolAgent(name=""))


def test_asking_leaves_no_line_in_the_audit_log(served: Served) -> None:
    _asked(served, served.new_token("agent"), PoolAgent(name=""))
    assert not [row for row in served.store.audited() if "demand" in row.action]
