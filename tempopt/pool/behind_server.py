"""The pool of a server, for agents that reach nothing but it."""

from __future__ import annotations

from pathlib import Path

from tempopt.agent.gate import Gate
from tempopt.agent.observer import Observer
from tempopt.agent.server_runner import work_behind
from tempopt.pool.dispatcher import Told
from tempopt.pool.on_database import workers_for
from tempopt.pool.scaling import Shortage
from tempopt.records.pool import PoolAgent
from tempopt.remote.connection import ServerConnection
from tempopt.remote.protocol import PoolAsk, PoolDemand, PoolLeave, PoolOrder, PoolSync

_SLACK_SECONDS = 30.0


class ServerSource:
    """Studies behind a server: a :class:`~tempopt.pool.agent.Source`, and what the pool lacks.

    Args:
        connection: The server.
        token_file: File that workers read the token for checkpoints from; None: where this process has it.
    """

    def __init__(
        self,
        connection: ServerConnection,
        token_file: str | Path | None,
    ) -> None:
        self._connection = connection
        self._token_file = token_file

    def hear(self, agent: PoolAgent, *, known: Told | None, wait: float) -> Told:
        """Say how the agent stands, and return what it is to do, as soon as that is something else."""
        said = PoolSync(
            agent=agent.name,
            machine=agent.machine,
            launch=agent.launch,
            queues=sorted(agent.queues),
            labels=sorted(agent.labels),
            gpus=agent.gpus,
            study_id=agent.study_id,
            leaving=agent.leaving,
            unable=agent.unable,
            idle_at=agent.idle_at,
            known=None if known is None else known.order(),
            wait=wait,
        )
        body = said.model_dump(mode="json")
        answer = self._connection.post("/api/pool/sync", body, timeout=wait + _SLACK_SECONDS)
        return Told.of(agent.name, PoolOrder.model_validate(answer))

    def serve(self, name: str, *, gpus: int, gate: Gate, observer: Observer) -> None:
        """Work on a study until the gate says to leave, or nothing is left to do."""
        work_behind(
            self._connection,
            name,
            workers=lambda spec: workers_for(spec, gpus),
            token_file=self._token_file,
            observer=observer,
            gate=gate,
        )

    def shortage(self, agent: PoolAgent, *, most: int) -> Shortage:
        """Return what the pool lacks of agents like this one; see :class:`tempopt.pool.scaling.Pool`."""
        said = PoolAsk(
            launch=agent.launch,
            queues=sorted(agent.queues),
            labels=sorted(agent.labels),
            gpus=agent.gpus,
            unable=sorted(agent.unable),
            most=most,
        )
        answer = self._connection.post("/api/pool/demand", said.model_dump(mode="json"))
        found = PoolDemand.model_validate(answer)
        return Shortage(lacking=found.lacking, reported=found.reported, unable=found.unable)

    def leave(self, agent: PoolAgent) -> None:
        """Have the agent forgotten."""
        said = PoolLeave(agent=agent.name)
        self._connection.post("/api/pool/leave", said.model_dump(mode="json"), timeout=10.0)
