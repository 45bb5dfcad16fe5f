"""One agent of scaling.py in a process of its own: tempopt's own, with workers that sleep.

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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

from store import Counts
from talkers import REPORTS, step_of, value_of


@dataclass(frozen=True, kw_only=True)
class Post:
    """Where an agent works and with what.

    Args:
        url: The database.
        study: Name of the study.
        workers: Workers that the agent has.
        sleep: Seconds that a training takes.
        reports: Reports of a training, a divisor of REPORTS.
        server: URL of the server that the agent works for; None: it reaches the database.
        token: That it shows.
    """

    url: str
    study: str
    workers: int
    sleep: float
    reports: int = 4
    server: str | None = None
    token: str = ""


@dataclass(frozen=True, kw_only=True)
class AgentReport:
    """What an agent has seen; times are by the clock that all processes of this machine share.

    Args:
        finished: When each of its runs was over.
        cpu: CPU seconds of the agent, its workers not counted.
        transactions: Transactions that it has made; with a server none.
        requests: Requests that it has sent to a server.
        sent: Bytes of their bodies.
        received: Bytes of the bodies of the answers.
        idle: Seconds between the end of a run and the begin of the next, of each worker.
    """

    finished: list[float]
    cpu: float
    transactions: float
    requests: int = 0
    sent: int = 0
    received: int = 0
    idle: list[float] = field(default_factory=list)


class Sleeper:
    """What an agent takes for a worker process; a training is sleep and four reports.

    Args:
        slot: Which of the agent's workers it is.
        seconds: Length of a training.
        reports: Number of reports of a training.
    """

    def __init__(self, slot: int, seconds: float, reports: int = 4) -> None:
        from tempopt.agent.placement import Placement

        self.slot = slot
        self.placement = Placement()
        self.ready = True
        self.seconds = seconds
        self.every = REPORTS // reports
        self.ended_at = 0.0
        self.idle: list[float] = []
        self.connection, self._theirs = Pipe()

    def send(self, request: Any) -> None:
        """Begin a training; nothing else is sent where nothing is pruned."""
        if self.ended_at:
            self.idle.append(time.monotonic() - self.ended_at)
        threading.Thread(target=self._train, args=(request, time.monotonic()), daemon=True).start()

    def receive(self) -> Any:
        """Return the next message."""
        from tempopt.training.messages import decode

        return decode(self.connection.recv_bytes())

    def kill(self) -> None:
        """Do nothing: the process ends with its threads."""

    def _train(self, request: Any, start_time: float) -> None:
        from tempopt.training.messages import Finished, Report, Started, encode

        def say(message: Any) -> None:
            self._theirs.send_bytes(encode(message))

        run: dict[str, Any] = {"ticket": request.ticket, "attempt": request.attempt}
        steps, device_fields = step_of(REPORTS), {"device": "cpu", "precision": "32-true"}
        say(
            Started(
                **run, step=0, total_steps=steps, **device_fields, layers=["layer"], code="code", reports=[]
            )
        )
        for report in range(self.every, REPORTS + 1, self.every):
            time.sleep(max(0.0, start_time + self.seconds * report / REPORTS - time.monotonic()))
            value = value_of(request.ticket, report)
            say(Report(**run, step=step_of(report), value=value, metrics={"val_loss": value}))
        values = {"validate": value, "validate_current": value}
        end_fields = {"step": steps, "measurements": values, "metrics": {}, "reports": []}
        self.ended_at = time.monotonic()
        say(Finished(**run, state="complete", **end_fields, seconds=time.monotonic() - start_time))


def work(post: Post) -> None:
    """Do an agent's work from the first line of standard input on, until every ticket is over."""
    from tempopt.agent.agent_loop import Agent
    from tempopt.agent.observer import NullObserver
    from tempopt.agent.study_client import RunFolders

    end_times: list[float] = []

    class Clock(NullObserver):
        def on_ticket_end(self, ticket: Any) -> None:
            if ticket.kind == "search":
                end_times.append(time.monotonic())

        def note(self, text: str) -> None:
            raise AssertionError(f"void: {text}")

    slots = [Sleeper(slot, post.sleep, post.reports) for slot in range(post.workers)]
    connect = _connect_to_database if post.server is None else _connect_to_server
    with tempfile.TemporaryDirectory() as name:
        folders, observer = RunFolders(logs=Path(name), checkpoints=f"file://{name}"), Clock()
        with connect(post, folders, observer) as (spec, client, counts):
            agent = Agent(
                spec=spec,
                client=client,
                workers=slots,  # type: ignore[arg-type]
                folders=folders,
                observer=observer,
            )
            print("warm", flush=True)
            sys.stdin.readline()
            counts()
            cpu = time.process_time()
            agent.run()
            agent_report = AgentReport(
                finished=end_times,
                cpu=time.process_time() - cpu,
                **counts(),
                idle=[idle_seconds for slot in slots for idle_seconds in slot.idle],
            )
            print(json.dumps(asdict(agent_report)), flush=True)
            sys.stdin.readline()


