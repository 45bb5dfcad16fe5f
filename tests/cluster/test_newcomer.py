"""What a newcomer types on three machines ends with a verdict; the agent reaches the server's port alone."""

from __future__ import annotations

import contextlib
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster import studies
from tests.cluster.crew import wait_until
from tests.cluster.network import Network
from tests.cluster.newcomer import ProcessList, Seat, free_port, holders, listener, private, wait_for
from tests.cluster.studies import NAME, Record, tempopt

TICKETS = 8
KEY, SECRET_KEY = "NEWCOMERSKEY", "newcomers-secret-key-of-the-bucket"
pytestmark = pytest.mark.long


@contextlib.contextmanager
def _bucket(address: str) -> Iterator[tuple[str, int, dict[str, str]]]:
    """Yield the URL of a bucket of an S3 server, the server's port, and what reaches it."""
    try:
        import s3fs
        from moto.server import ThreadedMotoServer
    except ImportError:
        pytest.skip('NOT TESTED: checkpoints in S3. To test them: pip install "moto[server]" s3fs')
    server = ThreadedMotoServer(ip_address=address, port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    name, endpoint = f"studies-{uuid.uuid4().hex}", f"http://{host}:{port}"
    client = s3fs.S3FileSystem(
        key=KEY, secret=SECRET_KEY, endpoint_url=endpoint, skip_instance_cache=True, use_listings_cache=False
    )
    client.mkdir(name)
    keys = {
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": endpoint,
    }
    try:
        yield f"s3://{name}", port, keys
    finally:
        server.stop()


def _first_token(server: Seat) -> str:
    """Return the token that the server shows the first time it is started here, and no time after it."""
    tokens = []
    for _ in range(2):
        port, offset = free_port("127.0.0.1"), len(server.log_text())
        process = server.start("serve", "--port", str(port))
        wait_for("127.0.0.1", port, process, server.log)
        wait_until(
            lambda start=offset: "tempopt serves" in server.log_text()[start:], "the server's first words"
        )
        _stop(server, process)
        tokens.append([word for word in server.log_text()[offset:].split() if word.startswith("tempopt_")])
    [[first], extra_tokens] = tokens
    assert not extra_tokens
    # what it was shown in is a terminal, which is not kept
    server.log.unlink()
    return first


def _stop(server: Seat, process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    # it ends in good order, and then with the exit code of the signal
    assert server.end(process) == 0, server.log_text()


def _checkpoint_roots(server: Seat) -> set[str]:
    """Return the folders and buckets under which the study's checkpoints lie."""
    rows = studies.read_tickets(f"sqlite:///{server.folder / 'tempopt.db'}")
    return {checkpoint.url.partition(f"/{NAME}/")[0] for row in rows for checkpoint in row.checkpoints}


@pytest.mark.parametrize("checkpoint_store", [pytest.param("folder", marks=pytest.mark.nightly), "s3"])
def test_a_newcomer_gets_from_three_machines_to_a_verdict(
    machines: Network, tmp_path: Path, undisturbed_record: Callable[[int], Record], checkpoint_store: str
) -> None:
    expected = undisturbed_record(TICKETS)
    with contextlib.ExitStack() as stack:
        kept_in, ports, keys = str(tmp_path / "server" / "kept"), [], {}
        if checkpoint_store == "s3":
            kept_in, s3_port, keys = stack.enter_context(_bucket(machines.address))
            ports.append(s3_port)
        server = Seat(tmp_path / "server", more=keys)
        stack.callback(server.close)
        start_time = time.monotonic()
        admin = _first_token(server)

        # on the server's machine
        tokens = {
            token_name: server.output(
                tempopt("token", "create", "--name", token_name, "--scope", scope)
            ).strip()
            for token_name, scope in (("cluster", "agent"), ("ada", "submit"))
        }
        port = free_port(machines.address)
        words = ["serve", "--host", machines.address, "--port", str(port), "--checkpoints", kept_in]
        serving = server.start(*words)
        wait_for(machines.address, port, serving, server.log)
        url = f"http://{machines.address}:{port}"

        ports.append(port)
        person = Seat(tmp_path / "laptop", machines.machine(), server.folder)
        cluster = Seat(tmp_path / "cluster", machines.machine(), server.folder)
        stack.callback(person.close)
        stack.callback(cluster.close)
        assert person.machine is not None and cluster.machine is not None
        person.machine.reach_only(port)
        cluster.machine.reach_only(*ports)
        _nothing_else_is_reached(cluster, server, machines.address, ports)

        secrets = [admin, *tokens.values(), SECRET_KEY, "X-Amz-Signature"]
        process_list = stack.enter_context(ProcessList(secrets))
        # at the third machine
        user_token_file = private(person.folder / "token", tokens["ada"])
        login_output = person.output(tempopt("login", url, "--token-file", str(user_token_file)))
        assert "Logged in" in login_output and tokens["ada"] not in login_output
        user_token_file.unlink()
        searching = person.start("search", studies.write_spec(person.folder, studies.spec(TICKETS)))
        database = f"sqlite:///{server.folder / 'tempopt.db'}"
        wait_until(lambda: searching.poll() is not None or bool(studies.read_tickets(database)), "the study")
        assert searching.poll() is None, person.log_text()
        # at the second one
        cluster_token_file = private(cluster.folder / "token", tokens["cluster"])
        agent = cluster.start(
            "agent", NAME, "--server", url, "--token-file", str(cluster_token_file), "--workers", "2"
        )
        places: set[str] = set()
        while searching.poll() is None and agent.poll() is None:
            places |= _checkpoint_roots(server)
            time.sleep(0.2)
        assert [cluster.end(agent), person.end(searching)] == [0, 0], cluster.log_text() + person.log_text()
        seconds = time.monotonic() - start_time
        places |= _checkpoint_roots(server)

        assert not studies.read(database, TICKETS).differences(expected)
        assert places == {kept_in}
        assert process_list.matches == set() and process_list.looks > 20
        _stop(server, serving)
        login = person.folder / "home" / ".config" / "tempopt" / "servers.json"
        assert tokens["ada"] in login.read_text() and login.stat().st_mode & 0o77 == 0
        assert list(holders(tmp_path, secrets, but={login, cluster_token_file})) == []
        print(f"\nFrom the first command to the verdict, checkpoints in {checkpoint_store}: {seconds:.0f} s")


def _nothing_else_is_reached(cluster: Seat, server: Seat, address: str, ports: list[int]) -> None:
    """Look from the agent's machine at the server's: at its ports, open ones included, and at its files."""
    with listener("0.0.0.0") as other_port, listener("127.0.0.1") as own_port:
        assert set(cluster.reachable_ports(address, [*ports, other_port, own_port])) == set(ports)
        assert cluster.reachable_ports("127.0.0.1", [other_port, own_port]) == []
    assert (server.folder / "tempopt.db").exists()
    assert cluster.output(["ls", "-A", str(server.folder)]) == ""
    cluster_env = cluster.output(["env"])
    assert "AWS_" not in cluster_env and "tempopt.db" not in cluster_env
