"""Tokens and the audit log, as functions of a connection in a transaction; holds digests, never tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields
from datetime import datetime

from sqlalchemy import ColumnElement, Connection, delete, func, insert, or_, select, update

from tempopt.storage.access_rows import AuditRow, TokenRow
from tempopt.storage.claims import now, sanitize_text
from tempopt.storage.models import AUDIT, MAX_NAME, TOKEN

MOST_AUDITED = 100_000
"""Rows of the audit log that are kept of what was done, and a hundred more at most: the newest."""
MOST_REFUSED = 10_000
"""The same of what was refused, so that refusals do not drive out the others."""
MOST_OF_AGENTS = 10_000
"""The same of what agents have done, who come and go all the time."""
_TIDY = 100


def add(connection: Connection, token: TokenRow) -> None:
    """Write a new token."""
    connection.execute(insert(TOKEN).values(**{**asdict(token), "scopes": list(token.scopes)}))


def tokens(connection: Connection) -> list[TokenRow]:
    """Return every token, oldest first."""
    columns = (TOKEN.c[f.name] for f in fields(TokenRow))
    rows = connection.execute(select(*columns).order_by(TOKEN.c.created, TOKEN.c.id))
    return [TokenRow(**{**row._mapping, "scopes": tuple(row.scopes)}) for row in rows]


def token(connection: Connection, id: str) -> TokenRow | None:
    """Return the token of that id, None if there is none."""
    columns = (TOKEN.c[f.name] for f in fields(TokenRow))
    row = connection.execute(select(*columns).where(TOKEN.c.id == id)).one_or_none()
    return None if row is None else TokenRow(**{**row._mapping, "scopes": tuple(row.scopes)})


def revoke(connection: Connection, id: str) -> bool:
    """Revoke a token, and return whether it was valid before."""
    valid = (TOKEN.c.id == id, TOKEN.c.revoked.is_(None))
    return bool(connection.execute(update(TOKEN).where(*valid).values(revoked=now())).rowcount)


def used(connection: Connection, id: str, moment: datetime) -> None:
    """Write when a token was accepted last; an earlier moment than is known changes nothing."""
    earlier = or_(TOKEN.c.used.is_(None), TOKEN.c.used < moment)
    connection.execute(update(TOKEN).where(TOKEN.c.id == id, earlier).values(used=moment))


def audit(connection: Connection, rows: Sequence[AuditRow]) -> None:
    """Write what was done; their numbers are given here, and the oldest rows go, those of refusals apart."""
    if not rows:
        return
    audit_rows = [
        {
            "moment": row.moment,
            "name": (sanitize_text(row.name) or "")[:MAX_NAME],
            "token": row.token[:MAX_NAME],
            "address": row.address[:MAX_NAME],
            "action": (sanitize_text(row.action) or "")[:MAX_NAME],
            "status": row.status,
            "study": (sanitize_text(row.study) or "")[:MAX_NAME],
            "detail": (sanitize_text(row.detail) or "")[:MAX_NAME],
        }
        for row in rows
    ]
    connection.execute(insert(AUDIT), audit_rows)
    newest = connection.scalar(select(func.max(AUDIT.c.number))) or 0
    if newest % _TIDY < len(audit_rows):
        agents = AUDIT.c.action.like("POST /api/agents/%")
        _tidy(connection, (AUDIT.c.status < 400) & ~agents, MOST_AUDITED)
        _tidy(connection, (AUDIT.c.status < 400) & agents, MOST_OF_AGENTS)
        _tidy(connection, AUDIT.c.status >= 400, MOST_REFUSED)


def _tidy(connection: Connection, condition: ColumnElement[bool], max_rows: int) -> None:
    newest_first = select(AUDIT.c.number).where(condition).order_by(AUDIT.c.number.desc())
    last_number = connection.scalar(newest_first.offset(max_rows).limit(1))
    if last_number is not None:
        connection.execute(delete(AUDIT).where(condition, AUDIT.c.number <= last_number))


def audited(connection: Connection, *, before: int | None, limit: int, study: str) -> list[AuditRow]:
    """Return what was done, newest first.

    Args:
        before: Only rows of lower numbers; None: from the newest on.
        limit: Number of rows, > 0.
        study: Only rows about the study of this name; the empty text: about anything.
    """
    columns = (AUDIT.c[f.name] for f in fields(AuditRow))
    query = select(*columns).order_by(AUDIT.c.number.desc()).limit(limit)
    if before is not None:
        query = query.where(AUDIT.c.number < before)
    if study:
        query = query.where(AUDIT.c.study == study)
    return [AuditRow(**row._mapping) for row in connection.execute(query)]