Counted = Callable[[], dict[str, Any]]
"""Returns what was counted since it was called last, as fields of an :class:`AgentReport`."""


@contextmanager
def _connect_to_database(post: Post, folders: Any, observer: Any) -> Iterator[tuple[Any, Any, Counted]]:
    """Yield the spec, a client on the database, and its transactions."""
    from tempopt.agent.local_client import LocalStudyClient
    from tempopt.agent.study_cache import StudyCache
    from tempopt.spec.study_spec import StudySpec
    from tempopt.storage.opening import open_store

    counts = Counts()

    def transactions() -> dict[str, Any]:
        num_transactions = counts.end(1)["transactions"]
        counts.begin()
        return {"transactions": num_transactions}

    with open_store(post.url, create=False) as store:
        study = store.load_study(post.study)
        spec = StudySpec.from_json(study.spec)
        client = LocalStudyClient(
            cache=StudyCache(spec, study, store), folders=folders, workers=post.workers, observer=observer
        )
        # what a study does when its search is over is no part of what is measured
        client.is_finished = lambda: client.cache.is_finished() and not len(client.outbox)  # type: ignore[method-assign]
        yield spec, client, transactions


@contextmanager
def _connect_to_server(post: Post, folders: Any, observer: Any) -> Iterator[tuple[Any, Any, Counted]]:
    """Yield the spec, a client of the server, and what is said to it."""
    from tempopt.agent.remote_client import AgentRpcClient, RemoteStudyClient, to_study_row
    from tempopt.spec.study_spec import StudySpec
    from tempopt.storage.http.connection import ServerConnection

    assert post.server is not None
    connection = ServerConnection(post.server, post.token)
    traffic = {"requests": 0, "sent": 0, "received": 0}

    def count_request(request: Any) -> None:
        traffic["requests"] += 1
        traffic["sent"] += len(request.content)

    def count_response(answer: Any) -> None:
        answer.read()
        traffic["received"] += len(answer.content)

    def counted() -> dict[str, Any]:
        counted_traffic = dict(traffic)
        traffic.update(dict.fromkeys(traffic, 0))
        return {"transactions": 0.0, **counted_traffic}

    connection.client.event_hooks = {"request": [count_request], "response": [count_response]}
    line = AgentRpcClient(connection, post.study, post.workers)
    join_reply = line.join()
    spec = StudySpec.from_json(to_study_row(join_reply).spec)
    client = RemoteStudyClient(spec=spec, joined=join_reply, line=line, folders=folders, observer=observer)

    def is_over() -> bool:
        # what a study does when its search is over is no part of what is measured
        snapshot = client.snapshot([], 0.0)
        return snapshot.done["search"] == snapshot.requested["search"]

    client.is_finished = is_over  # type: ignore[method-assign]
    yield spec, client, counted


if __name__ == "__main__":
    work(Post(**json.loads(sys.argv[1])))
