"""Without the packages of an extra the commands that need none of them work, the others name the extra."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tempopt import cli

SERVER = ("fastapi", "h11", "httpx", "prometheus_client", "starlette", "uvicorn")
MCP = ("mcp", "mcp_types")
# Commands in one process without the packages, with workers that train nothing.
_CODE = """
import contextlib, io, json, sys
for name in sys.argv[1].split():
    sys.modules[name] = None
from tempopt import cli
from tests import fake_worker
fake_worker.install()
results = []
for line in sys.argv[2:]:
    with contextlib.redirect_stdout(io.StringIO()) as text, contextlib.redirect_stderr(text):
        exit_code = cli.main(line.split())
    results.append([exit_code, text.getvalue()])
print(json.dumps(results))
"""
# The extra that a command names where it is missing; None: it needs none.
COMMANDS = {
    "check max_retrieval": None,
    "token create --name a --scope view": None,
    "serve": "server",
    "list --storage http://127.0.0.1:9": "server",
    "agent toy --server http://127.0.0.1:9": "server",
    "mcp": "mcp",
}
# a package of each, which is what can be installed
DRIVERS = {"server": "pip install 'fastapi", "mcp": "pip install 'mcp"}


def test_a_missing_extra_is_named_and_the_rest_needs_none(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _CODE, " ".join(SERVER + MCP), *COMMANDS]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    results = zip(COMMANDS.items(), json.loads(process.stdout), strict=True)
    for (line, extra), (exit_code, output) in results:
        if extra is None:
            assert exit_code == cli.EXIT_OK, (line, output)
        else:
            assert exit_code == cli.USAGE_EXIT_CODE and DRIVERS[extra] in output, (line, output)
            assert "Traceback" not in output
