"""``tempopt mcp``: plan, compare, search and their verdicts as tools for coding agents, within a budget."""

from __future__ import annotations

import argparse

from tempopt.errors import missing_extra


def mcp(arguments: argparse.Namespace) -> None:
    """Answer one client on standard input and output until it disconnects."""
    from tempopt.server.mcp.budget import Budget
    from tempopt.server.mcp.session import Session

    try:
        from tempopt.server.mcp.serving import serve
    except ModuleNotFoundError as error:
        packages = {"mcp", "mcp_types"}
        raise missing_extra(error, "mcp", packages, "tempopt mcp speaks MCP by its package") from error
    budget = Budget(runs=arguments.runs, gpu_hours=arguments.gpu_hours)
    with Session(arguments.url, user=arguments.user, budget=budget, workers=arguments.workers) as session:
        serve(session)
