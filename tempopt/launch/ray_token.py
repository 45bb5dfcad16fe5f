"""The token of a Ray cluster: where this program has it, and whether the cluster asks for one and takes it.

Ray's own client tells none of this: refused, it waits for half a minute and says that it cannot connect, and
one that shows a token to a cluster which asks for none loses its actors. So the cluster is asked first, and
shown a token only if it wants one. The token itself goes into no message and no option, and to no actor:
each node of the cluster has it already.
"""

from __future__ import annotations

import importlib
import os
import shlex
import stat
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tempopt import files
from tempopt.errors import UsageError

_MODE, _TOKEN, _PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
_BY_KUBERNETES = "RAY_ENABLE_K8S_TOKEN_AUTH"
# Seconds for the first question, and for the second to a cluster that is slow.
_PATIENCE = (5.0, 15.0)
# What Ray's own clients call first, with as little as they can ask.
_HEAD_NODE = ("/ray.rpc.NodeInfoGcsService/GetClusterId", b"")
_CLIENT_SERVER = ("/ray.rpc.RayletDriver/ClusterInfo", b"\x08\x06")
_WHAT_TO_DO = (
    "Put the token of the cluster (ray get-auth-token prints it on the head node) into a file that only you "
    "can read, and give --launch token_file=FILE, or set RAY_AUTH_TOKEN_PATH=FILE. For a new cluster, "
    "ray get-auth-token --generate makes one in ~/.ray/auth_token; all nodes have to start with the same."
)

