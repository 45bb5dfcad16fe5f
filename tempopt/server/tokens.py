"""Tokens: how they are made, told apart and verified; the whole one is shown once and kept nowhere."""

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
"""What a token may do: read studies; begin, grow and end them; train for them; everything."""
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
    """Write a new token, and return it with its row; it is not to be had again.

    Args:
        name: Whom it stands for: letters, digits, ``.``, ``_`` and ``-``, at most 64 of them. What an agent
            holds is that of every agent with a token of this name, so that one can replace another.
        scopes: What it may do.
        studies: Only on studies whose names begin so; the empty text: on all.
        life: How long it is valid; None: until it is revoked.
        by: Name of the user who creates it.
        user: Whose studies are begun with it; empty: ``name``. A name, or
            the e-mail address that a proxy signs the person in with.

    Raises:
        UsageError: There is no such scope, or the name is none.
    """
    _check(name, NAME, "be the name of a token", '".", "_" and "-", at most 64')
    if studies:
        _check(studies, PREFIX, "begin the name of a study", '".", "_" and "-", at most 255')
    if user:
        _check(user, _USER, "be a user", '"@", ".", "_", "+" and "-", at most 100')
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


def _check(text: str, pattern: re.Pattern[str], purpose: str, signs: str) -> None:
    if pattern.fullmatch(text) is None:
        raise UsageError(
            f'"{text}" cannot {purpose}. Give letters, digits, {signs}, of which the first is a letter or a '
            "digit."
        )


def first_token(store: Store) -> str | None:
    """Return a token that may do everything, made because there is none yet; None if there is one."""
    if store.tokens():
        return None
    return create_token(store, name="admin", scopes=["admin"])[0]


def digest(token: str) -> str:
    """Return what is kept of a token, or of a browser's session."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def token_matches_row(token: str, row: TokenRow) -> bool:
    """Return whether a token is the one that a row was written for, in a time that tells nothing of it."""
    return hmac.compare_digest(digest(token), row.digest)


def lifetime(text: str) -> timedelta:
    """Return how long a token is valid, given a text as in ``30d``.

    Raises:
        UsageError: It is none.
    """
    parts = _LIFE.fullmatch(text)
    if parts is None:
        raise UsageError(
            f'"{text}" is no time. Give a number and m, h, d or w (minutes, hours, days, weeks), as in 30d.'
        )
    return timedelta(**{_UNITS[parts[2]]: int(parts[1])})
