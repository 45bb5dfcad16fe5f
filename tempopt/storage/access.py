"""Access to a server's store: tokens, sessions of browsers, and the audit log.

Only digests are stored, never a token or the secret of a session.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields
from datetime import datetime

from sqlalchemy import ColumnElement, Connection, delete, func, insert, or_, select, update

from tempopt.storage.access_rows import AuditRow, SessionRow, TokenRow
from tempopt.storage.claims import now, shorten_text
from tempopt.storage.database import Repository, read_transaction, write_transaction
from tempopt.storage.models import AUDIT, SESSION, TOKEN

MAX_AUDIT_ROWS = 100_000
"""Number of accepted requests in the audit log, plus up to 100: the newest ones."""
MAX_REFUSED_AUDIT_ROWS = 10_000
"""The same for refused requests, which are counted apart so that they do not displace the accepted ones."""
MAX_AGENT_AUDIT_ROWS = 10_000
"""The same for requests of agents, which are many."""
_CLEANUP_INTERVAL = 100
MAX_SESSIONS = 100
"""Number of sessions of one token: the newest ones."""


class AccessRepository(Repository):
    """The methods of :class:`tempopt.storage.Store` for tokens, sessions and the audit log."""

    @write_transaction
    def add_token(self, connection: Connection, token: TokenRow) -> None:
        """Write a new token, by its digest."""
        connection.execute(insert(TOKEN).values(**{**asdict(token), "scopes": list(token.scopes)}))

    @read_transaction
    def tokens(self, connection: Connection) -> list[TokenRow]:
        """Return all tokens, oldest first, including revoked ones."""
        return _read_tokens(connection)

    @read_transaction
    def token(self, connection: Connection, id: str) -> TokenRow | None:
        """Return the token of that id, None if there is none."""
        return next(iter(_read_tokens(connection, TOKEN.c.id == id)), None)

    @write_transaction
    def revoke_token(self, connection: Connection, id: str) -> bool:
        """Revoke a token, and return whether it was valid before."""
        conditions = (TOKEN.c.id == id, TOKEN.c.revoked.is_(None))
        return bool(connection.execute(update(TOKEN).where(*conditions).values(revoked=now())).rowcount)

    @write_transaction
    def use_token(self, connection: Connection, id: str, moment: datetime) -> None:
        """Write when a token was last accepted, unless a later time is stored."""
        earlier = or_(TOKEN.c.used.is_(None), TOKEN.c.used < moment)
        connection.execute(update(TOKEN).where(TOKEN.c.id == id, earlier).values(used=moment))

    @write_transaction
    def audit(self, connection: Connection, rows: Sequence[AuditRow]) -> None:
        """Write rows of the audit log, with new numbers, and delete the oldest beyond the limits."""
        if not rows:
            return
        names = [f.name for f in fields(AuditRow) if f.name != "number"]
        audit_rows = [{name: getattr(row, name) for name in names} for row in rows]
        for audit_row in audit_rows:
            audit_row |= {k: shorten_text(value) for k, value in audit_row.items() if isinstance(value, str)}
        connection.execute(insert(AUDIT), audit_rows)
        newest_number = connection.scalar(select(func.max(AUDIT.c.number))) or 0
        if newest_number % _CLEANUP_INTERVAL < len(audit_rows):
            agents = AUDIT.c.action.like("POST /api/agents/%")
            _delete_old_rows(connection, (AUDIT.c.status < 400) & ~agents, MAX_AUDIT_ROWS)
            _delete_old_rows(connection, (AUDIT.c.status < 400) & agents, MAX_AGENT_AUDIT_ROWS)
            _delete_old_rows(connection, AUDIT.c.status >= 400, MAX_REFUSED_AUDIT_ROWS)

    @read_transaction
    def audit_rows(
        self, connection: Connection, *, before: int | None = None, limit: int = 100, study: str = ""
    ) -> list[AuditRow]:
        """Return rows of the audit log, newest first.

        Args:
            before: Only rows with lower numbers; None: from the newest.
            limit: Number of rows, > 0.
            study: Only rows about the study of this name; empty: all rows.
        """
        columns = (AUDIT.c[f.name] for f in fields(AuditRow))
        query = select(*columns).order_by(AUDIT.c.number.desc()).limit(limit)
        if before is not None:
            query = query.where(AUDIT.c.number < before)
        if study:
            query = query.where(AUDIT.c.study == study)
        return [AuditRow(**row._mapping) for row in connection.execute(query)]

    @write_transaction
    def add_session(self, connection: Connection, session: SessionRow) -> None:
        """Write a new session; delete expired ones, and the oldest beyond the limit of its token."""
        connection.execute(delete(SESSION).where(SESSION.c.expires < session.created))
        newest_first = select(SESSION.c.digest).where(SESSION.c.token == session.token)
        newest_first = newest_first.order_by(SESSION.c.created.desc(), SESSION.c.digest)
        # two statements, since MySQL cannot delete from a table that the statement selects from
        old_ids = connection.scalars(newest_first.offset(MAX_SESSIONS - 1).limit(MAX_SESSIONS)).all()
        if old_ids:
            connection.execute(delete(SESSION).where(SESSION.c.digest.in_(old_ids)))
        connection.execute(insert(SESSION).values(**asdict(session)))

    @read_transaction
    def session(self, connection: Connection, digest: str) -> SessionRow | None:
        """Return the session of that digest, which may have expired; None if there is none."""
        columns = (SESSION.c[f.name] for f in fields(SessionRow))
        row = connection.execute(select(*columns).where(SESSION.c.digest == digest)).one_or_none()
        return None if row is None else SessionRow(**row._mapping)

    @write_transaction
    def end_session(self, connection: Connection, digest: str) -> None:
        """Delete a session if it exists."""
        connection.execute(delete(SESSION).where(SESSION.c.digest == digest))


def _read_tokens(connection: Connection, *where: ColumnElement[bool]) -> list[TokenRow]:
    columns = (TOKEN.c[f.name] for f in fields(TokenRow))
    rows = connection.execute(select(*columns).where(*where).order_by(TOKEN.c.created, TOKEN.c.id))
    return [TokenRow(**{**row._mapping, "scopes": tuple(row.scopes)}) for row in rows]


def _delete_old_rows(connection: Connection, condition: ColumnElement[bool], max_rows: int) -> None:
    newest_first = select(AUDIT.c.number).where(condition).order_by(AUDIT.c.number.desc())
    last_number = connection.scalar(newest_first.offset(max_rows).limit(1))
    if last_number is not None:
        connection.execute(delete(AUDIT).where(condition, AUDIT.c.number <= last_number))
