"""Runs that do not fit beside others get a card to themselves, with workers that only say what they would.

On a card there is room for 1. What is alive on it may hold, by its cap or for want of one, never more.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import optuna
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tempopt.agent import worker_pool
from tempopt.agent.agent_loop import Agent
from tempopt.agent.local_client import LocalStudyClient
from tempopt.agent.observer import NullObserver
from tempopt.agent.placement import Placement
from tempopt.agent.study_cache import StudyCache
from tempopt.agent.study_client import RunFolders
from tempopt.errors import StudyFailed
from tempopt.spec.study_spec import StudySpec
from tempopt.storage.opening import open_store
from tempopt.storage.rows import NewTicket, TicketRow
from tempopt.storage.store import Store
from tempopt.training.messages import (
    Failed,
    Finished,
    Message,
    Ready,
    RunRequest,
    Started,
    Stop,
    decode,
    encode,
)
from tests.fake_worker import AgentDied

NAMES = itertools.count()


@dataclass(frozen=True)
class Trial:
    """What a run needs of a card, how long it takes, and how many times its process dies over it."""

    memory: float = 0.1
    length: int = 5
    deaths: int = 0


class PoolWorld(NullObserver):
    """Workers and the time that passes for them: one message for each look that the agent takes."""

    def __init__(self, trials: Sequence[Trial]) -> None:
        self.trials = trials
        self.numbers: dict[int, int] = {}
        self.workers: list[Talker] = []
        self.notes: list[str] = []
        self.runs: list[tuple[int, int, float | None]] = []
        self.now = 0
        self._count = itertools.count()
        self._coming: list[tuple[int, int, Talker, Message | None]] = []

    def start(self, *, slot: int, placement: Placement) -> Talker:
        worker = Talker(slot, placement, self)
        self.workers.append(worker)
        self.say(worker, 2, Ready())
        return worker

    def say(self, worker: Talker, delay: int, message: Message | None) -> None:
        heapq.heappush(self._coming, (self.now + delay, next(self._count), worker, message))

    def update(self, snapshot: Any) -> None:
        while self._coming:
            self.now, _, worker, message = heapq.heappop(self._coming)
            if worker.alive:
                worker.put_message(message)
                return

    def note(self, text: str) -> None:
        self.notes.append(text)

    def begin(self, worker: Talker, request: RunRequest) -> None:
        number = self.numbers[request.ticket]
        trial = self.trials[number]
        self.runs.append((number, request.attempt, request.memory_share))
        allowed = request.memory_share or 1.0
        assert allowed < 1 or not worker.used or worker.placement.share == 1, "not a fresh process"
        worker.used, worker.training = True, True
        worker.holds = max(worker.holds, allowed)
        for card in worker.placement.gpus or ():
            held_shares = [
                worker.holds
                for worker in self.workers
                if worker.alive and card in (worker.placement.gpus or ())
            ]
            assert sum(held_shares) <= 1 + 1e-9, "more is held of a card than there is"
        run = {"ticket": request.ticket, "attempt": request.attempt}
        layers: dict[str, Any] = {"layers": ["layer"], "code": "code", "reports": []}
        device_fields = {"device": "NVIDIA Toy", "precision": "bf16-mixed"}
        self.say(worker, 1, Started(**run, step=0, total_steps=10, **device_fields, **layers))
        if request.attempt <= trial.deaths:
            self.say(worker, trial.length, None)
        elif trial.memory > allowed:
            self.say(worker, trial.length, Failed(**run, kind="gpu_memory", message="CUDA out of memory"))
        else:
            end_fields: dict[str, Any] = {"state": "complete", "step": 10, "metrics": {}, "reports": []}
            values = {"validate": 0.5, "validate_current": 0.5}
            peak = int(100 * trial.memory)
            end = Finished(**run, **end_fields, measurements=values, seconds=1000.0, peak_memory=peak)
            self.say(worker, trial.length, end)


class Talker:
    """What an agent takes for a worker process."""

    def __init__(self, slot: int, placement: Placement, world: PoolWorld) -> None:
        self.slot, self.placement = slot, placement
        self.ready, self.alive, self.used, self.training = False, True, False, False
        # a process that is capped may hold its share, whatever it has trained
        self.holds = placement.share if placement.share < 1 else 0.0
        self._world = world
        self.connection, self._theirs = Pipe()

    def put_message(self, message: Message | None) -> None:
        if message is None:
            self.alive = False
            self._theirs.close()
            return
        self.training = self.training and not isinstance(message, Finished | Failed)
        self._theirs.send_bytes(encode(message))

    def send(self, message: Message) -> None:
        if isinstance(message, RunRequest):
            assert self.alive and self.ready and not self.training, "a run was given to whom it cannot be"
            self._world.begin(self, message)
        else:
            assert isinstance(message, Stop)

    def receive(self) -> Message | None:
        try:
            message = decode(self.connection.recv_bytes())
        except EOFError:
            return None
        self.ready = self.ready or isinstance(message, Ready)
        return message

    def exit_description(self) -> str:
        return "the worker was killed by SIGKILL"

    def kill(self) -> None:
        assert not self.training or not self.alive, "a run in progress was ended for another's sake"
        self.alive = False
        self.connection.close()
        self._theirs.close()


Work = Callable[..., list[TicketRow]]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with open_store(f"sqlite:///{tmp_path_factory.mktemp('crew') / 'x.db'}") as store:
        optuna.storages.RDBStorage(store.url).engine.dispose()
        yield store


@pytest.fixture
def begin(
    store: Store,
    make_spec: Callable[..., StudySpec],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Any:
    """Return what writes a study of a world's runs, and returns what makes agents for it, and its tickets."""

    def begin_agent(world: PoolWorld, **study: Any) -> Any:
        # workers that are started anew are of this world, too
        monkeypatch.setattr(worker_pool, "WorkerProcess", world.start)
        options = {"parallel": 99, "name": f"study-{next(NAMES)}", **study}
        spec = make_spec(**options)
        row = store.create_study(spec.study.name, spec.to_json(), spec.identity())
        new_tickets = [
            NewTicket(kind="baseline", arm="baseline", number=n, seed=n) for n in range(len(world.trials))
        ]
        store.add_tickets(row.id, new_tickets)
        world.numbers = {ticket.id: ticket.number for ticket in store.tickets(row.id)}

        def agent(places: Sequence[Placement]) -> Agent:
            folders = RunFolders(logs=tmp_path, checkpoints=f"file://{tmp_path}")
            cache = StudyCache(spec, row, store)
            client = LocalStudyClient(cache=cache, folders=folders, workers=len(places), observer=world)
            workers: Any = [world.start(slot=n, placement=placement) for n, placement in enumerate(places)]
            return Agent(spec=spec, client=client, workers=workers, folders=folders, observer=world)

        return agent, lambda: store.tickets(row.id)

    return begin_agent


