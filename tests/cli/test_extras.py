"""Without the packages of an extra the commands that need none of them work, the others name the extra."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SERVER = ("fastapi", "h11", "httpx", "prometheus_client", "starlette", "uvicorn")
_CODE = """
import sys
for name in sys.argv[1].split():
    sys.modules[name] = None
from tempopt import cli
sys.exit(cli.main(sys.argv[2:]))
"""


def _run(folder: Path, packages: tuple[str, ...], *words: str) -> tuple[int, str]:
    command = [sys.executable, "-c", _CODE, " ".join(packages), *words]
    process = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return process.returncode, process.stdout + process.stderr


@pytest.mark.parametrize(
    "words", [("check", "max_retrieval"), ("token", "create", "--name", "a", "--scope", "view")]
)
def test_a_database_needs_no_package_of_the_server(tmp_path: Path, words: tuple[str, ...]) -> None:
    code, output = _run(tmp_path, SERVER, *words)
    assert code == 0, output


@pytest.mark.parametrize(
    ("packages", "extra", "words"),
    [
        (SERVER, "server", ("serve",)),
        (SERVER, "server", ("list", "--storage", "http://127.0.0.1:9")),
        (SERVER, "server", ("agent", "toy", "--server", "http://127.0.0.1:9")),
        (("mcp", "mcp_types"), "mcp", ("mcp",)),
    ],
)
def test_a_missing_extra_is_named(
    tmp_path: Path, packages: tuple[str, ...], extra: str, words: tuple[str, ...]
) -> None:
    code, output = _run(tmp_path, packages, *words)
    assert code == 2 and f"pip install 'tempopt[{extra}]'" in output and "Traceback" not in output
