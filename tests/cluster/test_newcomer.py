"""What a newcomer types on three machines ends with a verdict; the agent reaches the server's port alone."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.cluster import studies
from tests.cluster.crew import PATIENCE, wait_until
from tests.cluster.http_servers import write_private
from tests.cluster.network import Machine, Network
from tests.cluster.one import Shell
from tests.cluster.studies import NAME, Record, tempopt
from tests.servers import free_port

TICKETS = 8
KEY, SECRET_KEY = "NEWCOMERSKEY", "newcomers-secret-key-of-the-bucket"
pytestmark = pytest.mark.long

_KNOCK = """
import socket, sys
for port in sys.argv[2:]:
    try:
        socket.create_connection((sys.argv[1], int(port)), timeout=5).close()
    except OSError:
        continue
    print(port)
"""
# What is mounted in a command's place is seen by no other process.
_HIDDEN = 'mount -t tmpfs none "$0" && exec "$@"'


class Seat(Shell):
    """A machine with a folder, a home and a person at it, and no credentials of this machine.

    Args:
        folder: Made if it is not there.
        machine: Where its commands run; None: this machine.
        hidden: A folder of another machine, which is not to be seen here.
        variables: Environment variables that are set here.
    """

    def __init__(
        self,
        folder: Path,
        machine: Machine | None = None,
        hidden: Path | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        hide = () if hidden is None else ("unshare", "--mount", "sh", "-c", _HIDDEN, str(hidden))
        prefix = (*(machine.prefix if machine else ()), *hide)
        super().__init__(folder, prefix, {"HOME": str(folder / "home"), **(variables or {})})
        self.machine = machine
        (folder / "home").mkdir(exist_ok=True)

    def environment(self) -> dict[str, str]:
        """Return the environment of the commands."""
        foreign_names = ("AWS_", "XDG_")
        env_vars = {n: v for n, v in super().environment().items() if not n.startswith(foreign_names)}
        return {**env_vars, **self.variables}

    def output(self, command: list[str]) -> str:
        """Return what a command prints, which ends well; its messages go to the log."""
        with self.log.open("ab") as messages:
            process = subprocess.run(
                [*self.prefix, *command],
                cwd=self.folder,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=messages,
                timeout=PATIENCE,
            )
        assert process.returncode == 0, self.log_text()
        return process.stdout.decode()

    def reachable_ports(self, address: str, ports: list[int]) -> list[int]:
        """Return which of these ports of an address can be reached from here."""
        reached_ports = self.output([sys.executable, "-c", _KNOCK, address, *map(str, ports)])
        return [int(port) for port in reached_ports.split()]

    def serve(self, *words: str) -> subprocess.Popen[bytes]:
        """Start a server, and wait until it says that it serves."""
        offset = len(self.log_text())
        process = self.run("serve", *words)
        wait_until(
            lambda: process.poll() is not None or "tempopt serves" in self.log_text()[offset:],
            "the server's first words",
        )
        assert process.poll() is None, self.log_text()
        return process


class ProcessList:
    """Looks at the command lines of all processes, as ``ps`` shows them, while it is entered.

    Args:
        needles: What is looked for.
    """

    def __init__(self, needles: list[str]) -> None:
        self.matches: set[str] = set()
        self.looks = 0
        self._needles = [needle.encode() for needle in needles]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> ProcessList:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(0.05):
            self.looks += 1
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                with contextlib.suppress(OSError):
                    words = path.read_bytes()
                    if any(needle in words for needle in self._needles):
                        self.matches.add(words.replace(b"\0", b" ").decode(errors="replace"))


def holders(folder: Path, needles: list[str], *, but: set[Path]) -> Iterator[tuple[Path, str]]:
    """Yield the files below a folder that hold one of these texts, but for those that ought to."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink() and path not in but:
            data = path.read_bytes()
            yield from ((path, needle) for needle in needles if needle.encode() in data)


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
        offset = len(server.log_text())
        _stop(server, server.serve("--port", str(free_port())))
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


