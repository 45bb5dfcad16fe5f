"""What a store knows of those who ask its servers: their tokens, and what was done."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from tempopt.storage import token_queries
from tempopt.storage.access_rows import AuditRow, TokenRow
from tempopt.storage.database import Database
from tempopt.storage.sessions import SessionRepository


class TokenRepository:
    """The part of :class:`tempopt.storage.Store` that is about access.

    Args:
        database: The database.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def add_token(self, token: TokenRow) -> None:
        """Write a new token, of which the store holds the digest alone."""
        self._database.write(lambda c: token_queries.add(c, token))

    def tokens(self) -> list[TokenRow]:
        """Return every token, oldest first, those that were revoked included."""
        return self._database.read(token_queries.tokens)

    def token(self, id: str) -> TokenRow | None:
        """Return the token of that id, None if there is none."""
        return self._database.read(lambda c: token_queries.token(c, id))

    def revoke_token(self, id: str) -> bool:
        """Revoke a token, and return whether it was valid before."""
        return self._database.write(lambda c: token_queries.revoke(c, id))

    def use_token(self, id: str, moment: datetime) -> None:
        """Write when a token was accepted last; an earlier moment than is known changes nothing."""
        self._database.write(lambda c: token_queries.used(c, id, moment))

    def audit(self, rows: Sequence[AuditRow]) -> None:
        """Write what was done; numbers are given here, and the oldest rows go, those of refusals apart."""
        self._database.write(lambda c: token_queries.audit(c, rows))

    def audited(self, *, before: int | None = None, limit: int = 100, study: str = "") -> list[AuditRow]:
        """Return what was done, newest first: rows below a number, of a study, ``limit`` of them at most."""
        return self._database.read(
            lambda c: token_queries.audited(c, before=before, limit=limit, study=study)
        )

    @property
    def sessions(self) -> SessionRepository:
        """The browsers that people have signed in with a token."""
        return SessionRepository(self._database)
