"""The trainer process: takes run requests from an agent, one after another, and stays warm between them.

Started by process.py as ``python -m tempopt.training.serve FD``; it ends when the agent does.
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import sys
import threading
import traceback
from multiprocessing.connection import Connection
from pathlib import Path

from tempopt.errors import UsageError
from tempopt.training.messages import (
    Failed,
    Message,
    Ready,
    RunRequest,
    Stop,
    decode,
    encode,
)

LOG = "log.txt"


class AgentChannel:
    """The trainer's end of the line: a thread listens, so that a stop costs a training step nothing."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._stops: dict[tuple[int, int], Stop] = {}
        self.requests: queue.Queue[RunRequest] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        while True:
            try:
                message = decode(self._connection.recv_bytes())
            except (EOFError, OSError):
                # the agent is gone: nobody is left to report to, and the checkpoint is on disk
                os._exit(1)
            if isinstance(message, Stop):
                self._stops[message.ticket, message.attempt] = message
            elif isinstance(message, RunRequest):
                self.requests.put(message)

    def send(self, message: Message) -> None:
        """Send one message to the agent."""
        with self._lock:
            self._connection.send_bytes(encode(message))

    def stop(self, request: RunRequest) -> Stop | None:
        """Return the agent's wish that this run end, if there is one."""
        return self._stops.get((request.ticket, request.attempt))


def _log_to(folder: str | None) -> None:
    # by file descriptor, so that what C code prints is kept too
    path = Path(folder) / LOG if folder is not None else Path(os.devnull)
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        os.dup2(descriptor, stream.fileno())
    os.close(descriptor)


def _failed(request: RunRequest, error: BaseException) -> Failed:
    import torch

    kind = "error"
    if isinstance(error, UsageError):
        kind = "usage"
    elif isinstance(error, MemoryError | torch.OutOfMemoryError | OSError | SystemExit | KeyboardInterrupt):
        kind = "infrastructure"
    message = str(error) if isinstance(error, UsageError) else f"{type(error).__name__}: {error}"
    return Failed(
        ticket=request.ticket,
        attempt=request.attempt,
        kind=kind,  # type: ignore[arg-type]
        message=message,
        traceback="".join(traceback.format_exception(error)),
    )


def _answer(request: RunRequest, channel: AgentChannel) -> Message:
    _log_to(request.folder)
    try:
        from tempopt.training.rehearsal import check, rehearse
        from tempopt.training.run import Run

        if request.task == "check":
            return check(request)
        return rehearse(request, channel) if request.task == "rehearse" else Run(request, channel).execute()
    except BaseException as error:
        traceback.print_exc()
        return _failed(request, error)


def main(descriptor: int) -> None:
    """Serve run requests until the agent goes away."""
    # a whole process group gets these; what becomes of the run is the agent's to decide
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    channel = AgentChannel(Connection(descriptor))
    import tempopt.training.rehearsal  # noqa: F401  # paid once, while the agent prepares the study

    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    channel.send(Ready())
    while True:
        request = channel.requests.get()
        channel.send(_answer(request, channel))


if __name__ == "__main__":
    main(int(sys.argv[1]))
