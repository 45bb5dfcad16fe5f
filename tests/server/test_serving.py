"""``tempopt serve`` as a process: where it listens, what it prints, and how it ends."""

from __future__ import annotations

import os
import re
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tempopt import cli
from tempopt.server.serving import Listening
from tempopt.storage.opening import open_store

Process = subprocess.Popen[str]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[object]:
    """Return what starts ``tempopt serve`` with more words, in a folder of its own."""
    processes: list[Process] = []

    def start(*words: str, prefix: tuple[str, ...] = ()) -> Process:
        env_vars = {name: value for name, value in os.environ.items() if not name.startswith("TEMPOPT_")}
        process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "tempopt", "serve", *words],
            cwd=tmp_path,
            env={**env_vars, "XDG_CONFIG_HOME": str(tmp_path / "config")},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def _url(process: Process) -> tuple[str, str]:
    """Return where a server listens, and the token that it has printed, if any."""
    assert process.stdout is not None
    token = ""
    for line in process.stdout:
        if match := re.fullmatch(r"(tempopt_[0-9a-f]{12}_\S{43})\n", line):
            token = match[1]
        if " at http" in line:
            return line.split()[-1], token
    raise AssertionError(process.communicate()[1])


@pytest.mark.parametrize("blow", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.long
def test_it_prints_the_first_token_once_and_ends_well_when_it_is_told_to(
    serve: object, tmp_path: Path, blow: signal.Signals
) -> None:
    process = serve("--port", "0")  # type: ignore[operator]
    url, token = _url(process)
    assert httpx.get(f"{url}/healthz", timeout=60).json() == {"status": "ok"}
    assert (
        httpx.get(f"{url}/api/me", headers={"authorization": f"Bearer {token}"}, timeout=60).json()["name"]
        == "admin"
    )
    process.send_signal(blow)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0 and "Traceback" not in err and token not in out + err
    second_process = serve("--port", "0")  # type: ignore[operator]
    assert _url(second_process)[1] == ""
    with open_store(f"sqlite:///{tmp_path / 'tempopt.db'}") as store:
        assert [token_row.name for token_row in store.tokens()] == ["admin"]


@pytest.mark.long
def test_handshakes_that_are_not_finished_leave_descriptors_for_others(
    serve: object, certificate: tuple[Path, Path]
) -> None:
    files = ("--certificate", str(certificate[0]), "--key", str(certificate[1]))
    prefix = ("sh", "-c", 'ulimit -n 400; exec "$@"', "sh")
    process = serve("--port", "0", *files, prefix=prefix)  # type: ignore[operator]
    url, token = _url(process)
    address = urlsplit(url)
    host_and_port = address.hostname, address.port or 443
    headers, context = {"authorization": f"Bearer {token}"}, ssl.create_default_context(cafile=certificate[0])
    with ExitStack() as connections:
        for _ in range(500):
            connections.enter_context(socket.create_connection(host_and_port))
        assert httpx.get(f"{url}/api/me", headers=headers, verify=context, timeout=30).status_code == 200
        process.send_signal(signal.SIGTERM)
        err = process.communicate(timeout=240)[1]
    assert process.returncode == 0 and "Traceback" not in err


def _serve_refusal(capsys: pytest.CaptureFixture[str], folder: Path, *words: str) -> str:
    """Return what is said of words with which nothing is served."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert cli.main(["serve", *words]) == 2
    out, err = capsys.readouterr()
    assert out == "" and "Traceback" not in err
    return err


def test_an_address_that_others_reach_is_refused_while_there_is_no_token(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "tempopt token create" in _serve_refusal(capsys, tmp_path, "--host", "0.0.0.0", "--port", "0")


def test_a_port_that_is_taken_is_told_with_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        assert cli.main(["serve", "--port", str(listener.getsockname()[1])]) == 2
    assert "--port 0 selects a free one" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--certificate", "a.pem"], "--certificate and --key go together"),
        (["--certificate", "a.pem", "--key", "b.pem"], "a.pem"),
        (["--storage", "https://a.example"], "is a server itself"),
        (["--checkpoints", "ftp://a/b"], "not supported for checkpoints"),
        (["--trust-proxy", "10.0.0.0/99"], "--trust-proxy"),
    ],
)
def test_what_cannot_be_served_is_refused_in_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert message in _serve_refusal(capsys, tmp_path, "--port", "0", *words)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        *((host, True) for host in ("127.0.0.1", "::1", "localhost", "127.8.9.1")),
        *((host, False) for host in ("0.0.0.0", "::", "192.0.2.1", "example.com", "")),
    ],
)
def test_who_can_reach_an_address_is_known(host: str, loopback: bool) -> None:
    assert Listening(host=host).is_loopback is loopback
