"""An agent's handle on a worker, of one process or of several ranks; loads neither torch nor Lightning."""

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

# What torchrun, Slurm or LSF say of the agent's own place among processes is not the worker's.
_RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
_AGENTS_OWN = {*_RANKS, "SLURM_PROCID", "SLURM_LOCALID", "JSM_NAMESPACE_RANK"}


class WorkerProcess:
    """A warm worker in processes of its own, which takes nothing down with it when it dies.

    Its ranks are as one: what is said to it is said to each of them, what it says is what the first one
    says, and when one of them dies all do.

    Args:
        slot: Which of the agent's workers it is, from 0.
        placement: Where it trains.
    """

    def __init__(self, *, slot: int, placement: Placement) -> None:
        self.slot = slot
        self.placement = placement
        self.ready = False
        """Whether it is known to be warm, and can be given a run."""
        self._folder: Path | None = None
        self._group: _Group | None = None
        if placement.ranks == 1:
            environment = _environment(placement)
            self._ranks = [start_rank(environment) if placement.loads_torch else ProgramRank(environment)]
            self.connection = self._ranks[0].connection
            return
        self._folder = Path(tempfile.mkdtemp(prefix="tempopt-ranks-"))
        self._ranks = [
            start_rank(
                {**_environment(placement), **_place_in_group(rank, placement.ranks)}, self._folder / "store"
            )
            for rank in range(placement.ranks)
        ]
        own_socket, peer_socket = socket.socketpair()
        self.connection = Connection(own_socket.detach())
        self._group = _Group(self._ranks, Connection(peer_socket.detach()))
        self._group.start()

    @property
    def pid(self) -> int:
        """The process id; of the first rank if there are several."""
        return self._ranks[0].pid

    def send(self, message: Message) -> None:
        """Send one message; a worker that has died shows on the next :meth:`receive`."""
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
            # one rank failed, and the others might have waited for it forever: they were ended
            self.ready = False
        return message

    def exit_description(self) -> str:
        """Return in words how the worker ended."""
        if self._group is None:
            return f"the worker {_ending(self._ranks[0].wait())}"
        self._group.join()
        codes = [rank.wait() for rank in self._ranks]
        self._clear()
        if self._group.lost is None:
            return "the worker was ended, since one of its ranks had failed"
        lost = self._group.lost
        return f"rank {lost} of the worker's {len(codes)} {_ending(codes[lost])}"

    def end(self) -> None:
        """End the processes, and what they have started, at once; that shows on the next :meth:`receive`."""
        for rank in self._ranks:
            rank.end()

    def kill(self) -> None:
        """End the processes at once, and wait until they have gone."""
        self.end()
        # first: who still has much to tell would wait for it to be read
        self.connection.close()
        if self._group is not None:
            self._group.join()
        for rank in self._ranks:
            rank.wait()
        self._clear()

    def _clear(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


class _Group(threading.Thread):
    """Passes on to an agent what the ranks of a worker say, as the word of one; ends all when one is lost.

    Args:
        ranks: The processes.
        agent: The line to the agent; nothing comes from there but its end.

    Attributes:
        lost: The rank that was the first to die; None while all live, or if they were ended for a failure.
    """

    def __init__(self, ranks: Sequence[RankProcess], agent: Connection) -> None:
        super().__init__(name="ranks", daemon=True)
        self._ranks = ranks
        self._agent = agent
        self._warm = 0
        self._finished: dict[int, Finished] = {}
        self.lost: int | None = None

    def run(self) -> None:
        """Pass messages on until a rank is lost, has failed, or the agent lets go of the worker."""
        failed: Failed | None = None
        try:
            while self.lost is None and failed is None:
                failed = self._hear()
            for rank in self._ranks:
                rank.end()
            # what the first one has said is to be known
            while (message := self._next(0)) is not None:
                if not isinstance(message, Ready | Finished | Failed):
                    self._agent.send_bytes(encode(message))
            if failed is not None:
                self._agent.send_bytes(encode(failed))
        except OSError:
            # the agent has let go
            pass
        finally:
            for rank in self._ranks:
                rank.end()
            self._agent.close()

    def _hear(self) -> Failed | None:
        """Pass on what has come; return a failure, and note down who was lost."""
        connections = [rank.connection for rank in self._ranks]
        for ready in wait([self._agent, *connections]):
            if ready is self._agent:
                raise ConnectionResetError
            number = connections.index(ready)  # type: ignore[arg-type]
            message = self._next(number)
            if message is None:
                self.lost = number
                return None
            if isinstance(message, Failed):
                # a rank that lost another one fails for that reason alone
                self.lost = self._dead(number)
                return message if self.lost is None else None
            self._pass_on(number, message)
        return None

    def _pass_on(self, number: int, message: Message) -> None:
        if isinstance(message, Ready):
            self._warm += 1
            if self._warm < len(self._ranks):
                return
        elif isinstance(message, Finished):
            self._finished[number] = message
            if len(self._finished) < len(self._ranks):
                return
            message = self._finished[0]
            self._finished = {}
        self._agent.send_bytes(encode(message))

    def _next(self, number: int) -> Message | None:
        try:
            return decode(self._ranks[number].connection.recv_bytes())
        except (EOFError, OSError):
            return None

    def _dead(self, failed: int) -> int | None:
        """Return a rank that has died, None if all live."""
        for number, rank in enumerate(self._ranks):
            while number != failed and rank.connection.poll():
                message = self._next(number)
                if message is None:
                    return number
                if number == 0 and not isinstance(message, Ready | Finished | Failed):
                    self._pass_on(number, message)
        return None


def _environment(placement: Placement) -> dict[str, str]:
    # MKL follows OpenMP; two numbers that differ have threads wait for each other. The store's URL may
    # hold a password, which is nothing to a person's training code.
    environment = {
        name: value
        for name, value in os.environ.items()
        if name != "MKL_NUM_THREADS" and name not in _AGENTS_OWN and not name.startswith("TEMPOPT_STORAGE")
    }
    environment["OMP_NUM_THREADS"] = str(placement.threads)
    if placement.gpus is not None:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(placement.gpus)
    return environment


def _place_in_group(rank: int, size: int) -> dict[str, str]:
    variables = dict(zip(_RANKS, map(str, (rank, rank, size, size)), strict=True))
    loopback = [name for _, name in socket.if_nameindex() if name.startswith("lo")]
    if loopback and "GLOO_SOCKET_IFNAME" not in os.environ:
        # they are all on this machine, and its name may lead to an address that is not reached
        variables["GLOO_SOCKET_IFNAME"] = loopback[0]
    return variables


def _ending(code: int) -> str:
    if code < 0:
        names = {member.value: member.name for member in signal.Signals}
        return f"was killed by {names.get(-code, f'signal {-code}')}"
    return f"ended with exit code {code}"
