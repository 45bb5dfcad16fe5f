"""A server of the test's own, clients that show it a token, and agents that have joined its study."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tempopt.server import checkpoints as checkpoint_routes
from tempopt.server import files
from tempopt.server.app import create_app
from tempopt.server.tokens import create_token
from tempopt.storage import Store
from tempopt.storage.http.filesystem import SERVER
from tempopt.storage.opening import open_store
from tests.server.http_agent import HttpAgent, begin
from tests.server.http_server import RunningServer as RunningServer
from tests.server.http_server import serve_app as serve_app


@pytest.fixture
def running_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningServer]:
    """A server on an SQLite database and a folder, which no other test uses."""
    storage, checkpoints = f"sqlite:///{tmp_path / 'server.db'}", tmp_path / "checkpoints"
    with open_store(storage) as store:
        app = create_app(store, checkpoints=checkpoints.as_uri())
        token, _ = create_token(store, name="admin", scopes=["admin"])
        monkeypatch.setenv("TEMPOPT_TOKEN", token)
        with serve_app(app) as url:
            yield RunningServer(
                url=url, storage=storage, store=store, checkpoints=checkpoints, app=app, token=token
            )


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A store of the test's own."""
    with open_store(f"sqlite:///{tmp_path / 'a.db'}") as store:
        yield store


@pytest.fixture
def client(running_server: RunningServer) -> Iterator[httpx.Client]:
    """A client that may do everything."""
    with running_server.client() as client:
        yield client


@pytest.fixture
def agent(running_server: RunningServer) -> Iterator[HttpAgent]:
    """An agent that has joined the study ``toy``."""
    begin(running_server.store, lease=60, parallel=4, trials=12)
    agent = HttpAgent(running_server)
    agent.join()
    yield agent
    agent.http.close()


@pytest.fixture
def holder(running_server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[HttpAgent]:
    """An agent that holds the run ``baseline-0000``, whose workers know the server."""
    begin(running_server.store, lease=60)
    token = running_server.new_token("agent")
    monkeypatch.setenv(SERVER, running_server.url)
    monkeypatch.setenv("TEMPOPT_TOKEN", token)
    agent = HttpAgent(running_server, token=token)
    agent.join()
    agent.take_next()
    yield agent
    agent.http.close()


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints go through the server in pieces of 1000 bytes."""
    for module in (checkpoint_routes, files):
        monkeypatch.setattr(module, "PIECE", 1000)


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """Files with a certificate for 127.0.0.1, signed by itself, and its private key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
    certificate = (
        x509.CertificateBuilder(
            name, name, key.public_key(), x509.random_serial_number(), now - day, now + day
        )
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    files = tmp_path / "certificate.pem", tmp_path / "key.pem"
    files[0].write_bytes(certificate.public_bytes(pem))
    files[1].write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    return files
