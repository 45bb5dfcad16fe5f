"""RemoteStore: a store behind a server, read over HTTP; changes are made by requests to the server.

Its methods return the same as those of the store in a database.
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

# Number of ids in one request, whose URL has a limited length.
_MAX_IDS = 200


class RemoteStore(Store):
    """The studies behind one server, read-only; threads may share it.

    Methods that read raise StoreUnreachable when the server cannot be reached, and AccessDenied when the
    token does not allow it. Methods that write raise UsageError.

    Args:
        server: The server, with a token; closed with the store.
        token: The token, if it was passed to this program and is not stored; None: other programs find it.
    """

    def __init__(self, server: ServerConnection, token: str | None = None) -> None:
        self.server = server
        self.given_token = token
        self._names: dict[int, str] = {}

    @classmethod
    def at(cls, url: str, token: str | None = None) -> Self:
        """Return the store behind the server at a URL, without a request.

        Args:
            token: The token; None: the one that is stored for this server
                (:func:`tempopt.storage.http.credentials.token_for`).
        """
        # a token in a file may be replaced while a study is displayed
        return cls(ServerConnection(url, (lambda: token_for(url)) if token is None else token), token)

    @property
    def url(self) -> str:
        """The URL of the server."""
        return self.server.url

    @property
    def masked_url(self) -> str:
        """The URL of the server, which holds no password."""
        return self.server.url

    def __repr__(self) -> str:
        return f"RemoteStore({self.url!r})"

    def close(self) -> None:
        """Close every connection."""
        self.server.close()

    def ask(self, name: str, verb: str, body: Mapping[str, Any] | None = None) -> Any:
        """Request an action on a study, and return the server's answer as plain data.

        The request has the study's id: a late copy of it does nothing to a later study of that name.

        Args:
            name: Name of the study.
            verb: Action, as in the path: ``pause``, ``stop``, ``resume``, ``enqueue``, ``gc``.
            body: Arguments of the action, as plain data.
        """
        params = {"study": self.load_study(name).id}
        return self.server.request("POST", study_path(name, verb), params=params, json=dict(body or {}))

    def ask_to_delete(self, name: str, *, force: bool) -> Any:
        """Delete a study, with ``force`` even while agents work on it; return the result as plain data."""
        params = {"study": self.load_study(name).id, "force": force}
        return self.server.request("DELETE", study_path(name), params=params)

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
        prior_runs: list[Any] = self._get_resource(study_id, "warm-start")
        return prior_runs

    def jobs(self, name: str) -> list[JobRow]:
        return deserialize(list[JobRow], self.server.get(study_path(name, "jobs")))

    def tickets(self, study_id: int, kinds: Iterable[Kind] | None = None) -> list[TicketRow]:
        kind_names = None if kinds is None else list(kinds)
        if kind_names == []:
            return []
        return deserialize(list[TicketRow], self._get_resource(study_id, "tickets", kinds=kind_names))

    def ticket(self, study_id: int, kind: Kind, number: int) -> TicketRow | None:
        return next((ticket for ticket in self.tickets(study_id, [kind]) if ticket.number == number), None)

    def news(self, study_id: int, since: Mapping[Kind, int]) -> StudyDelta:
        starts = [f"{kind}:{first_number}" for kind, first_number in since.items()]
        return deserialize(StudyDelta, self._get_resource(study_id, "news", since=starts or ["none"]))

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
        parts = self._iter_parts(
            study_id, "measurements", ticket_ids, names=name_list, prefixes=list(prefixes) or None
        )
        return [measurement for part in parts for measurement in measurements_from_plain(part)]

    def logs(self, study_id: int, ticket_ids: Iterable[int] | None = None) -> list[LogRow]:
        logs: list[LogRow] = []
        for part in self._iter_parts(study_id, "logs", ticket_ids):
            logs += deserialize(list[LogRow], part)
        return logs

    def attention_maps(self, study_id: int, ticket_ids: Iterable[int]) -> dict[int, Any]:
        parts = self._iter_parts(study_id, "maps", ticket_ids)
        return {int(ticket): maps for part in parts for ticket, maps in part.items()}

    def _iter_parts(
        self, study_id: int, what: str, ticket_ids: Iterable[int] | None, **params: Any
    ) -> Iterator[Any]:
        """Yield the server's answers about tickets, in requests of at most ``_MAX_IDS`` ids."""
        if ticket_ids is None:
            yield self._get_resource(study_id, what, **params)
            return
        ids = sorted(set(ticket_ids))
        for start in range(0, len(ids), _MAX_IDS):
            yield self._get_resource(study_id, what, ids=ids[start : start + _MAX_IDS], **params)

    def _get_resource(self, study_id: int, what: str, **params: Any) -> Any:
        """Return a resource of a study; refused if another study has its name by now."""
        if study_id not in self._names:
            self.list_studies()
        name = self._names.get(study_id)
        if name is None:
            raise StudyNotFound(f"Study {study_id} has been deleted.")
        return self.server.get(study_path(name, what), study=study_id, **params)

    # ---- only for agents with access to the database, and for the server itself

    def _refuse_access(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise UsageError(
            f"{self.url} is a tempopt server, and this call writes to the database itself. Use requests "
            "to the server: tempopt search, resume, pause, stop, delete and gc, or tempopt.connect."
        )

    create_study = import_study = set_state = set_spec = set_checkpoints = delete_study = _refuse_access
    find_colliding_param_names = totals = open_studies = set_priority = delete_optuna_study = _refuse_access
    add_jobs = forget_jobs = add_tickets = retry = withdraw = withdraw_from = _refuse_access
    add_token = tokens = token = revoke_token = use_token = audit = audit_rows = _refuse_access
    add_session = session = end_session = attempts = _refuse_access
    take_ticket = release = begin = write = set_recommendation = _refuse_access
