"""Create and verify tokens; a token is shown once and stored as a digest."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Literal, get_args

from tempopt.errors import UsageError
from tempopt.storage.access_rows import TokenRow
from tempopt.storage.store import Store

Scope = Literal["view", "submit", "agent", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
"""Scopes of a token: read studies; create, extend and end them; train for them; everything."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_USER = re.compile(r"[A-Za-z0-9][A-Za-z0-9@._+-]{0,99}")
PREFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
TOKEN = re.compile(r"tempopt_([0-9a-f]{12})_[A-Za-z0-9_-]{43}")
"""A token: its public id, then 256 random bits in base64."""
_LIFE = re.compile(r"([1-9][0-9]{0,4})([mhdw])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def create_token(
    store: Store,
    *,
    name: str,
    scopes: Sequence[str],
    studies: str = "",
    life: timedelta | None = None,
    by: str = "",
    user: str = "",
) -> tuple[str, TokenRow]:
    """Write a new token, and return it with its row; it cannot be shown again.

    Args:
        name: Name of the holder: letters, digits, ``.``, ``_`` and ``-``, at most 64. Agents with tokens of
            the same name share their tickets, so that one token can replace another.
        scopes: Its scopes.
        studies: Prefix of the names of studies that it may access; empty: all studies.
        life: Lifetime; None: until it is revoked.
        by: Name of the user who creates it.
        user: Owner of the studies that are created with it, a name or an e-mail address; empty: ``name``.

    Raises:
        UsageError: A scope does not exist, or a name is invalid.
    """
    _check_name(name, NAME, "be the name of a token", '".", "_" and "-", at most 64')
    if studies:
        _check_name(studies, PREFIX, "begin the name of a study", '".", "_" and "-", at most 255')
    if user:
        _check_name(user, _USER, "be a user", '"@", ".", "_", "+" and "-", at most 100')
    if not scopes or (unknown := [scope for scope in scopes if scope not in SCOPES]):
        names = ", ".join(unknown) if scopes else "none"
        raise UsageError(f"Unknown scope: {names}. The scopes are {', '.join(SCOPES)}.")
    id, now = secrets.token_hex(6), datetime.now(UTC)
    token = f"tempopt_{id}_{secrets.token_urlsafe(32)}"
    row = TokenRow(
        id=id,
        name=name,
        digest=digest(token),
        scopes=tuple(scope for scope in SCOPES if scope in scopes),
        studies=studies,
        created=now,
        expires=None if life is None else now + life,
        created_by=by,
        user=user,
    )
    store.add_token(row)
    return token, row


def _check_name(text: str, pattern: re.Pattern[str], purpose: str, signs: str) -> None:
    if pattern.fullmatch(text) is None:
        raise UsageError(
            f'"{text}" cannot {purpose}. Give letters, digits, {signs}, of which the first is a letter or a '
            "digit."
        )


def first_token(store: Store) -> str | None:
    """Create and return a token of scope ``admin`` if there is no token yet; else return None."""
    if store.tokens():
        return None
    return create_token(store, name="admin", scopes=["admin"])[0]


def digest(token: str) -> str:
    """Return the digest of a token, or of a browser's session."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def token_matches_row(token: str, row: TokenRow) -> bool:
    """Return whether a token is that of a row, by a comparison in constant time."""
    return hmac.compare_digest(digest(token), row.digest)


def lifetime(text: str) -> timedelta:
    """Return the lifetime of a text such as ``30d``.

    Raises:
        UsageError: The text is invalid.
    """
    parts = _LIFE.fullmatch(text)
    if parts is None:
        raise UsageError(
            f'"{text}" is no duration. Give a number and m, h, d or w (minutes to weeks), as in 30d.'
        )
    return timedelta(**{_UNITS[parts[2]]: int(parts[1])})
