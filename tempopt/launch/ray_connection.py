"""This program's only connection to Ray: made with several tries, shared, and closed."""

from __future__ import annotations

import contextlib
import logging
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import ray

from tempopt.errors import UsageError

_PROBE_TIMEOUT_SECONDS = 120.0
# Without GRPC_ENABLE_FORK_SUPPORT=0, a busy head node fails every other time, an idle one in one of ten.
_TRIES = 5
_PAUSE_SECONDS = 1.0
# Agents communicate through the database: Ray's object store, which takes much memory by default, can be
# small.
_OBJECT_STORE_BYTES = 100 * 2**20
_PROBE = """
import sys, ray
try:
    ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
except Exception as error:
    print(str(error) or type(error).__name__)
    sys.exit(1)
"""
_PER_PROGRAM = "For each program that connects by ray://, the head node starts a process of its own."
_CRASH_ADVICE = (
    f"{_PER_PROGRAM} The one for this program did not answer: the head node is busy, or gRPC crashed it as "
    "it was started (ray-project/ray issue 63202). Run ray start --head with GRPC_ENABLE_FORK_SUPPORT=0 in "
    "its environment, which prevents that, and on a busy head node with "
    "RAY_CLIENT_SERVER_CHECK_CHANNEL_TIMEOUT_S=120."
)
_TOKEN_ADVICE = "For a cluster that asks for a token set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH=FILE."
# Failures that may not occur again: something was slow, or a process that each try starts ended. Part of
# Ray's message, and its meaning with a remedy.
_TRANSIENT_ERRORS = {
    "Starting Ray client server failed": _CRASH_ADVICE,
    "Proxy failed to Connect to backend": _CRASH_ADVICE,
    "you called ray.init twice": f"{_PER_PROGRAM} The one for this program is connected already, as happens "
    "where several clusters share a machine and its ports from 23000 on. Try again, or run one cluster per "
    "machine.",
    "ray client connection timeout": "The head node's server for ray:// is slow, or refuses this program. "
    "Try again when the head node is less busy, or set RAY_CLIENT_MAX_CONNECTION_TIMEOUT_S=120. "
    f"{_TOKEN_ADVICE}",
    "Timed out while waiting for GCS": "The head node does not answer in time. Try again when it is less "
    "busy; ray status, on the head node, says whether it is well.",
    "The current node timed out during startup": "This machine is too busy to start a Ray of its own. Try "
    "again when it is less busy.",
}


class SharedRayConnection:
    """This program's only connection to Ray, shared by its launchers."""

    def __init__(self) -> None:
        self._address = ""
        self._users = 0
        self._is_ours = False

    def acquire(self, address: str, folder: str | None) -> None:
        """Connect, or share the existing connection."""
        if not ray.is_initialized():
            _connect(address, folder)
            self._address, self._users, self._is_ours = address, 1, True
            return
        addresses = {ray.get_runtime_context().gcs_address, "auto"}
        if self._users and self._is_ours:
            addresses = {self._address} if self._address == "local" else {*addresses, self._address}
        if address not in addresses or folder is not None:
            folder_text = "" if folder is None else f" working_dir={folder}"
            raise UsageError(
                f"--launch address={address}{folder_text}: this program is already connected to a Ray, and "
                "can use one only. Give address=auto to use that one, or call ray.shutdown() before."
            )
        self._users += 1

    def release(self) -> None:
        """Disconnect after the last user, if the connection was made here."""
        self._users = max(0, self._users - 1)
        if not self._users and self._is_ours:
            self._is_ours = False
            ray.shutdown()


CONNECTION = SharedRayConnection()


def summarize_error(error: object) -> str:
    """Return an error of Ray, which may be very long or empty, as one line."""
    words = " ".join(str(error).split())
    if not words and isinstance(error, BaseException):
        location = ""
        for frame in traceback.extract_tb(error.__traceback__)[-1:]:
            location = f", raised in {frame.name} ({Path(frame.filename).name}, line {frame.lineno})"
        return (
            f"{type(error).__name__} without a message{location}. This is an error inside of Ray. Try again; "
            "if it stays, look into Ray's logs on the head node (/tmp/ray/session_latest/logs)."
        )
    return words if len(words) <= 600 else f"{words[:200]} ... {words[-400:]}"


