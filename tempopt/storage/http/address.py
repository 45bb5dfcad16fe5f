"""URLs of servers, in contrast to those of databases; imports nothing slow."""

from __future__ import annotations

from urllib.parse import urlsplit

from tempopt.errors import UsageError


def is_server(url: str) -> bool:
    """Return whether a storage URL is that of a tempopt server, not of a database."""
    return url.strip().partition("://")[0].lower() in ("http", "https")


def server_url(url: str) -> str:
    """Return the URL of a server without trailing slashes.

    Raises:
        UsageError: The URL has no host, or holds a password, a query or a fragment.
    """
    try:
        parts = urlsplit(url.strip())
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
    if not is_server(url) or not host:
        raise UsageError(f'"{url}" is not the URL of a server. Give one such as https://tempopt.example.com.')
    if parts.username or parts.password or parts.query or parts.fragment:
        raise UsageError(
            "The URL of a server must not hold a user, password or query. Give the token in a file "
            "(--token-file), or by tempopt login."
        )
    return url.strip().rstrip("/")
