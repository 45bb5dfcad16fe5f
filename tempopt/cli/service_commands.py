"""The commands of a service for a team, with their arguments: the server, and access to it.

A table; carries nothing out, and imports nothing that takes time.
"""

from __future__ import annotations

from tempopt.cli import argument_types
from tempopt.cli.arguments import JSON, STORE, WORKERS, Command, argument

SERVICE = {
    "serve": Command(
        "serve the studies of a database over HTTP, to people, programs and agents",
        "tempopt.cli.serve:serve",
        (
            *STORE,
            argument(
                "--checkpoints",
                metavar="URL",
                default="tempopt-runs",
                help="where checkpoints are kept: a folder, or a URL such as s3://bucket/folder (default: "
                "tempopt-runs)",
            ),
            argument(
                "--host",
                metavar="ADDRESS",
                default="127.0.0.1",
                help="address to listen on; any but a loopback address requires that there are tokens "
                "(default: 127.0.0.1)",
            ),
            argument(
                "--port",
                metavar="N",
                type=argument_types.port,
                default=8765,
                help="port to listen on; 0 selects a free one (default: 8765)",
            ),
            argument("--certificate", metavar="FILE", help="certificate chain, for TLS; with --key"),
            argument("--key", metavar="FILE", help="private key of the certificate"),
            argument(
                "--trust-proxy",
                metavar="NETWORK",
                action="append",
                type=argument_types.network,
                default=[],
                help="address or network of a proxy whose X-Forwarded-For and -Proto count; repeatable",
            ),
        ),
    ),
    "mcp": Command(
        "serve the studies as tools to a coding agent, within a budget, by the Model Context Protocol",
        "tempopt.cli.mcp:mcp",
        (
            argument(
                "--gpu-hours",
                metavar="H",
                type=argument_types.number,
                help="most GPU-hours of its studies; where none is used, hours of training (default: any)",
            ),
            argument(
                "--runs",
                metavar="N",
                type=argument_types.count,
                help="most trainings of its studies, of every kind (default: any)",
            ),
            argument(
                "--user",
                metavar="USER",
                type=argument_types.user,
                help="on a database: whose studies they are, and whose budget is spent (default: mcp)",
            ),
            WORKERS,
            *STORE,
        ),
    ),
    "token": Command(
        "create, list or revoke the tokens that a server asks for",
        "tempopt.cli.token:token",
        (
            argument(
                "action",
                metavar="ACTION",
                choices=("create", "list", "revoke"),
                help="create, list or revoke",
            ),
            argument("id", metavar="ID", nargs="?", help="id of the token to revoke"),
            argument("--name", metavar="NAME", help="whom the token stands for"),
            argument(
                "--scope",
                metavar="SCOPE",
                action="append",
                default=[],
                choices=("view", "submit", "agent", "admin"),
                help="what it may do: view, submit, agent or admin; repeatable",
            ),
            argument(
                "--studies", metavar="PREFIX", help="only on studies whose names begin so (default: all)"
            ),
            argument(
                "--user",
                metavar="USER",
                help="whose studies are begun with it (default: the name)",
            ),
            argument(
                "--expires", metavar="TIME", help="how long it is valid, as in 30d (default: until revoked)"
            ),
            *STORE,
            JSON,
        ),
    ),
    "login": Command(
        "log in to a server, which commands mean from then on where no storage is given",
        "tempopt.cli.login:login",
        (
            argument("server", metavar="URL", help="URL of the server, as in https://tempopt.example.com"),
            argument(
                "--token-file",
                metavar="FILE",
                help="file whose only line is the token (default: it is asked for)",
            ),
        ),
    ),
    "logout": Command(
        "forget a server and its token",
        "tempopt.cli.login:logout",
        (
            argument(
                "server",
                metavar="URL",
                nargs="?",
                help="URL of the server (default: the one that you have logged in to last)",
            ),
        ),
    ),
}
