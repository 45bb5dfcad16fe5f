"""The worker process: executes run requests of an agent, one after another, and stays warm between them.

Started by process.py as ``python -m tempopt.training.worker FD``, or as one of several ranks as
``... worker FD STORE``; it ends when the agent does.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from tempopt.class_loading import find_modules_in
from tempopt.errors import UsageError
from tempopt.training.messages import (
    AnyRequest,
    Failed,
    Finished,
    Message,
    Ready,
    RunMessage,
    RunRequest,
    Stop,
    decode,
    encode,
)
from tempopt.training.output import Output, is_disk_refusal

if TYPE_CHECKING:
    from tempopt.training.ranks import Ranks

_LOST = MemoryError | OSError | SystemExit | KeyboardInterrupt


class AgentChannel:
    """The worker's end of the connection: a thread receives, so that a stop costs a training step nothing.

    Args:
        connection: The connection to the agent.
        rank: Rank of this process, from 0; the first one sends messages for all.
        store: The file by which the ranks connect, None for a single process; removed when the agent exits.
        on_end: Called when the agent is gone, before this process and its group are ended.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        rank: int = 0,
        store: Path | None = None,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._connection = connection
        self._on_end = on_end
        self._rank = rank
        self._store = store
        self._lock = threading.Lock()
        self._stops: dict[tuple[int, int], Stop] = {}
        self.requests: queue.Queue[AnyRequest] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        while True:
            try:
                message = decode(self._connection.recv_bytes())
            except (EOFError, OSError):
                # the agent has exited: nothing can be reported, and the checkpoint is on disk
                self._end()
            if isinstance(message, Stop):
                self._stops[message.ticket, message.attempt] = message
            elif isinstance(message, AnyRequest):
                self.requests.put(message)

    def send(self, message: Message) -> None:
        """Send one message to the agent."""
        if self._rank and not isinstance(message, Ready | Finished | Failed):
            return
        try:
            with self._lock:
                self._connection.send_bytes(encode(message))
        except (BrokenPipeError, ConnectionResetError):
            self._end()

    def find_stop(self, request: RunMessage) -> Stop | None:
        """Return the agent's stop request for this run, if there is one."""
        return self._stops.get((request.ticket, request.attempt))

    def _end(self) -> NoReturn:
        """End this process and all of its children at once."""
        self._on_end()
        if self._store is not None:
            with contextlib.suppress(OSError):
                self._store.unlink()
            with contextlib.suppress(OSError):
                self._store.parent.rmdir()
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)
        os._exit(1)


def build_failed_message(
    request: RunMessage, error: BaseException, *, memory_share: float | None = None
) -> Failed:
    """Return what an agent is told of an error that ended a run.

    Args:
        memory_share: Share of a card's memory that the run could take, for the message.
    """
    kind, message = "error", f"{type(error).__name__}: {error}"
    if isinstance(error, UsageError):
        kind, message = "usage", str(error)
    elif is_disk_refusal(error):
        kind = "disk"
    elif isinstance(error, _LOST):
        kind = "infrastructure"
    elif "torch" in sys.modules:
        from tempopt.training import gpu_memory

        if gpu_memory.is_cuda_oom(error):
            kind, message = "gpu_memory", gpu_memory.oom_message(error, memory_share)
        elif gpu_memory.is_cpu_oom(error):
            kind = "infrastructure"
    return Failed(
        ticket=request.ticket,
        attempt=request.attempt,
        kind=kind,  # type: ignore[arg-type]
        message=message,
        traceback="".join(traceback.format_exception(error)),
    )


def _carry_out(request: RunRequest, channel: AgentChannel, ranks: Ranks) -> Finished | Failed:
    try:
        from tempopt.training.dry_run import check, dry_run
        from tempopt.training.run import LightningRun

        if request.task == "check":
            return check(request)
        if request.task == "dry_run":
            return dry_run(request, channel, ranks)
        if request.task == "time":
            from tempopt.training.measure_times import measure

            return measure(request, ranks)
        run = LightningRun(request, channel, ranks)
        try:
            return run.execute()
        finally:
            run.detach()
    except BaseException as error:
        traceback.print_exc()
        failed = build_failed_message(request, error, memory_share=request.memory_share)
        if ranks.rank and failed.kind != "usage":
            message = f"{failed.message} (in rank {ranks.rank} of {ranks.size})"
            failed = dataclasses.replace(failed, message=message)
        return failed


def main(descriptor: int, store: Path | None) -> None:
    """Serve run requests until the agent exits.

    Args:
        descriptor: The connection to the agent.
        store: A file by which the ranks connect (``RANK`` and ``WORLD_SIZE`` are set); None for a worker with
            a single process.
    """
    find_modules_in(str(Path.cwd()))
    # a process group receives these together; the agent decides about the run
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    rank, size = (0, 1) if store is None else (int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    connection = Connection(descriptor)
    # a data loader's worker that outlives this process would keep the connection open
    os.register_at_fork(after_in_child=connection.close)
    channel = AgentChannel(connection, rank=rank, store=store)
    output = Output()
    import tempopt.training.dry_run  # noqa: F401  # paid once, while the agent prepares the study
    from tempopt.training.gpu_memory import release
    from tempopt.training.ranks import ALONE, Ranks

    ranks = ALONE if store is None else Ranks.join(rank=rank, size=size, store=store)
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    channel.send(Ready())
    while True:
        request = channel.requests.get()
        assert isinstance(request, RunRequest), "a program was given to a worker with torch"
        output.to(request.folder)
        answer = _carry_out(request, channel, ranks)
        answer = dataclasses.replace(answer, log_lost=output.lost)
        # before the end is reported: the next run may already be assigned the GPU
        release()
        channel.send(answer)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None)