def explain_transient(error: object) -> str | None:
    """Return the meaning of an error that may not occur again; None if a retry would fail, too."""
    return next((meaning for text, meaning in _TRANSIENT_ERRORS.items() if text in str(error)), None)


def _connect(address: str, folder: str | None) -> None:
    if folder is not None and not Path(folder).is_dir():
        raise UsageError(f"--launch working_dir={folder}: there is no such folder.")
    init_kwargs: dict[str, Any] = {} if folder is None else {"runtime_env": {"working_dir": folder}}
    if address == "local":
        init_kwargs |= {"include_dashboard": False, "object_store_memory": _OBJECT_STORE_BYTES}
    elif address != "auto":
        _check_listening(address)
    for number in range(1, _TRIES + 1):
        try:
            if address != "local":
                _probe(address)
            return _initialise(address, init_kwargs)
        # Ray raises many classes: ConnectionError, RuntimeError, ValueError, ImportError, ...
        except Exception as error:
            meaning = explain_transient(error)
            if meaning is None:
                raise _build_unreachable_error(address, summarize_error(error)) from error
            if number == _TRIES:
                raise UsageError(
                    f"--launch address={address}: tried {_TRIES} times: {summarize_error(error)} {meaning}"
                ) from error
        print(
            f"tempopt: Ray at {address} has not accepted the connection; "
            f"trying again ({number + 1} of {_TRIES})",
            file=sys.stderr,
        )
        time.sleep(_PAUSE_SECONDS)


def _initialise(address: str, init_kwargs: dict[str, Any]) -> None:
    """Connect, and clean up if that fails.

    After a failure of ray://, Ray would treat this program as connected, and fail at all later calls.
    """
    with _keep_signal_handlers(), warnings.catch_warnings():
        # the warnings are for developers who use Ray directly
        warnings.simplefilter("ignore")
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **init_kwargs)
        except BaseException:
            with contextlib.suppress(Exception):
                ray.shutdown()
            raise


def _check_listening(address: str) -> None:
    """Raise UsageError if nothing listens at an address, which Ray itself detects only after minutes."""
    url_parts = urlsplit(address if "://" in address else f"//{address}")
    try:
        host, port = url_parts.hostname, url_parts.port
        if host and port:
            return socket.create_connection((host, port), timeout=10.0).close()
    except (OSError, ValueError) as error:
        raise _build_unreachable_error(address, f"{error}.") from error
    raise _build_unreachable_error(address, "no host and port.")


def _probe(address: str) -> None:
    """Check whether a Ray answers, in a separate process, since Ray's check takes minutes and may exit."""
    if "://" in address:
        # there Ray raises an exception after half a minute
        return
    command = [sys.executable, "-c", _PROBE, address]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PROBE_TIMEOUT_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        raise ConnectionError(f"no answer of a Ray within {_PROBE_TIMEOUT_SECONDS:g} s.") from error
    if done.returncode != 0:
        output = done.stdout.decode(errors="replace")
        raise ConnectionError(output or f"it ended at once, with exit code {done.returncode}.")


def _build_unreachable_error(address: str, why: str) -> UsageError:
    return UsageError(
        f"--launch address={address}: {why} Give HOST:PORT of the head node as ray start printed it (6379 as "
        "a rule), ray://HOST:10001 from outside the cluster, or auto on one of its nodes; without an "
        f"address and RAY_ADDRESS, a Ray is started on this machine. {_TOKEN_ADVICE}"
    )


@contextlib.contextmanager
def _keep_signal_handlers() -> Iterator[None]:
    """Restore the program's handlers of Ctrl-C and SIGTERM, which Ray replaces."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
