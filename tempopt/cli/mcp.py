"""``tempopt mcp``: plan, compare, search and their verdicts as tools for coding agents, within a budget."""

from __future__ import annotations

import argparse

from tempopt.cli import DONE
from tempopt.errors import UsageError


def mcp(arguments: argparse.Namespace) -> int:
    """Answer one client on standard input and output until it leaves."""
    from tempopt.mcp_server.budget import Budget
    from tempopt.mcp_server.session import Session

    try:
        from tempopt.mcp_server.serving import serve
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("mcp", "mcp_types"):
            raise
        raise UsageError(
            "tempopt mcp needs the Model Context Protocol's package, which is not installed. Install it: "
            "pip install 'tempopt[mcp]'"
        ) from error
    budget = Budget(runs=arguments.runs, gpu_hours=arguments.gpu_hours)
    with Session(arguments.url, user=arguments.user, budget=budget, workers=arguments.workers) as session:
        serve(session)
    return DONE
