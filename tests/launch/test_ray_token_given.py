"""Tokens for Ray as a person gives them, and what is said to whom asks for them; no Ray runs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tempopt.errors import UsageError
from tempopt.launch.ray_token import TokenEnvironment, negotiate_token, read_file

RIGHT, WRONG = "0123abcd" * 8, "4567cdef" * 8
_VARIABLES = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_USE_TLS")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home folder of a user who has no token yet."""
    for name in _VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file with the right token."""
    return _write_file(tmp_path / "token", f"{RIGHT}\n")


def _write_file(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


class Head:
    """What a head node does with tokens, at both of its doors."""

    def __init__(self, token: str | None, credentials: Any = None) -> None:
        grpc = pytest.importorskip("grpc")
        self._token, self._unauthenticated = token, grpc.StatusCode.UNAUTHENTICATED
        self.authorizations: list[str | None] = []
        handler = grpc.unary_unary_rpc_method_handler(self._answer)
        doors = {"NodeInfoGcsService": "GetClusterId", "RayletDriver": "ClusterInfo"}
        self._pool = ThreadPoolExecutor(2)
        self._server = grpc.server(self._pool)
        self._server.add_generic_rpc_handlers(
            [
                grpc.method_handlers_generic_handler(f"ray.rpc.{door}", {name: handler})
                for door, name in doors.items()
            ]
        )
        address = "127.0.0.1:0"
        port = (
            self._server.add_insecure_port(address)
            if credentials is None
            else self._server.add_secure_port(address, credentials)
        )
        self.address = f"127.0.0.1:{port}"
        self._server.start()

    def _answer(self, request: bytes, context: Any) -> bytes:
        authorization = dict(context.invocation_metadata()).get("authorization")
        self.authorizations.append(authorization)
        if self._token is not None and authorization != f"Bearer {self._token}":
            context.abort(self._unauthenticated, "Invalid or missing authentication token")
        return b""

    def stop(self) -> None:
        self._server.stop(None).wait()
        self._pool.shutdown()


@pytest.fixture
def head() -> Iterator[Head]:
    """A head node that asks for the token."""
    fake_head = Head(RIGHT)
    yield fake_head
    fake_head.stop()


class RecordingDisplay(TokenEnvironment):
    """Notes what would be shown, and changes nothing."""

    def __init__(self) -> None:
        self.calls: list[Path | str | None] = []

    def show(self, path: Path | None = None) -> None:
        self.calls.append(path)

    def show_none(self) -> None:
        self.calls.append("none")


def test_a_file_that_others_can_read_is_used_with_a_warning(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert read_file(str(file)).text == RIGHT
    assert capsys.readouterr() == ("", "")
    file.chmod(0o640)
    assert read_file(str(file)).path == file
    warning = f"{file} holds a token that others on this machine can read. Run: chmod 600 {file}"
    assert capsys.readouterr().err == f"tempopt: warning: {warning}\n"


def test_a_token_is_not_in_what_is_printed_of_it(file: Path) -> None:
    assert RIGHT not in repr(read_file(str(file)))


@pytest.mark.parametrize(
    ("text", "description"), [("", "nothing"), (" \n", "nothing"), ("two words", "2 words")]
)
def test_a_file_without_a_token_is_refused(tmp_path: Path, text: str, description: str) -> None:
    path = _write_file(tmp_path / "held", text)
    with pytest.raises(
        UsageError, match=f"token_file={path}: the file holds {description}, where one word is expected"
    ):
        read_file(str(path))


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match="--launch token_file=.*nowhere cannot be read: .*holds the token of a Ray"
    ):
        read_file(str(tmp_path / "nowhere"))


def test_a_file_is_refused_where_tokens_are_off(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with pytest.raises(UsageError, match="RAY_AUTH_MODE=disabled is set.* Unset RAY_AUTH_MODE"):
        read_file(str(file))


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_only_a_cluster_that_asks_for_a_token_is_shown_one(head: Head, file: Path, scheme: str) -> None:
    token_display = RecordingDisplay()
    negotiate_token(token_display, scheme + head.address, head.address, read_file(str(file)))
    assert (token_display.calls, head.authorizations) == ([file], [None, f"Bearer {RIGHT}"])
    open_to_all = Head(None)
    negotiate_token(token_display, scheme + open_to_all.address, open_to_all.address, read_file(str(file)))
    open_to_all.stop()
    assert (token_display.calls, open_to_all.authorizations) == ([file, "none"], [None])


def test_a_file_in_the_environment_that_cannot_be_read_matters_once_a_token_is_asked_for(
    head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "/nowhere/token")
    open_to_all = Head(None)
    negotiate_token(RecordingDisplay(), open_to_all.address, open_to_all.address, None)
    open_to_all.stop()
    with pytest.raises(UsageError, match="RAY_AUTH_TOKEN_PATH=/nowhere/token: .* cannot be read"):
        negotiate_token(RecordingDisplay(), head.address, head.address, None)


def test_the_variable_comes_before_the_file_and_is_what_is_refused(
    head: Head, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(file))
    monkeypatch.setenv("RAY_AUTH_TOKEN", WRONG)
    with pytest.raises(UsageError, match="refuses the one of RAY_AUTH_TOKEN. ") as error:
        negotiate_token(RecordingDisplay(), head.address, head.address, None)
    assert WRONG not in str(error.value)


def test_what_does_not_answer_as_ray_does_is_left_to_ray(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token_display = RecordingDisplay()
    negotiate_token(token_display, "127.0.0.1:1", "127.0.0.1:1", None)
    negotiate_token(token_display, "127.0.0.1:1", "127.0.0.1:1", read_file(str(file)))
    negotiate_token(token_display, "auto", None, read_file(str(file)))
    assert token_display.calls == [file, file]


@pytest.fixture
def certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[bytes, bytes]:
    """Key and certificate of this machine, which Ray's variables name."""
    key, cert_path = tmp_path / "key.pem", tmp_path / "cert.pem"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=127.0.0.1".split()
    alternative = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert_path)]
    try:
        subprocess.run([*command, *alternative], check=True, capture_output=True)
    except OSError:
        pytest.skip("NOT TESTED with TLS: openssl is not installed. Run: apt install openssl")
    monkeypatch.setenv("RAY_USE_TLS", "1")
    for name, path in (("SERVER_KEY", key), ("SERVER_CERT", cert_path), ("CA_CERT", cert_path)):
        monkeypatch.setenv(f"RAY_TLS_{name}", str(path))
    return key.read_bytes(), cert_path.read_bytes()


