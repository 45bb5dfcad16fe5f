"""Store: the interface to studies, tickets and measurements in a database."""

from __future__ import annotations

from typing import Self

from tempopt.storage.access import AccessRepository
from tempopt.storage.apply_changes import RunRepository
from tempopt.storage.studies import StudyRepository
from tempopt.storage.tickets import TicketRepository


class Store(StudyRepository, TicketRepository, RunRepository, AccessRepository):
    """The studies in one database, opened by ``open_store``; close it, or use it in ``with``.

    Every method is one transaction. Changes of a run have its attempt, and are refused when the ticket has
    ended or another agent holds it. Methods raise StoreUnreachable when the database cannot be reached (the
    write may or may not have been applied: repeat it) and another StorageError when it fails. Threads may
    share a store; every process has to open its own.
    """

    @property
    def url(self) -> str:
        """The URL to connect with: driver named, SQLite paths absolute, with its password: never print it."""
        return self._database.address.url.render_as_string(hide_password=False)

    def __repr__(self) -> str:
        return f"Store({self.masked_url!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection; does not raise."""
        self._database.close()
