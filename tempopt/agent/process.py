"""An agent's handle of a worker with one process or several ranks; loads neither torch nor Lightning."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path

from tempopt.agent.placement import Placement
from tempopt.agent.rank_process import ProgramRank, RankProcess, start_rank
from tempopt.training.messages import Failed, Finished, Message, Ready, decode, encode

# Variables with which torchrun, Slurm or LSF tell the agent its rank; a worker must not inherit them.
_RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
_AGENT_VARIABLES = {*_RANK_VARIABLES, "SLURM_PROCID", "SLURM_LOCALID", "JSM_NAMESPACE_RANK"}


class WorkerProcess:
    """A warm worker in its own processes, whose death does not affect the agent.

    All ranks act as one worker: a message to it goes to every rank, its messages are those of the first rank,
    and when one rank dies the others are ended.

    Args:
        slot: Number of the worker within the agent, from 0.
        placement: Resources on which it trains.
    """

    def __init__(self, *, slot: int, placement: Placement) -> None:
        self.slot = slot
        self.placement = placement
        self.ready = False
        """Whether it has reported that it is ready for a run."""
        self._folder: Path | None = None
        self._group: _RankGroup | None = None
        if placement.ranks == 1:
            environment = _build_environment(placement)
            self._ranks = [start_rank(environment) if placement.loads_torch else ProgramRank(environment)]
            self.connection = self._ranks[0].connection
            return
        self._folder = Path(tempfile.mkdtemp(prefix="tempopt-ranks-"))
        self._ranks = [
            start_rank(
                {**_build_environment(placement), **_build_rank_variables(rank, placement.ranks)},
                self._folder / "store",
            )
            for rank in range(placement.ranks)
        ]
        own_socket, peer_socket = socket.socketpair()
        self.connection = Connection(own_socket.detach())
        self._group = _RankGroup(self._ranks, Connection(peer_socket.detach()))
        self._group.start()

    @property
    def pid(self) -> int:
        """Process id of the first rank."""
        return self._ranks[0].pid

    def send(self, message: Message) -> None:
        """Send one message; that the worker has died is reported by the next :meth:`receive`."""
        line = encode(message)
        for rank in self._ranks:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                rank.connection.send_bytes(line)

    def receive(self) -> Message | None:
        """Return the next message, or None if the worker has died."""
        try:
            message = decode(self.connection.recv_bytes())
        except (EOFError, OSError):
            return None
        if isinstance(message, Ready):
            self.ready = True
        if isinstance(message, Failed) and self._group is not None:
            # one rank failed, and the others might have waited for it forever: all were ended
            self.ready = False
        return message

    def exit_description(self) -> str:
        """Return a phrase on how the worker ended."""
        if self._group is None:
            return f"the worker {_describe_exit(self._ranks[0].wait())}"
        self._group.join()
        codes = [rank.wait() for rank in self._ranks]
        self._remove_folder()
        if self._group.lost_rank is None:
            return "the worker was ended because one of its ranks had failed"
        lost = self._group.lost_rank
        return f"rank {lost} of the worker's {len(codes)} {_describe_exit(codes[lost])}"

    def end(self) -> None:
        """Kill the processes and their children at once; the next :meth:`receive` returns None."""
        for rank in self._ranks:
            rank.end()

    def kill(self) -> None:
        """Kill the processes, and wait until they have ended."""
        self.end()
        # close first: a process that still sends would wait until its messages are read
        self.connection.close()
        if self._group is not None:
            self._group.join()
        for rank in self._ranks:
            rank.wait()
        self._remove_folder()

    def _remove_folder(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


class _RankGroup(threading.Thread):
    """Forwards the messages of all ranks to the agent as those of one worker; ends all ranks if one is lost.

    Args:
        ranks: The processes.
        agent: The connection to the agent, from which no message comes, only its end.

    Attributes:
        lost_rank: The first rank that died; None while all live, or if they were ended after a failure.
    """

    def __init__(self, ranks: Sequence[RankProcess], agent: Connection) -> None:
        super().__init__(name="ranks", daemon=True)
        self._ranks = ranks
        self._agent = agent
        self._num_ready = 0
        self._finished: dict[int, Finished] = {}
        self.lost_rank: int | None = None

    def run(self) -> None:
        """Forward messages until a rank is lost or has failed, or the agent closes its connection."""
        failure: Failed | None = None
        try:
            while self.lost_rank is None and failure is None:
                failure = self._forward_messages()
            for rank in self._ranks:
                rank.end()
            # forward what the first rank has still sent
            while (message := self._receive(0)) is not None:
                if not isinstance(message, Ready | Finished | Failed):
                    self._agent.send_bytes(encode(message))
            if failure is not None:
                self._agent.send_bytes(encode(failure))
        except OSError:
            # the agent has closed its connection
            pass
        finally:
            for rank in self._ranks:
                rank.end()
            self._agent.close()

    def _forward_messages(self) -> Failed | None:
        """Forward the messages that have arrived; return a failure, and record a lost rank."""
        connections = [rank.connection for rank in self._ranks]
        for connection in wait([self._agent, *connections]):
            if connection is self._agent:
                raise ConnectionResetError
            number = connections.index(connection)  # type: ignore[arg-type]
            message = self._receive(number)
            if message is None:
                self.lost_rank = number
                return None
            if isinstance(message, Failed):
                # a rank may have failed only because another rank died
                self.lost_rank = self._find_dead_rank(number)
                return message if self.lost_rank is None else None
            self._forward(number, message)
        return None

    def _forward(self, number: int, message: Message) -> None:
        if isinstance(message, Ready):
            self._num_ready += 1
            if self._num_ready < len(self._ranks):
                return
        elif isinstance(message, Finished):
            self._finished[number] = message
            if len(self._finished) < len(self._ranks):
                return
            message = self._finished[0]
            self._finished = {}
        self._agent.send_bytes(encode(message))

    def _receive(self, number: int) -> Message | None:
        try:
            return decode(self._ranks[number].connection.recv_bytes())
        except (EOFError, OSError):
            return None

    def _find_dead_rank(self, failed: int) -> int | None:
        """Return a rank that has died, None if all live."""
        for number, rank in enumerate(self._ranks):
            while number != failed and rank.connection.poll():
                message = self._receive(number)
                if message is None:
                    return number
                if number == 0 and not isinstance(message, Ready | Finished | Failed):
                    self._forward(number, message)
        return None


def _build_environment(placement: Placement) -> dict[str, str]:
    # MKL follows OpenMP; with two different numbers threads wait for each other. The store's URL may hold a
    # password, which the user's training code must not see.
    environment = {
        name: value
        for name, value in os.environ.items()
        if name != "MKL_NUM_THREADS"
        and name not in _AGENT_VARIABLES
        and not name.startswith("TEMPOPT_STORAGE")
    }
    environment["OMP_NUM_THREADS"] = str(placement.threads)
    if placement.gpus is not None:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(placement.gpus)
    return environment


def _build_rank_variables(rank: int, size: int) -> dict[str, str]:
    variables = dict(zip(_RANK_VARIABLES, map(str, (rank, rank, size, size)), strict=True))
    loopback = [name for _, name in socket.if_nameindex() if name.startswith("lo")]
    if loopback and "GLOO_SOCKET_IFNAME" not in os.environ:
        # all ranks are on this machine, whose name may resolve to an address that cannot be reached
        variables["GLOO_SOCKET_IFNAME"] = loopback[0]
    return variables


def _describe_exit(code: int) -> str:
    if code < 0:
        names = {member.value: member.name for member in signal.Signals}
        return f"was killed by {names.get(-code, f'signal {-code}')}"
    return f"ended with exit code {code}"