def pack_placements(cards: int, parts: int) -> list[Placement]:
    return [Placement(gpus=(f"GPU-{card}",), share=1 / parts) for card in range(cards) for _ in range(parts)]


TRIALS = st.builds(Trial, st.sampled_from([0.1, 0.2, 0.4, 0.9, 1.5]), st.integers(2, 30), st.integers(0, 1))


@settings(
    max_examples=25,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(trials=st.lists(TRIALS, min_size=1, max_size=8), cards=st.integers(1, 2), parts=st.integers(1, 4))
@pytest.mark.long
def test_whatever_runs_need_each_gets_it_and_no_card_is_overcommitted(
    begin: Any, trials: list[Trial], cards: int, parts: int
) -> None:
    world = PoolWorld(trials)
    agent, rows = begin(world, max_attempts=50)
    agent(pack_placements(cards, parts)).run()
    for ticket, trial in zip(rows(), trials, strict=True):
        needs_card = trial.memory > 1 / parts
        assert ticket.alone == (needs_card or trial.memory > 1)
        assert ticket.outcome == ("failed" if trial.memory > 1 else "complete")
        assert ticket.failures == trial.deaths + ticket.alone + (trial.memory > 1)
        assert ticket.attempt == trial.deaths + 1 + ticket.alone
        if ticket.outcome == "complete":
            assert ticket.peak_memory == int(100 * trial.memory)
            share = 1.0 if ticket.alone else 1 / parts
            assert ticket.gpu_seconds == pytest.approx(1000.0 * share, abs=100)
            assert ticket.seconds == pytest.approx(1000.0, abs=100)


def test_neighbours_finish_their_runs_first_and_are_started_again_afterwards(begin: Any) -> None:
    trials = [Trial(memory=0.9, length=2), Trial(length=50), *[Trial(length=5)] * 4]
    world = PoolWorld(trials)
    agent, rows = begin(world)
    working = agent(pack_placements(1, 2))
    working.run()
    order = [number for number, _, _ in world.runs]
    # no worker begins while the long one is waited for, and then the run that waited is the first
    assert order[:3] == [0, 1, 0]
    assert [share for number, _, share in world.runs if number == 0] == [0.5, None]
    assert {share for number, _, share in world.runs if number > 1} == {0.5}
    assert [ticket.failures for ticket in rows()] == [1, 0, 0, 0, 0, 0]
    assert len(working.workers) == 2
    assert any("baseline 0 is repeated once, with a GPU to itself" in note for note in world.notes)
    assert world.notes.count("Trains on NVIDIA Toy at bf16-mixed precision.") == 1


def test_other_cards_go_on_meanwhile(begin: Any) -> None:
    world = PoolWorld([Trial(memory=0.9, length=2), *[Trial(length=20)] * 9])
    agent, rows = begin(world)
    agent(pack_placements(2, 2)).run()
    assert all(ticket.outcome == "complete" for ticket in rows())
    killed_gpus = {worker.placement.gpus for worker in world.workers if not worker.alive}
    assert killed_gpus == {("GPU-0",)}


def test_a_run_that_had_its_card_to_itself_is_tried_once_more_in_a_fresh_process(begin: Any) -> None:
    world = PoolWorld([Trial(memory=1.5), Trial()])
    agent, rows = begin(world, max_attempts=9)
    agent([Placement(gpus=("GPU-0",))]).run()
    first, second = rows()
    assert (first.outcome, first.attempt, first.alone) == ("failed", 2, True)
    assert "CUDA out of memory (with a GPU to itself)" in (first.error or "")
    assert second.outcome == "complete"
    used_workers = [worker for worker in world.workers if worker.used]
    assert len(used_workers) == 3


def test_whichever_agent_takes_it_over_gives_it_a_card_to_itself(
    begin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = PoolWorld([Trial(memory=0.9, length=2), Trial(length=9)])
    agent, rows = begin(world)
    dead_agents: set[str] = set()
    with monkeypatch.context() as patch:
        patch.setattr(Agent, "_leave", lambda self: dead_agents.add(self._client.outbox.agent))

        build_request = LocalStudyClient.build_request

        def dying(self: LocalStudyClient, ticket: Any, share: Any) -> RunRequest:
            if ticket.alone:
                raise AgentDied
            return build_request(self, ticket, share)

        patch.setattr(LocalStudyClient, "build_request", dying)
        with pytest.raises(AgentDied):
            agent(pack_placements(1, 2)).run()
    row_before = rows()[0]
    assert (row_before.state, row_before.alone, row_before.attempt) == ("running", True, 2)
    for worker in world.workers:
        worker.alive = False
    monkeypatch.setattr("tempopt.agent.study_cache.is_dead", lambda name: name in dead_agents)
    agent(pack_placements(1, 2)).run()
    row_after = rows()[0]
    assert (row_after.outcome, row_after.attempt, row_after.failures) == ("complete", 3, 2)
    assert [share for number, _, share in world.runs if number == 0] == [0.5, None]


def test_a_study_whose_runs_all_run_out_of_memory_ends_with_the_reason(begin: Any) -> None:
    world = PoolWorld([Trial(memory=1.5)] * 9)
    agent, _ = begin(world)
    with pytest.raises(StudyFailed, match="CUDA out of memory"):
        agent([Placement(gpus=("GPU-0",))]).run()


def test_a_worker_that_waits_for_a_gpu_releases_its_ticket_at_once_on_shutdown(begin: Any) -> None:
    class LeavingWorld(PoolWorld):
        def note(self, text: str) -> None:
            super().note(text)
            self.leaving = "repeated once" in text

        def update(self, snapshot: Any) -> None:
            waits = [view for view in snapshot.workers if view.number == 0 and not view.step]
            if getattr(self, "leaving", False) and waits:
                raise KeyboardInterrupt
            super().update(snapshot)

    world = LeavingWorld([Trial(memory=0.9, length=2), Trial(length=99)])
    agent, rows = begin(world, lease=30)
    working = agent(pack_placements(1, 2))
    # what the neighbour trains is returned when the grace is over
    working._spec = working._spec.with_overrides(["resources.grace=0"])
    with pytest.raises(KeyboardInterrupt):
        working.run()
    first, second = rows()
    assert [first.state, second.state] == ["waiting", "waiting"]
    assert (first.alone, first.attempt, first.failures) == (True, 2, 1)
