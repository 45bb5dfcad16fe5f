"""Webhooks of a server: what is told of which event, to whom, and what happens when that fails."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tempopt.pool.dispatcher import Dispatcher, Picture
from tempopt.records.changes import Lost
from tempopt.records.pool import Quota, Usage
from tempopt.server.webhooks import deliveries, events
from tempopt.server.webhooks.deliveries import AGAIN, Deliveries
from tempopt.server.webhooks.endpoints import Endpoint, new_secret
from tempopt.store import Store
from tests.report.made_study import World, make, write
from tests.server.webhooks.receiver import Receiver, receiving
from tests.store.scenes import HOUR, new, taken

SECRET = new_secret()


@dataclass
class Site:
    """A store and who is told of it."""

    store: Store
    url: str
    receiver: Receiver
    endpoints: list[Endpoint] = field(default_factory=list)
    leaving: threading.Event = field(default_factory=threading.Event)
    picture: Callable[[], Picture] | None = None

    def made(self, *endpoints: Endpoint, interval: float = 0.05) -> Deliveries:
        """Return the webhooks of one more server."""
        return Deliveries(
            self.store,
            endpoints or self.endpoints,
            picture=self.picture or Dispatcher(self.store).picture,
            leaving=self.leaving,
            interval=interval,
        )

    def endpoint(self, name: str = "chat", **more: Any) -> Endpoint:
        return Endpoint(name=name, url=self.receiver.url, secrets=(SECRET,), **more)

    def told(self) -> list[Any]:
        return [each.read(SECRET) for each in self.receiver.got]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    with Store.open(url) as store, receiving() as receiver:
        found = Site(store, url, receiver)
        found.endpoints = [found.endpoint()]
        yield found
        found.leaving.set()


def _study(site: Site, **world: Any) -> None:
    """Write a study that is done."""
    write(site.url, make(World(trials=4, reports=2, layers=0, **world)))


def test_what_is_done_is_told_once_with_its_verdict(site: Site) -> None:
    one, other = site.made(), site.made()
    assert one.look() == 0
    _study(site)
    assert one.look() == 2
    assert (one.look(), other.look()) == (0, 0)
    assert one.deliver(site.endpoints[0]) + other.deliver(site.endpoints[0]) == 2
    done, verdict = site.told()
    assert done["type"] == "study.done" and verdict["type"] == "study.verdict"
    assert done["data"]["study"] == verdict["data"]["study"] == "pairs"
    assert done["data"]["runs"]["done"] == len(site.store.tickets(site.store.load_study("pairs").id))
    assert done["data"]["metric"] == "val_accuracy" and done["data"]["best"]["value"] > 0
    assert verdict["data"]["answer"] == "gain_shown" == done["data"]["answer"]
    assert verdict["data"]["params"] and verdict["data"]["headline"] == done["data"]["headline"]
    assert one.deliver(site.endpoints[0]) == 0 and len(site.receiver.got) == 2


def test_a_study_without_a_verdict_has_none_to_tell(site: Site) -> None:
    server = site.made()
    server.look()
    _study(site, confirmed=False)
    site.store.set_state(site.store.load_study("pairs").id, "done")
    assert server.look() == 1
    server.deliver(site.endpoints[0])
    assert [each["type"] for each in site.told()] == ["study.done"]
    assert site.told()[0]["data"]["answer"] == "no_verdict"


def test_what_was_over_before_an_endpoint_or_an_event_was_named_is_not_told(site: Site) -> None:
    _study(site)
    verdicts = site.endpoint(events=("study.verdict",))
    assert site.made(verdicts).look() == 0
    # the same endpoint is told of more from now on
    both = site.endpoint(events=("study.done", "study.verdict"))
    assert site.made(both).look() == 0
    study = site.store.load_study("pairs")
    site.store.set_state(study.id, "running")
    assert site.made(both).look() == 0
    # it goes on, and is done again
    site.store.add_tickets(study.id, [new(900)])
    ticket = taken(site.store, study)
    site.store.write(study.id, [_lost(ticket)], agent="agent", lease=HOUR)
    site.store.set_state(study.id, "done")
    assert site.made(both).look() == 2


def _lost(ticket: Any) -> Lost:
    error = "CUDA error at postgresql://ada:secret@db/x"
    return Lost(ticket_id=ticket.id, attempt=ticket.attempt, error=error, max_attempts=1)


def test_a_run_that_is_given_up_is_told_with_its_error_and_without_a_password(site: Site) -> None:
    server = site.made()
    server.look()
    study = site.store.create_study("one", {}, "0")
    site.store.add_tickets(study.id, [new(0)])
    assert server.look() == 0
    site.store.write(study.id, [_lost(taken(site.store, study))], agent="agent", lease=HOUR)
    assert (server.look(), server.look()) == (1, 0)
    server.deliver(site.endpoints[0])
    (told,) = site.told()
    assert told["type"] == "run.failed"
    assert (told["data"]["study"], told["data"]["run"], told["data"]["attempts"]) == ("one", "search-0", 1)
    assert "CUDA error" in told["data"]["error"] and "secret" not in json.dumps(told)
    # a study that is deleted takes its keys along
    site.store.delete_study("one")
    server.look()
    assert not [key for key in site.store.webhooks.keys("chat") if key.startswith("run.failed:")]


def test_a_budget_is_told_when_it_is_used_up_and_again_when_it_is_used_up_again(site: Site) -> None:
    quota = Quota(queue="night", user="ada", gpu_hours=10.0, days=1.0)
    now, hours = 1_800_000_000.0, [0.0]

    def picture() -> Picture:
        usage = [Usage(user="ada", queue="night", hour=int(now // 3600) - 1, seconds=3600 * hours[0])]
        found = Dispatcher(site.store).picture()
        return Picture(
            now=now,
            demands=found.demands,
            agents=found.agents,
            usage=usage,
            quotas=found.quotas,
            allocation=found.allocation,
        )

    site.picture = picture
    everything, part = site.endpoint("all"), site.endpoint("part", studies="vision-")
    server = site.made(everything, part)
    site.store.pool.set_quota(quota)
    counts = []
    for hours[0] in (9.0, 10.0, 9.95, 10.2, 9.0, 10.0):
        counts.append(server.look())
        # what waits is not forgotten
        server.deliver(everything)
    assert counts == [0, 1, 0, 0, 0, 1]
    first, second = site.told()
    assert first["type"] == second["type"] == "budget.spent"
    assert first["data"] | {"used": 0} == {
        "queue": "night",
        "user": "ada",
        "weight": 1.0,
        "gpu_hours": 10.0,
        "days": 1.0,
        "agents": None,
        "priority": None,
        "used": 0,
    }
    assert server.deliver(part) == 0


def test_endpoints_are_told_of_their_part(site: Site) -> None:
    part, other = site.endpoint("part", studies="pai"), site.endpoint("other", studies="vision-")
    server = site.made(part, other)
    server.look()
    _study(site)
    assert server.look() == 2
    assert (server.deliver(part), server.deliver(other)) == (2, 0)


def test_what_failed_is_sent_again_later_and_later_and_given_up_in_the_end(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    to = site.endpoint(events=("study.done",))
    server = site.made(to)
    server.look()
    _study(site)
    server.look()
    site.receiver.answers = [500]
    assert server.deliver(to) == 0
    (message,) = site.store.webhooks.latest(most=10)
    assert (message.state, message.attempts, message.error) == ("waiting", 1, "answered 500")
    assert AGAIN[0] <= message.due - time.time() + 5 and message.due - time.time() <= 1.2 * AGAIN[0]
    monkeypatch.setattr(deliveries, "AGAIN", (0.0,) * 3)
    site.store.webhooks.failed(message, "again", again=0.0)
    site.receiver.answers = [500, 302, 404]
    caplog.set_level(logging.ERROR, "tempopt.server")
    assert server.deliver(to) == 0
    (message,) = site.store.webhooks.latest(most=10)
    assert (message.state, message.attempts, message.error) == ("given_up", 4, "answered 404")
    assert "given up after 4 attempts: answered 404" in caplog.text and "hidden" not in caplog.text
    assert {each.headers["webhook-id"] for each in site.receiver.got} == {message.id}
    assert site.store.webhooks.retry("chat") == 1
    assert server.deliver(to) == 1
    assert site.told()[-1]["data"]["study"] == "pairs"


def test_a_receiver_that_is_gone_is_not_asked_again(site: Site) -> None:
    server, to = site.made(), site.endpoints[0]
    server.look()
    _study(site)
    server.look()
    site.receiver.answers = [410, 410]
    assert server.deliver(to) == 0
    assert {each.state for each in site.store.webhooks.latest(most=10)} == {"given_up"}


def test_threads_tell_without_being_asked_and_a_slow_endpoint_keeps_nobody_waiting(site: Site) -> None:
    with receiving() as slow:
        slow.behave = lambda handler: time.sleep(3)
        lame = Endpoint(name="lame", url=slow.url, secrets=(SECRET,))
        server = site.made(lame, site.endpoint())
        server.start()
        give_up = time.monotonic() + 120
        while len(site.store.webhooks.keys("chat")) < 4:
            assert time.monotonic() < give_up
            time.sleep(0.02)
        began = time.monotonic()
        _study(site)
        site.receiver.wait_for(2)
        assert time.monotonic() - began < 120
        site.leaving.set()
        server.join()
    assert [each["type"] for each in site.told()] == ["study.done", "study.verdict"]


def test_one_study_that_cannot_be_read_keeps_no_other_from_being_told_of_and_is_told_later(
    site: Site, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = site.made()
    server.look()
    _study(site)
    _study_beside(site)
    read = events.load

    def broken(*arguments: Any) -> Any:
        raise OSError("stale file handle")

    monkeypatch.setattr(events, "load", broken)
    caplog.set_level(logging.ERROR, "tempopt.server")
    assert (server.look(), server.look()) == (1, 0)
    assert caplog.text.count("study.done of pairs is told later") == 1
    monkeypatch.setattr(events, "load", read)
    assert site.made().look() == 2
    server.deliver(site.endpoints[0])
    assert [each["data"]["study"] for each in site.told()] == ["other", "pairs", "pairs"]


def test_a_study_that_is_done_again_though_nothing_was_begun_is_told_again(site: Site) -> None:
    server = site.made()
    server.look()
    _study(site)
    assert server.look() == 2
    study = site.store.load_study("pairs")
    site.store.add_tickets(study.id, [new(900)], resume=True)
    assert server.look() == 0
    site.store.withdraw(study.id, ["search"])
    site.store.set_state(study.id, "done")
    assert server.look() == 2


def _study_beside(site: Site) -> None:
    study = site.store.create_study("other", {}, "0")
    site.store.add_tickets(study.id, [new(0)])
    site.store.write(study.id, [_lost(taken(site.store, study))], agent="agent", lease=HOUR)


def test_a_database_that_is_away_is_told_once_and_looked_at_again(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from tempopt.errors import StoreUnreachable

    server = site.made()
    server.look()
    away = threading.Event()
    away.set()
    asked = threading.Semaphore(0)
    marks = type(site.store.webhooks).marks

    def broken(self: Any) -> Any:
        asked.release()
        if away.is_set():
            raise StoreUnreachable("The database is away.")
        return marks(self)

    monkeypatch.setattr(type(site.store.webhooks), "marks", broken)
    caplog.set_level(logging.ERROR, "tempopt.server")
    server.start()
    for _ in range(3):
        assert asked.acquire(timeout=30)
    assert caplog.text.count("The database is away.") == 1
    _study(site)
    away.clear()
    site.receiver.wait_for(2)
    site.leaving.set()
    server.join()
