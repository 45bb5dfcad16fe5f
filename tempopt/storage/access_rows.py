"""Tokens and what was done with them, as the store gives them out: no secret is among it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRow:
    """One token.

    Args:
        id: Public, short; the token begins with it.
        name: Whom it stands for: several tokens may have one name, as while one replaces another.
        digest: SHA-256 of the whole token, in hexadecimal digits.
        scopes: What it may do: ``view``, ``submit``, ``agent``, ``admin``.
        studies: Only on studies whose names begin so; the empty text: on all.
        created: In UTC, as every moment here, by the clock of the machine that wrote it.
        expires: None: never.
        used: When it was accepted last, to about a minute; None: never yet.
        revoked: None: it is not.
        created_by: Name of the user who created it; empty if that was the command line on the database.
        user: Whose studies are begun with it; empty: ``name``.
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
        digest: SHA-256 of what the browser holds, in hexadecimal digits.
        token: Id of the token.
        created: In UTC, by the clock of the server that wrote it.
        expires: The session ends then, if the token has not ended before.
    """

    digest: str
    token: str
    created: datetime
    expires: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRow:
    """One thing that a user did, or was refused.

    Args:
        number: Grows with time.
        moment: When, in UTC.
        name: Name of the token, or of the person; empty if none was recognised.
        token: Id of the token; empty without one.
        address: Where the request came from.
        action: Method and path, without a query.
        status: HTTP status of the answer.
        study: Name of the study that it was about; empty if it was about none.
        detail: What else there is to say; no secret.
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
