"""One agent of scaling.py in a process of its own: tempopt's own, with workers that sleep or that train.

Run as ``python agents.py FIELDS``, the fields of a :class:`Post` as JSON. When it is warm it says so on
standard output and waits for a line on standard input, so that all begin at the same moment; at the end it
says what it has seen, and waits for another line with its connections open.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

from store import Counts
from talkers import REPORTS, step_of, value_of

_REPORT_EVERY = REPORTS // 4


@dataclass(frozen=True, kw_only=True)
class Post:
    """Where an agent works and with what.

    Args:
        url: The database.
        study: Name of the study.
        workers: Workers that the agent has.
        sleep: Seconds that a training of sleep takes; None: max retrieval is trained.
    """

    url: str
    study: str
    workers: int
    sleep: float | None


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What an agent has seen; times are by the clock that all processes of this machine share.

    Args:
        finished: When each of its runs was over.
        cpu: CPU seconds of the agent, its workers not counted.
        transactions: Transactions that it has made.
    """

    finished: list[float]
    cpu: float
    transactions: float


class Sleeper:
    """What an agent takes for a worker process; a training is sleep and four reports.

    Args:
        slot: Which of the agent's workers it is.
        seconds: Length of a training.
    """

    def __init__(self, slot: int, seconds: float) -> None:
        from tempopt.workers.placement import Placement

        self.slot = slot
        self.place = Placement()
        self.ready = True
        self.seconds = seconds
        self.connection, self._theirs = Pipe()

    def send(self, request: Any) -> None:
        """Begin a training; nothing else is sent where nothing is pruned."""
        threading.Thread(target=self._train, args=(request, time.monotonic()), daemon=True).start()

    def receive(self) -> Any:
        """Return the next message."""
        from tempopt.workers.messages import decode

        return decode(self.connection.recv_bytes())

    def kill(self) -> None:
        """Do nothing: the process ends with its threads."""

    def _train(self, request: Any, begun: float) -> None:
        from tempopt.workers.messages import Finished, Report, Started, encode

        def say(message: Any) -> None:
            self._theirs.send_bytes(encode(message))

        run: dict[str, Any] = {"ticket": request.ticket, "attempt": request.attempt}
        steps, where = step_of(REPORTS), {"device": "cpu", "precision": "32-true"}
        say(Started(**run, step=0, total_steps=steps, **where, layers=["layer"], code="code", reports=[]))
        for report in range(_REPORT_EVERY, REPORTS + 1, _REPORT_EVERY):
            time.sleep(max(0.0, begun + self.seconds * report / REPORTS - time.monotonic()))
            value = value_of(request.ticket, report)
            say(Report(**run, step=step_of(report), value=value, metrics={"val_loss": value}))
        measured = {"validate": value, "validate_current": value}
        ended = {"step": steps, "measurements": measured, "metrics": {}, "reports": []}
        say(Finished(**run, state="complete", **ended, seconds=time.monotonic() - begun))


def work(post: Post) -> None:
    """Do an agent's work from the first line of standard input on, until every ticket is over."""
    from tempopt.agent.agent import Agent
    from tempopt.agent.dry_run import workers_of
    from tempopt.agent.observer import Unobserved
    from tempopt.spec.study_spec import StudySpec
    from tempopt.store.store import Store
    from tempopt.workers.messages import Ready
    from tempopt.workers.placement import Placement

    finished: list[float] = []

    class Clock(Unobserved):
        def finished(self, ticket: Any) -> None:
            finished.append(time.monotonic())

        def note(self, text: str) -> None:
            raise AssertionError(f"void: {text}")

    counts = Counts()
    real = 0 if post.sleep is not None else post.workers
    asleep = post.workers - real
    with (
        Store.open(post.url, create=False) as store,
        workers_of([Placement()] * real) as workers,
        tempfile.TemporaryDirectory() as folder,
    ):
        for worker in workers:
            assert isinstance(worker.receive(), Ready), "void: a worker does not start"
        study = store.load_study(post.study)
        spec = StudySpec.from_json(study.spec)
        agent = Agent(
            spec=spec,
            program=spec.program(),
            study=study,
            store=store,
            workers=workers or [Sleeper(slot, post.sleep) for slot in range(asleep)],  # type: ignore
            folder=Path(folder),
            checkpoints=f"file://{folder}",
            observer=Clock(),
        )
        client = agent._client
        # what a study does when its search is over is no part of what is measured
        client.over = lambda: client.cache.over() and not len(client._outbox)  # type: ignore[method-assign]
        print("warm", flush=True)
        sys.stdin.readline()
        counts.begin()
        cpu = time.process_time()
        agent.run()
        seen = Seen(
            finished=finished, cpu=time.process_time() - cpu, transactions=counts.end(1)["transactions"]
        )
        print(json.dumps(asdict(seen)), flush=True)
        sys.stdin.readline()


if __name__ == "__main__":
    work(Post(**json.loads(sys.argv[1])))
