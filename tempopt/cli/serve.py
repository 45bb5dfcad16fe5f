"""``tempopt serve``: the studies of a database over HTTP."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from tempopt.cli.storage import storage_option
from tempopt.errors import UsageError, missing_extra
from tempopt.server.tokens import first_token
from tempopt.storage import urls
from tempopt.storage.http.address import is_server
from tempopt.storage.opening import open_store


def serve(arguments: argparse.Namespace) -> None:
    """Serve a database until Ctrl-C; if there is no token, create the first one and show it once."""
    try:
        from tempopt.server.serving import Listening
        from tempopt.server.serving import serve as serve_store
    except ModuleNotFoundError as error:
        packages = {"fastapi", "h11", "prometheus_client", "starlette", "uvicorn"}
        raise missing_extra(error, "server", packages, "tempopt serve answers by FastAPI") from error
    if not (arguments.storage or arguments.storage_file or os.environ.get("TEMPOPT_STORAGE")):
        # a user who has logged in to a server may still serve a database
        arguments.url = urls.DEFAULT_STORAGE
    if is_server(arguments.url):
        raise UsageError(
            f"{arguments.url} is a server itself. Give the URL of a database with --storage, as in "
            "sqlite:///tempopt.db or postgresql://user@host/database."
        )
    if (arguments.certificate is None) != (arguments.key is None):
        raise UsageError("--certificate and --key go together. Give both, or none of them.")
    listening = Listening(
        host=arguments.host,
        port=arguments.port,
        certificate=None if arguments.certificate is None else Path(arguments.certificate),
        key=None if arguments.key is None else Path(arguments.key),
    )
    with open_store(arguments.url, create=True) as store:
        if not listening.is_loopback and not store.tokens():
            raise UsageError(
                f"{listening.host} can be reached from other machines, but there is no token yet. Create one "
                f"first: tempopt token create --name admin --scope admin"
                f"{storage_option(arguments)}"
            )

        def print_startup_message(url: str) -> None:
            if token := first_token(store):
                print(
                    "The first token, which may do everything, is shown once. Keep it, or revoke it and "
                    f"create others (tempopt token create):\n{token}"
                )
            print(f"tempopt serves {store.masked_url} at {url}", flush=True)
            print(f"Log in from here:  tempopt login {url}", file=sys.stderr, flush=True)

        serve_store(
            store,
            checkpoints=arguments.checkpoints,
            listening=listening,
            proxies=arguments.trust_proxy,
            on_start=print_startup_message,
        )