def test_a_cluster_behind_tls_is_asked_too(certificate: tuple[bytes, bytes], file: Path) -> None:
    grpc = pytest.importorskip("grpc")
    head = Head(RIGHT, grpc.ssl_server_credentials([certificate], certificate[1], require_client_auth=True))
    token_display = RecordingDisplay()
    try:
        negotiate_token(token_display, head.address, head.address, read_file(str(file)))
    finally:
        head.stop()
    assert (token_display.calls, head.authorizations) == ([file], [None, f"Bearer {RIGHT}"])


@pytest.mark.usefixtures("certificate")
def test_a_certificate_that_is_not_named_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("grpc")
    monkeypatch.delenv("RAY_TLS_CA_CERT")
    with pytest.raises(UsageError, match="RAY_USE_TLS is set, and RAY_TLS_CA_CERT is not"):
        negotiate_token(RecordingDisplay(), "127.0.0.1:1", "127.0.0.1:1", None)


def test_what_is_shown_is_taken_back(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray")
    monkeypatch.setenv("RAY_AUTH_TOKEN", WRONG)
    token_display = TokenEnvironment()
    token_display.show(file)
    assert "RAY_AUTH_TOKEN" not in os.environ
    loader = ray._raylet.AuthenticationTokenLoader.instance()
    assert loader.get_token_for_http_header() == {"authorization": f"Bearer {RIGHT}"}
    token_display.take_back()
    assert os.environ["RAY_AUTH_TOKEN"] == WRONG and "RAY_AUTH_MODE" not in os.environ
    assert loader.get_token_for_http_header() == {}
