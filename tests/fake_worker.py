"""A worker that trains nothing: what agents and stores are tested with when training is not what is tested.

It says what a worker of one process says of a training of the toy module, value by value a function of the
parameters, the seed and the step, keeps checkpoints as files, and goes on from them.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import queue
import threading
import time
from collections.abc import Collection
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import pytest

from tempopt.agent import dry_run, worker_pool
from tempopt.agent.placement import Placement
from tempopt.errors import StoreUnreachable
from tempopt.storage.store import Store
from tempopt.training.messages import (
    CheckpointRef,
    CheckpointSaved,
    Failed,
    Finished,
    Message,
    Progress,
    Ready,
    Report,
    RunRequest,
    Started,
    Stop,
    Times,
    decode,
    encode,
)

STEPS = 24
EVERY = 4
TIMES = Times(
    start=1.0, step=0.5, steps=STEPS, validate=2.0, validations=STEPS // EVERY, ends_validated=True, test=3.0
)
"""What is said where a run is to be timed."""


def value_at(request: RunRequest, step: int, salt: str = "") -> float:
    """Return a validation loss: falls over training, is lowest near temperature 0.7, differs by seed."""
    text = json.dumps([salt, request.seed, sorted(request.parameters.items())], default=str)
    noise = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") / 2**32
    temperature = request.parameters.get("temperature_final") or request.parameters.get(
        "temperature_init", 1.0
    )
    return 1.0 + 0.3 * math.log(temperature / 0.7) ** 2 + 0.6 * noise + 2.0 * math.exp(-step / 6)


class AgentDied(BaseException):
    """The agent's process ends here."""


def fail_calls(
    patch: pytest.MonkeyPatch,
    method: str,
    fatal_calls: Collection[int],
    *,
    error: BaseException | None = None,
    is_after: bool = False,
) -> None:
    """Have some calls of a method of the store fail, after it was carried out or instead of that."""
    work, calls = getattr(Store, method), itertools.count(1)

    def fail(*args: Any, **kwargs: Any) -> Any:
        is_fatal = next(calls) in fatal_calls
        result = work(*args, **kwargs) if is_after or not is_fatal else None
        if is_fatal:
            raise error or StoreUnreachable("The database failed: server closed the connection.")
        return result

    patch.setattr(Store, method, fail)


class FakeWorker:
    """What an agent takes for a worker process.

    Args:
        slot: Which of the agent's workers it is.
        placement: Where it would train.
    """

    pace = 0.0002
    """Seconds a step."""

    def __init__(self, *, slot: int, placement: Placement) -> None:
        self.slot = slot
        self.placement = placement
        self.ready = False
        self.pid = os.getpid()
        self.connection, self._theirs = Pipe()
        self._requests: queue.Queue[RunRequest | None] = queue.Queue()
        self._stops: dict[tuple[int, int], Stop] = {}
        self._gone = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def send(self, message: Message) -> None:
        """Take a request, or the wish that a run end."""
        if isinstance(message, Stop):
            self._stops[message.ticket, message.attempt] = message
        elif isinstance(message, RunRequest):
            # by way of text, as over the real connection
            self._requests.put(decode(encode(message)))  # type: ignore[arg-type]

    def receive(self) -> Message | None:
        """Return the next message, None if the worker is gone."""
        try:
            message = decode(self.connection.recv_bytes())
        except (EOFError, OSError):
            return None
        self.ready = self.ready or isinstance(message, Ready)
        return message

    def exit_description(self) -> str:
        """Return how the worker ended."""
        self._thread.join()
        return "the worker was killed by SIGKILL"

    def end(self) -> None:
        """End at the next step."""
        self._gone.set()
        self._requests.put(None)

    def kill(self) -> None:
        """End, and wait for it."""
        self.end()
        self.connection.close()
        self._thread.join()

    def _serve(self) -> None:
        try:
            self._say(Ready())
            while (request := self._requests.get()) is not None:
                self._answer(request)
        except (BrokenPipeError, ConnectionResetError, EOFError, OSError):
            pass
        finally:
            self._theirs.close()

    def _say(self, message: Message) -> None:
        if self._gone.is_set():
            raise EOFError
        self._theirs.send_bytes(encode(message))

    def _answer(self, request: RunRequest) -> None:
        try:
            self._train(request)
        except ValueError as error:
            run: dict[str, Any] = {"ticket": request.ticket, "attempt": request.attempt}
            self._say(Failed(**run, kind="error", message=str(error)))

    def _train(self, request: RunRequest) -> None:
        run: dict[str, Any] = {"ticket": request.ticket, "attempt": request.attempt}
        start_time = time.monotonic()
        step, notes = self._resume_point(request)
        steps = STEPS if request.task == "train" else 2
        reports = [[float(n), value_at(request, n)] for n in range(EVERY, step + 1, EVERY)]
        device_fields = {"device": "cpu", "precision": "32-true", "layers": ["layer 0"], "code": "code"}
        self._say(Started(**run, step=step, total_steps=steps, reports=reports, notes=notes, **device_fields))
        state: Any = "complete"
        while step < steps:
            time.sleep(self.pace)
            step += 1
            self._say(Progress(**run, step=step))
            if step % EVERY == 0 and request.task == "train":
                value = value_at(request, step)
                reports.append([float(step), value])
                self._say(Report(**run, step=step, value=value, metrics={request.program.metric: value}))
                self._keep(request, step)
            if stop := self._stops.get((request.ticket, request.attempt)):
                if stop.keep:
                    self._keep(request, step)
                state = "stopped"
                break
        names = ["validate", "validate_current", *(evaluation.name for evaluation in request.evaluations)]
        if state != "complete":
            names = []
        values = {name: value_at(request, steps, "" if "validate" in name else name) for name in names}
        self._say(
            Finished(
                **run,
                state=state,
                step=step,
                measurements=values,
                metrics={name: {request.program.metric: value} for name, value in values.items()},
                seconds=time.monotonic() - start_time,
                reports=reports,
                times=TIMES if request.task == "time" else None,
            )
        )

    def _keep(self, request: RunRequest, step: int) -> None:
        if request.checkpoints is None:
            return
        folder = Path(request.checkpoints.removeprefix("file://"))
        folder.mkdir(parents=True, exist_ok=True)
        path, data = folder / f"step-{step}.ckpt", f"{step}".encode()
        path.write_bytes(data)
        digest = hashlib.sha256(data).hexdigest()
        checkpoint = CheckpointRef(step=step, url=f"file://{path}", digest=digest, size=len(data))
        self._say(CheckpointSaved(ticket=request.ticket, attempt=request.attempt, saved=checkpoint))

    def _resume_point(self, request: RunRequest) -> tuple[int, list[str]]:
        notes = []
        for checkpoint in request.resume:
            path = Path(checkpoint.url.removeprefix("file://"))
            if path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == checkpoint.digest:
                return checkpoint.step, notes
            notes.append(f"The checkpoint {checkpoint.url} is damaged or missing.")
        return 0, notes


def install(patch: pytest.MonkeyPatch | None = None, *, pace: float = FakeWorker.pace) -> None:
    """Have agents of this process work with such workers; for good, unless it is patched for a test."""
    patch = patch or pytest.MonkeyPatch()
    patch.setattr(FakeWorker, "pace", pace)
    for module in (dry_run, worker_pool):
        patch.setattr(module, "WorkerProcess", FakeWorker)
