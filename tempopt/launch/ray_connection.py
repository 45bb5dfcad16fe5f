"""This program's connection to Ray, of which it can have one: made with several tries, shared, and closed.

What is done on the cluster is ray.py's, and the token that a cluster asks for is ray_token.py's.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import ray

from tempopt.errors import UsageError
from tempopt.launch import ray_token
from tempopt.launch.ray_errors import classify_transient, summarize_error

_PATIENCE = 60.0
# Of a cluster that is known to answer, however slowly.
_LONG_PATIENCE = 180.0
# Without GRPC_ENABLE_FORK_SUPPORT=0, a busy head node fails every other time, an idle one in one of ten.
_TRIES = 5
_PAUSE = 1.0
# Agents meet in the database: next to nothing is put into Ray's store, which else takes much of the memory.
_OBJECT_STORE = 100 * 2**20
_PROBE = """
import sys, ray
try:
    ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
except Exception as error:
    print(str(error) or type(error).__name__)
    sys.exit(1)
"""


class SharedRayConnection:
    """This program's connection to Ray, of which it can have one; shared by its launchers."""

    def __init__(self) -> None:
        self._address = ""
        self._users = 0
        self._ours = False
        self._token_file: str | None = None
        self._token_environment: ray_token.TokenEnvironment | None = None

    def acquire(self, address: str, folder: str | None, token_file: str | None) -> None:
        """Connect, or share the connection that is there."""
        if not ray.is_initialized():
            auth = ray_token.TokenEnvironment()
            try:
                _connect(address, folder, token_file, auth)
            except BaseException:
                auth.take_back()
                raise
            self._token_environment, self._token_file = auth, token_file
            self._address, self._users, self._ours = address, 1, True
            return
        addresses = {ray.get_runtime_context().gcs_address, "auto"}
        if self._users and self._ours:
            addresses = {self._address} if self._address == "local" else {*addresses, self._address}
        own_token_file = self._token_file if self._ours else None
        if address not in addresses or folder is not None or token_file not in (None, own_token_file):
            launch_options = {"working_dir": folder, "token_file": token_file}
            options_text = "".join(
                f" {name}={value}" for name, value in launch_options.items() if value is not None
            )
            raise UsageError(
                f"--launch address={address}{options_text}: this program is "
                "connected to a Ray already, and can be to one only. Give address=auto to use that one, or "
                "call ray.shutdown() before."
            )
        self._users += 1

    def release(self) -> None:
        """End the connection with its last user, if it was made here."""
        self._users = max(0, self._users - 1)
        if not self._users and self._ours:
            self._ours = False
            ray.shutdown()
            if self._token_environment is not None:
                self._token_environment.take_back()


CONNECTION = SharedRayConnection()


def _connect(
    address: str, folder: str | None, token_file: str | None, auth: ray_token.TokenEnvironment
) -> None:
    token = None if token_file is None else ray_token.read_file(token_file)
    if folder is not None and not Path(folder).is_dir():
        raise UsageError(f"--launch working_dir={folder}: there is no such folder.")
    init_kwargs: dict[str, Any] = {}
    # what answers as Ray does, or is started here, is worth more than one try
    answers = True
    if address == "local":
        init_kwargs = {"include_dashboard": False, "object_store_memory": _OBJECT_STORE}
        ray_token.set_local_cluster_token(auth, token)
    else:
        answers = ray_token.negotiate_token(auth, address, _listening(address), token)
    if folder is not None:
        init_kwargs["runtime_env"] = {"working_dir": folder}
    tries = _TRIES if answers else 1
    for number in range(1, tries + 1):
        try:
            if address != "local":
                _probe(address, _LONG_PATIENCE if answers else _PATIENCE)
            return _initialise(address, init_kwargs)
        # Ray raises whatever it comes upon: ConnectionError, RuntimeError, ValueError, ImportError, ...
        except Exception as error:
            if number == tries or classify_transient(error) is None:
                raise _refusal(address, error, number) from error
        print(
            f"tempopt: Ray at {address} has not taken the connection; trying again ({number + 1} of {tries})",
            file=sys.stderr,
        )
        time.sleep(_PAUSE)


def _initialise(address: str, init_kwargs: Mapping[str, Any]) -> None:
    """Connect, or leave no half of a connection behind.

    After ray:// has failed, Ray would take this program for connected by it, and fail at everything else.
    """
    with _signals_kept(), _own_token_private(), warnings.catch_warnings():
        # they are meant for people who program with Ray
        warnings.simplefilter("ignore")
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **init_kwargs)
        except BaseException:
            with contextlib.suppress(Exception):
                ray.shutdown()
            raise


def _refusal(address: str, error: Exception, tries: int) -> UsageError:
    """Return what to tell a person whose cluster has not taken the connection."""
    passing_error = classify_transient(error)
    if passing_error is None:
        return _unreachable(address, summarize_error(error))
    tries_text = "once" if tries == 1 else f"{tries} times"
    return UsageError(
        f"--launch address={address}: tried {tries_text}: {summarize_error(error)} {passing_error.meaning}"
    )


def _listening(address: str) -> str | None:
    """Return HOST:PORT of what listens at an address; None if only Ray knows where that is."""
    if address == "auto":
        with contextlib.suppress(Exception):
            # what ray.init does first; its place may be another in other versions
            bootstrap_address = ray._private.services.canonicalize_bootstrap_address("auto")
            return None if bootstrap_address is None else str(bootstrap_address)
        return None
    url_parts = urlsplit(address if "://" in address else f"//{address}")
    try:
        host, port = url_parts.hostname, url_parts.port
        if not host or not port:
            raise _unreachable(address, "no host and port.")
        socket.create_connection((host, port), timeout=10.0).close()
    except (OSError, ValueError) as error:
        if isinstance(error, UsageError):
            raise
        raise _unreachable(address, f"{error}.") from error
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _probe(address: str, patience: float) -> None:
    """Find out whether a Ray answers; Ray's own way of finding out takes minutes and may end the process."""
    if "://" in address:
        # there Ray gives up by itself, with an exception and after half a minute
        return
    command = [sys.executable, "-c", _PROBE, address]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=patience)
    except subprocess.TimeoutExpired as error:
        raise ConnectionError(f"nothing that speaks as Ray does, within {patience:g} s.") from error
    if done.returncode != 0:
        output = done.stdout.decode(errors="replace")
        raise ConnectionError(output or f"it ended at once, with exit code {done.returncode}.")


def _unreachable(address: str, why: str) -> UsageError:
    return UsageError(
        f"--launch address={address}: {why} Give HOST:PORT of the head node as ray start printed it (6379 as "
        "a rule), ray://HOST:10001 from outside of the cluster, or auto on one of its nodes; with no "
        "address, and RAY_ADDRESS not set, a Ray is started on this machine."
    )


@contextlib.contextmanager
def _own_token_private() -> Iterator[None]:
    """Keep a token to this user that Ray makes for a cluster of its own, and lets everybody read."""
    path = ray_token.default_file()
    before = path is None or path.exists()
    try:
        yield
    finally:
        if path is not None and not before:
            with contextlib.suppress(OSError):
                path.chmod(0o600)


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """Undo what Ray does to signals: what Ctrl-C and SIGTERM do is for the program to say."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
