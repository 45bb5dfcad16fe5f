"""``tempopt login`` and ``logout``: the default server of this user, and its token."""

from __future__ import annotations

import argparse
import getpass
import sys
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tempopt.errors import UsageError, escape_control_chars
from tempopt.storage.http import credentials
from tempopt.storage.http.address import server_url

_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def login(arguments: argparse.Namespace) -> None:
    """Verify a token with the server, store it, and make the server the default storage of this user."""
    url = server_url(arguments.server)
    if url.startswith("http:") and urlsplit(url).hostname not in _LOOPBACK:
        print(
            f"tempopt: warning: {url} is not encrypted: others on the network can read the token. Use https://.",
            file=sys.stderr,
        )
    token = (
        _prompt_for_token(url)
        if arguments.token_file is None
        else credentials.read_token_file(Path(arguments.token_file))
    )
    me = _request_identity(url, token)
    path = credentials.remember(url, token)
    prefix = f"studies that begin with {me['prefix']}" if me["prefix"] else "all studies"
    print(escape_control_chars(f"Logged in to {url} as {me['name']}: {', '.join(me['scopes'])} on {prefix}."))
    print(
        f"The token is kept in {path}. Commands mean this server where neither --storage nor TEMPOPT_STORAGE "
        "is given."
    )


def logout(arguments: argparse.Namespace) -> None:
    """Forget a server and its token."""
    server = credentials.forget(arguments.server)
    if server is None:
        server_text = "any server" if arguments.server is None else arguments.server
        print(escape_control_chars(f"You are not logged in to {server_text}."))
        return
    print(f"Logged out of {server}. The token is still valid. To revoke it: tempopt token revoke")


def _prompt_for_token(url: str) -> str:
    if not sys.stdin.isatty():
        raise UsageError(
            "tempopt login asks for the token, and there is no terminal to answer at. Give --token-file FILE."
        )
    try:
        return credentials.validate_token(getpass.getpass(f"Token for {url}: "), "The answer")
    except EOFError:
        raise UsageError("No token was given. Give --token-file FILE, or type it.") from None


def _request_identity(url: str, token: str) -> dict[str, Any]:
    """Return the identity of a token from the server; raise AccessDenied if the token is not valid."""
    from tempopt.storage.http.connection import ServerConnection

    with closing(ServerConnection(url, token)) as connection:
        token_info: dict[str, Any] = connection.get("/api/me")
    if not isinstance(token_info, dict) or not {"name", "scopes", "prefix"} <= token_info.keys():
        raise UsageError(f"{url} does not answer as a tempopt server. Give the URL of tempopt serve.")
    return token_info
