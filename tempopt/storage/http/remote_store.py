"""RemoteStore: a store behind a server, read over HTTP; what is written goes by the verbs of the server.

What it returns is what the store in a database returns, so whatever reads one reads the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NoReturn, Self

from tempopt.errors import StudyNotFound, UsageError
from tempopt.storage.changes import StudyDelta
from tempopt.storage.http.connection import ServerConnection
from tempopt.storage.http.credentials import token_for
from tempopt.storage.http.paths import study_path
from tempopt.storage.http.wire import deserialize, measurements_from_plain
from tempopt.storage.rows import JobRow, Kind, LogRow, Measurement, StudyRow, StudySummary, TicketRow
from tempopt.storage.store import Store

# A request's line has an end; so many ids fit well.
_MANY = 200


class RemoteStore(Store):
    """The studies behind one server, to be read; threads may share it.

    Every method that reads does so as on a database. It raises StoreUnreachable when the server cannot be
    reached, and AccessDenied when the token does not allow it. Those that write raise UsageError.

    Args:
        server: The server, with a token; closed with the store.
        token: That token, if the program was given it and no other can find it; None: others can.
    """

    def __init__(self, server: ServerConnection, token: str | None = None) -> None:
        self.server = server
        self.given_token = token
        self._names: dict[int, str] = {}

    @classmethod
    def at(cls, url: str, token: str | None = None) -> Self:
        """Return the store behind the server at a URL, which is not asked yet.

        Args:
            token: What this client may do; None: the one that is known for this server
                (:func:`tempopt.storage.http.credentials.token_for`).
        """
        # one in a file may be replaced while a study is looked at
        return cls(ServerConnection(url, (lambda: token_for(url)) if token is None else token), token)

    @property
    def url(self) -> str:
        """The URL of the server."""
        return self.server.url

    @property
    def masked_url(self) -> str:
        """The URL of the server: there is no password in it."""
        return self.server.url

    def __repr__(self) -> str:
        return f"RemoteStore({self.url!r})"

    def close(self) -> None:
        """Close every connection."""
        self.server.close()

    def ask(self, name: str, verb: str, body: Mapping[str, Any] | None = None) -> Any:
        """Return what the server answers, as plain data, when it is asked to do something to a study.

        Args:
            name: Name of the study.
            verb: As in the path: ``pause``, ``stop``, ``resume``, ``enqueue``, ``gc``.
            body: What is asked, as plain data.
        """
        return self.server.post(study_path(name, verb), body)

    def ask_to_delete(self, name: str, *, force: bool) -> Any:
        """Delete a study, even at work if forced; return the result as plain data."""
        return self.server.request("DELETE", study_path(name), params={"force": force})

    # ---- reading

    def load_study(self, name: str) -> StudyRow:
        row: StudyRow = deserialize(StudyRow, self.server.get(study_path(name, "row")))
        self._names[row.id] = row.name
        return row

    def list_studies(self) -> list[StudySummary]:
        rows: list[StudySummary] = deserialize(list[StudySummary], self.server.get("/api/summaries"))
        self._names |= {row.study.id: row.study.name for row in rows}
        return rows

    def warm_start(self, study_id: int) -> list[Any]:
        prior_runs: list[Any] = self._of(study_id, "warm-start")
        return prior_runs

    def jobs(self, name: str) -> list[JobRow]:
        return deserialize(list[JobRow], self.server.get(study_path(name, "jobs")))

    def tickets(self, study_id: int, kinds: Iterable[Kind] | None = None) -> list[TicketRow]:
        kind_names = None if kinds is None else list(kinds)
        if kind_names == []:
            return []
        return deserialize(list[TicketRow], self._of(study_id, "tickets", kinds=kind_names))

    def ticket(self, study_id: int, kind: Kind, number: int) -> TicketRow | None:
        return next((ticket for ticket in self.tickets(study_id, [kind]) if ticket.number == number), None)

    def news(self, study_id: int, since: Mapping[Kind, int]) -> StudyDelta:
        starts = [f"{kind}:{first_number}" for kind, first_number in since.items()]
        return deserialize(StudyDelta, self._of(study_id, "news", since=starts or ["none"]))

    def measurements(
        self,
        study_id: int,
        ticket_ids: Iterable[int] | None = None,
        names: Iterable[str] | None = None,
        *,
        prefixes: Iterable[str] = (),
    ) -> list[Measurement]:
        name_list = None if names is None else list(names)
        if name_list == []:
            return []
        parts = self._in_parts(
            study_id, "measurements", ticket_ids, names=name_list, prefixes=list(prefixes) or None
        )
        return [measurement for part in parts for measurement in measurements_from_plain(part)]

    def logs(self, study_id: int, ticket_ids: Iterable[int] | None = None) -> list[LogRow]:
        logs: list[LogRow] = []
        for part in self._in_parts(study_id, "logs", ticket_ids):
            logs += deserialize(list[LogRow], part)
        return logs

    def attention_maps(self, study_id: int, ticket_ids: Iterable[int]) -> dict[int, Any]:
        parts = self._in_parts(study_id, "maps", ticket_ids)
        return {int(ticket): maps for part in parts for ticket, maps in part.items()}

    def _in_parts(
        self, study_id: int, what: str, ticket_ids: Iterable[int] | None, **params: Any
    ) -> Iterator[Any]:
        """Yield what the server tells of tickets, asked about so many at a time as one request may name."""
        if ticket_ids is None:
            yield self._of(study_id, what, **params)
            return
        ids = sorted(set(ticket_ids))
        for start in range(0, len(ids), _MANY):
            yield self._of(study_id, what, ids=ids[start : start + _MANY], **params)

    def _of(self, study_id: int, what: str, **params: Any) -> Any:
        """Return what the server tells of a study, refused if another one has its name by now."""
        if study_id not in self._names:
            self.list_studies()
        name = self._names.get(study_id)
        if name is None:
            raise StudyNotFound(f"Study {study_id} has been deleted meanwhile.")
        return self.server.get(study_path(name, what), study=study_id, **params)

    # ---- what only agents on a database, and the server itself, may do

    def _refuse_access(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise UsageError(
            f"{self.url} is a tempopt server, and this writes to the database itself. Ask the server "
            "for it: tempopt search, resume, pause, stop, delete and gc do, and so does tempopt.connect."
        )

    create_study = import_study = set_state = set_spec = set_checkpoints = delete_study = _refuse_access
    find_colliding_param_names = totals = open_studies = set_priority = _refuse_access
    add_jobs = forget_jobs = add_tickets = retry = withdraw = withdraw_from = _refuse_access
    add_token = tokens = token = revoke_token = use_token = audit = audit_rows = _refuse_access
    add_session = session = end_session = _refuse_access
    take_ticket = release = begin = write = set_recommendation = _refuse_access
