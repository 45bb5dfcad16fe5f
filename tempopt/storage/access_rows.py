"""Rows of tokens, sessions and the audit log; they hold no secrets."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRow:
    """One token.

    Args:
        id: Short public id, with which the token begins.
        name: Name of the holder; several tokens may have one name, for example while one replaces another.
        digest: SHA-256 of the whole token, in hexadecimal digits.
        scopes: Permissions: ``view``, ``submit``, ``agent``, ``admin``.
        studies: Prefix of the names of studies that it may access; empty: all studies.
        created: Time of creation. All times are in UTC, by the clock of the machine that wrote them.
        expires: Time of expiry; None: it does not expire.
        used: When it was last accepted, to about a minute; None: never.
        revoked: When it was revoked; None: it is valid.
        created_by: Name of the user who created it; empty: created by the command line on the database.
        user: Owner of the studies that are created with it; empty: ``name``.
    """

    id: str
    name: str
    digest: str
    scopes: tuple[str, ...]
    studies: str
    created: datetime
    expires: datetime | None = None
    used: datetime | None = None
    revoked: datetime | None = None
    created_by: str = ""
    user: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRow:
    """One browser that a user has signed in with a token.

    Args:
        digest: SHA-256 of the browser's secret, in hexadecimal digits.
        token: Id of the token.
        created: In UTC, by the clock of the server that wrote it.
        expires: Time of expiry; the session also ends with its token.
    """

    digest: str
    token: str
    created: datetime
    expires: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRow:
    """One request in the audit log, accepted or refused.

    Args:
        number: Increasing id.
        moment: Time of the request, in UTC.
        name: Name of the token's holder; empty if the token was not recognised.
        token: Id of the token; empty without a token.
        address: Address of the client.
        action: Method and path, without the query.
        status: HTTP status of the answer.
        study: Name of the study; empty if the request was not about a study.
        detail: Further details, without secrets.
    """

    number: int
    moment: datetime
    name: str
    token: str
    address: str
    action: str
    status: int
    study: str = ""
    detail: str = ""
