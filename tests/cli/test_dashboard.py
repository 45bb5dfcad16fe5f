"""``tempopt dashboard`` as it is typed: where it listens, what it refuses, how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tempopt import cli
from tests.report.made_study import World, write_with_optuna


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    url = f"sqlite:///{tmp_path_factory.mktemp('dashboard') / 'tempopt.db'}"
    write_with_optuna(url, World(trials=3, layers=0))
    return url


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--port", "70000"], '"70000" is not a whole number from 0 to 65535'),
        (["no_such_study"], 'Unknown study "no_such_study". Known: pairs'),
        (["--storage", "http://127.0.0.1:9"], "is a tempopt server, whose page of a study is its report"),
    ],
)
def test_what_cannot_be_served_is_told_in_one_line(
    words: list[str], message: str, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["dashboard", "--storage", url, *words]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("tempopt: error: ") and err.count("\n") == 1
    assert message in err


# An interpreter takes seconds to load Optuna's dashboard: one process serves it once for each signal.
_SERVE_TWICE = """
import sys
from tempopt.cli import main
for _ in range(2):
    print("exit code", main(["dashboard", *sys.argv[1:]]), flush=True)
"""


def test_it_says_its_address_and_ends_at_a_signal(url: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", _SERVE_TWICE, "pairs", "--storage", url, "--port", "0"]
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    addresses = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        for signal_number in (signal.SIGINT, signal.SIGTERM):
            first, last = (process.stdout.readline() for _ in range(2))
            assert first.startswith("Dashboard: http://127.0.0.1:") and "Ctrl-C ends it" in last
            addresses.append(first.split()[1])
            with urllib.request.urlopen(f"{addresses[-1]}/dashboard", timeout=60) as answer:
                assert answer.status == 200
            process.send_signal(signal_number)
            assert process.stdout.readline() == "exit code 0\n"
        assert process.wait(60) == 0
        assert process.stdout.read() == process.stderr.read() == ""
    for address in addresses:
        with pytest.raises(urllib.error.URLError):
            urllib.request.urlopen(address)
