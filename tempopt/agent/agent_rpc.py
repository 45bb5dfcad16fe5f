"""What one agent says to its server, and how it is called there."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence

from tempopt.errors import AccessDenied, StoreBusy, StoreUnreachable
from tempopt.storage.changes import Change
from tempopt.storage.http.connection import ServerConnection
from tempopt.storage.http.protocol import (
    JoinRequest,
    JoinResponse,
    Leave,
    Renewal,
    RunReports,
    SyncRequest,
    SyncResponse,
    TakeRequest,
)
from tempopt.storage.http.wire import change_to_plain
from tempopt.storage.liveness import agent_name

_AGAIN_SECONDS = (0.2, 1.0, 3.0)
# beyond the time that an answer may be held back
_SLACK_SECONDS = 30.0


class AgentRpcClient:
    """What one agent says to its server, and how it is called there.

    Args:
        connection: The server.
        study: Name of the study.
        workers: Number of the agent's workers.
    """

    def __init__(self, connection: ServerConnection, study: str, workers: int) -> None:
        self._connection = connection
        self._study = study
        self._workers = workers
        # the name of a process may repeat in containers that share nothing
        self.agent = f"{agent_name()}-{secrets.token_hex(3)}"
        self._session = secrets.token_hex(8)

    def join(self) -> JoinResponse:
        """Return what there is to know of the study.

        Raises:
            StudyNotFound: There is none of that name.
            UsageError: It was paused, or the server does not serve this agent.
        """
        request = JoinRequest(
            study=self._study, agent=self.agent, session=self._session, workers=self._workers
        )
        pauses = [*_AGAIN_SECONDS]
        while True:
            try:
                answer = self._connection.post("/api/agents/join", request.model_dump(mode="json"))
            except StoreBusy:
                raise
            except StoreUnreachable:
                # a reply that was lost, or a server that is started anew at this moment
                if not pauses:
                    raise
                time.sleep(pauses.pop(0))
            else:
                return JoinResponse.model_validate(answer)

    def sync(
        self,
        study_id: int,
        changes: Sequence[Change] = (),
        *,
        renew: Mapping[int, Renewal] | None = None,
        lease: float = 60.0,
        runs: Mapping[int, RunReports] | None = None,
        take: TakeRequest | None = None,
        dead: str | None = None,
    ) -> SyncResponse:
        """Report what happened and return the server's answer; arguments as in :class:`.SyncRequest`.

        Raises:
            StoreUnreachable: The server cannot be reached, or does not know the token any more.
            StudyNotFound: The study was deleted.
        """
        request = SyncRequest(
            study=self._study,
            study_id=study_id,
            agent=dead or self.agent,
            session=self._session,
            workers=self._workers,
            changes=[change_to_plain(change) for change in changes],
            renew=dict(renew or {}),
            lease=lease,
            runs=dict(runs or {}),
            take=take,
            dead=dead is not None,
        )
        patience = _SLACK_SECONDS + (0.0 if take is None else take.wait)
        body = request.model_dump(mode="json", exclude_defaults=True)
        try:
            answer = self._connection.post("/api/agents/sync", body, timeout=patience)
        except AccessDenied as error:
            # a token is replaced while agents are at work: nothing is lost if it comes a little later
            raise StoreUnreachable(f"{error} Put a valid token in its place.") from error
        return SyncResponse.model_validate(answer)

    def leave(self, study_id: int) -> None:
        """Have what was given and not begun wait again."""
        request = Leave(study=self._study, study_id=study_id, agent=self.agent, session=self._session)
        self._connection.post("/api/agents/leave", request.model_dump(mode="json"), timeout=10.0)
