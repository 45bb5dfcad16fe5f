"""Store: the one door to studies, tickets and measurements. It knows no Optuna and trains nothing."""

from __future__ import annotations

from typing import Self

from tempopt.storage.access import AccessRepository
from tempopt.storage.apply_changes import RunRepository
from tempopt.storage.studies import StudyRepository
from tempopt.storage.tickets import TicketRepository


class Store(StudyRepository, TicketRepository, RunRepository, AccessRepository):
    """The studies in one database. Made by ``open_store``; close it, or use it in ``with``.

    Every method is one transaction. What is written about a run carries the attempt that it belongs to,
    and is refused when the ticket has been given to another agent or has ended. Every method raises
    StoreUnreachable when the database cannot be reached (what was to be written is written or not: say it
    again) and another StorageError when it fails. Threads may share a store; processes may not: each opens
    its own.
    """

    @property
    def url(self) -> str:
        """The URL to connect with, driver named, SQLite paths absolute, password and all: never print it."""
        return self._database.address.url.render_as_string(hide_password=False)

    def __repr__(self) -> str:
        return f"Store({self.masked_url!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection; the store cannot fail in this."""
        self._database.close()