Answer = Literal["accepted", "refused", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RayToken:
    """A token for Ray.

    Args:
        text: The token: never to be shown.
        where: Where it was found, for messages.
        path: The file that it is in; None: it is in RAY_AUTH_TOKEN.
    """

    text: str = field(repr=False)
    where: str
    path: Path | None = None


class TokenEnvironment:
    """What this process and those that it starts show to Ray, until it is taken back.

    Ray reads it from the environment, where a program around this one may have put something.
    """

    def __init__(self) -> None:
        self._before = {name: os.environ.get(name) for name in (_MODE, _TOKEN, _PATH)}

    def show(self, path: Path | None = None) -> None:
        """Have Ray show the token of a file; None: the one that it finds."""
        os.environ[_MODE] = "token"
        if path is not None:
            # it comes before the file else
            os.environ.pop(_TOKEN, None)
            os.environ[_PATH] = str(path)
        _read_again()

    def show_none(self) -> None:
        """Have Ray show no token, whatever its version does by default."""
        os.environ[_MODE] = "disabled"
        _read_again()

    def take_back(self) -> None:
        """Let everything be as it was; Ray itself changes it, too, where it starts a cluster."""
        now = {name: os.environ.get(name) for name in self._before}
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        if now != self._before:
            _read_again()


def read_file(path: str) -> RayToken:
    """Return the token of the file that ``--launch token_file`` names; say so if others can read it.

    Raises:
        UsageError: It cannot be read or holds no token, or RAY_AUTH_MODE forbids tokens.
    """
    what = f"--launch token_file={path}"
    if _is_off():
        raise UsageError(
            f"{what}: {_MODE}={os.environ[_MODE]} is set, so that Ray shows no token. Unset {_MODE} or leave "
            "out token_file."
        )
    token, mode = _read(files.absolute(path, "--launch token_file"), what)
    if os.name == "posix" and mode & (stat.S_IRGRP | stat.S_IROTH):
        print(
            f"tempopt: warning: {token.path} holds a token that others on this machine can read. "
            f"Run: chmod 600 {shlex.quote(str(token.path))}",
            file=sys.stderr,
        )
    return token


def negotiate_token(auth: TokenEnvironment, address: str, target: str | None, token: RayToken | None) -> bool:
    """Find out whether a cluster asks for a token, and have Ray show it the right one.

    Args:
        auth: What Ray shows.
        address: The cluster as a person gave it.
        target: The same as ``HOST:PORT``; None: only Ray knows.
        token: That of ``--launch token_file``; None: none was given.

    Returns:
        Whether a Ray has answered there.

    Raises:
        UsageError: The cluster asks for a token, and there is none, or it refuses it.
    """
    answer = "unknown" if target is None else _ask(target, address, None)
    if target is None or answer == "unknown":
        if token is not None:
            auth.show(token.path)
        return False
    if answer == "accepted":
        auth.show_none()
        return True
    refusal = f"--launch address={address}: this Ray cluster asks for a token, and"
    if _is_off():
        raise UsageError(
            f"{refusal} {_MODE}={os.environ[_MODE]} is set, so that none is shown. Unset {_MODE}. "
            f"{_WHAT_TO_DO}"
        )
    token = token or _find_token()
    if token is None:
        if os.environ.get(_BY_KUBERNETES, "").lower() in ("1", "true"):
            # that of the pod, where Ray looks for it
            auth.show()
            return True
        raise UsageError(
            f"{refusal} there is none here: neither token_file nor {_TOKEN} nor {_PATH} is given, and "
            f"~/.ray/auth_token is not there. {_WHAT_TO_DO}"
        )
    if _ask(target, address, token) == "refused":
        raise UsageError(f"{refusal} refuses the one of {token.where}. {_WHAT_TO_DO}")
    auth.show(token.path)
    return True


def set_local_cluster_token(auth: TokenEnvironment, token: RayToken | None) -> None:
    """Have a Ray of this machine's own, which is still to be started, use the token of a file.

    Args:
        auth: What Ray shows.
        token: That of ``--launch token_file``; None: Ray finds one, or makes one.

    Raises:
        UsageError: Ray is to use a file that cannot be read or holds no token.
    """
    if token is not None:
        auth.show(token.path)
    elif not _is_off():
        _find_token()


def default_file() -> Path | None:
    """Return the file in which Ray looks for a token by itself; None: there is no home folder."""
    try:
        return Path.home() / ".ray" / "auth_token"
    except RuntimeError:
        return None


def _is_off() -> bool:
    # as Ray takes it: every other word is none that it knows
    return os.environ.get(_MODE, "token").lower() not in ("", "token")


def _find_token() -> RayToken | None:
    """Return the token that Ray itself would find, in the same order."""
    if text := os.environ.get(_TOKEN, "").strip():
        return RayToken(text=text, where=_TOKEN)
    if token_path := os.environ.get(_PATH):
        return _read(files.absolute(token_path, _PATH), f"{_PATH}={token_path}")[0]
    default = default_file()
    if default is None or not default.is_file():
        return None
    return _read(default, str(default))[0]


def _read(path: Path, where: str) -> tuple[RayToken, int]:
    try:
        text, mode = files.read_text(path, "the token of a Ray cluster")
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from error
    words = text.split()
    if len(words) != 1 or not text.isascii():
        contents = f"{len(words)} words" if words else "nothing"
        raise UsageError(
            f"{where}: the file holds {contents}, where one word is expected, the token. Write it there with "
            "ray get-auth-token, on the head node of the cluster."
        )
    return RayToken(text=words[0], where=where, path=path), mode


def _ask(target: str, address: str, token: RayToken | None) -> Answer:
    """Return what a cluster answers to who shows a token, or none."""
    import grpc  # type: ignore[import-untyped]

    method, request = _CLIENT_SERVER if "://" in address else _HEAD_NODE
    metadata = () if token is None else (("authorization", f"Bearer {token.text}"),)
    codes = grpc.StatusCode
    with _channel(grpc, target) as channel:
        for patience in _PATIENCE:
            try:
                channel.unary_unary(method)(request, timeout=patience, metadata=metadata)
                return "accepted"
            except grpc.RpcError as error:
                if error.code() in (codes.UNAUTHENTICATED, codes.PERMISSION_DENIED):
                    return "refused"
                if error.code() is not codes.DEADLINE_EXCEEDED:
                    return "unknown"
    return "unknown"


def _channel(grpc: Any, target: str) -> Any:
    # a proxy for web pages is none for Ray
    options = (("grpc.enable_http_proxy", 0),)
    if os.environ.get("RAY_USE_TLS", "0").lower() not in ("1", "true"):
        return grpc.insecure_channel(target, options=options)
    certificates = {
        name: _certificate(f"RAY_TLS_{name}") for name in ("CA_CERT", "SERVER_KEY", "SERVER_CERT")
    }
    credentials = grpc.ssl_channel_credentials(
        certificates["CA_CERT"], certificates["SERVER_KEY"], certificates["SERVER_CERT"]
    )
    return grpc.secure_channel(target, credentials, options=options)


def _certificate(name: str) -> bytes:
    path = os.environ.get(name)
    if not path:
        raise UsageError(f"RAY_USE_TLS is set, and {name} is not. Set it to the file that Ray is to use.")
    return files.read_text(files.absolute(path, name), "a certificate or key")[0].encode()


def _read_again() -> None:
    """Have Ray, which keeps what it has read, read the environment anew."""
    raylet: Any = importlib.import_module("ray._raylet")
    raylet.Config.initialize("")
    raylet.AuthenticationTokenLoader.instance().reset_cache()