def test_a_newcomer_gets_from_three_machines_to_a_verdict(
    machines: Network, tmp_path: Path, undisturbed_record: Callable[[int], Record]
) -> None:
    expected = undisturbed_record(TICKETS)
    with contextlib.ExitStack() as stack:
        bucket_url, s3_port, keys = stack.enter_context(_bucket(machines.address))
        server = Seat(tmp_path / "server", variables=keys)
        stack.callback(server.close)
        admin = _first_token(server)

        # on the server's machine
        tokens = {
            name: server.output(tempopt("token", "create", "--name", name, "--scope", scope)).strip()
            for name, scope in (("cluster", "agent"), ("ada", "submit"))
        }
        port = free_port(machines.address)
        serving = server.serve("--host", machines.address, "--port", str(port), "--checkpoints", bucket_url)
        url = f"http://{machines.address}:{port}"

        person = Seat(tmp_path / "laptop", machines.machine(), server.folder)
        cluster = Seat(tmp_path / "cluster", machines.machine(), server.folder)
        stack.callback(person.close)
        stack.callback(cluster.close)
        assert person.machine is not None and cluster.machine is not None
        person.machine.reach_only(port)
        cluster.machine.reach_only(port, s3_port)
        _nothing_else_is_reached(cluster, server, machines.address, [port, s3_port])

        secrets = [admin, *tokens.values(), SECRET_KEY, "X-Amz-Signature"]
        process_list = stack.enter_context(ProcessList(secrets))
        # at the third machine
        user_token_file = person.folder / "token"
        write_private(user_token_file, tokens["ada"])
        login_output = person.output(tempopt("login", url, "--token-file", str(user_token_file)))
        assert "Logged in" in login_output and tokens["ada"] not in login_output
        user_token_file.unlink()
        searching = person.run("search", studies.write_spec(person.folder, studies.spec(TICKETS)))
        database = f"sqlite:///{server.folder / 'tempopt.db'}"
        wait_until(lambda: searching.poll() is not None or bool(studies.read_tickets(database)), "the study")
        assert searching.poll() is None, person.log_text()
        # at the second one
        cluster_token_file = cluster.folder / "token"
        write_private(cluster_token_file, tokens["cluster"])
        agent = cluster.run(
            "agent", NAME, "--server", url, "--token-file", str(cluster_token_file), "--workers", "2"
        )
        places: set[str] = set()
        while searching.poll() is None and agent.poll() is None:
            places |= _checkpoint_roots(server)
            time.sleep(0.2)
        assert [cluster.end(agent), person.end(searching)] == [0, 0], cluster.log_text() + person.log_text()
        places |= _checkpoint_roots(server)

        assert not studies.read(database, TICKETS).differences(expected)
        assert places == {bucket_url}
        assert process_list.matches == set() and process_list.looks > 20
        _stop(server, serving)
        login = person.folder / "home" / ".config" / "tempopt" / "servers.json"
        assert tokens["ada"] in login.read_text() and login.stat().st_mode & 0o77 == 0
        assert list(holders(tmp_path, secrets, but={login, cluster_token_file})) == []


def _nothing_else_is_reached(cluster: Seat, server: Seat, address: str, ports: list[int]) -> None:
    """Look from the agent's machine at the server's: at its ports, open ones included, and at its files."""
    with (
        socket.create_server(("0.0.0.0", 0)) as open_listener,
        socket.create_server(("127.0.0.1", 0)) as local_listener,
    ):
        other_port, own_port = (sock.getsockname()[1] for sock in (open_listener, local_listener))
        assert set(cluster.reachable_ports(address, [*ports, other_port, own_port])) == set(ports)
        assert cluster.reachable_ports("127.0.0.1", [other_port, own_port]) == []
    assert (server.folder / "tempopt.db").exists()
    assert cluster.output(["ls", "-A", str(server.folder)]) == ""
    cluster_env = cluster.output(["env"])
    assert "AWS_" not in cluster_env and "tempopt.db" not in cluster_env
