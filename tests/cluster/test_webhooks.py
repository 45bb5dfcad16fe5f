"""Webhooks of two servers on one database, one of which is killed: every event is told."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from tempopt.records.changes import Lost
from tempopt.server.webhooks.deliveries import AGAIN
from tempopt.server.webhooks.endpoints import EVENTS, new_secret
from tempopt.store import Store
from tests.cluster.http_servers import HttpServers
from tests.server.webhooks.receiver import Receiver, receiving
from tests.servers import PrivateServer, start_private, why_not
from tests.store.scenes import HOUR, new, taken

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
STUDIES = 40
_PATIENCE = 300.0


@pytest.fixture(params=["postgresql", pytest.param("sqlite", marks=pytest.mark.nightly)])
def storage(request: pytest.FixtureRequest, tmp_path: Path):  # type: ignore[no-untyped-def]
    """URL of an empty database."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'a.db'}"
        return
    if reason := why_not(request.param):
        pytest.skip(reason)
    started: PrivateServer = start_private(request.param)
    yield started.create_database("webhooks")
    started.remove()


def _fail_a_run(store: Store, number: int) -> None:
    study = store.create_study(f"study-{number}", {}, "0")
    store.add_tickets(study.id, [new(0)])
    ticket = taken(store, study)
    lost = Lost(ticket_id=ticket.id, attempt=ticket.attempt, error="a card fell off", max_attempts=1)
    store.write(study.id, [lost], agent="agent", lease=HOUR)


def _told(receiver: Receiver, secret: str) -> Counter[str]:
    """Return how often each study's event was accepted."""
    return Counter(each.read(secret)["data"]["study"] for each in list(receiver.got) if each.status == 204)


def test_every_event_is_told_though_a_server_is_killed_and_the_receiver_fails(
    storage: str, tmp_path: Path
) -> None:
    secret, draw = new_secret(), random.Random(7)
    file = tmp_path / "webhooks.yaml"
    with receiving() as receiver:
        # it fails now and then, as receivers do
        receiver.answers = [draw.choice([204, 204, 204, 500]) for _ in range(STUDIES)]
        url = receiver.url
        file.write_text(f"webhooks: {{chat: {{url: '{url}', secret: {secret}}}}}", encoding="utf-8")
        servers = HttpServers(tmp_path, storage, 2, options=["--webhooks", str(file)])
        try:
            with Store.open(storage) as store:
                _wait(lambda: len(store.webhooks.keys("chat")) == len(EVENTS))
                for number in range(STUDIES):
                    _fail_a_run(store, number)
                receiver.wait_for(3)
                servers.kill(0)
                # what the killed one had in hand is sent by the other once its time is over
                _wait(lambda: len(_told(receiver, secret)) == STUDIES)
                _wait(lambda: store.webhooks.backlog()["chat"].waiting == 0)
                messages = store.webhooks.latest(most=1000)
        finally:
            servers.close()
        told = _told(receiver, secret)
        assert sorted(told) == sorted(f"study-{number}" for number in range(STUDIES))
        # at most the one that was under way when the server died
        assert told.total() <= STUDIES + 1
        assert len(messages) == STUDIES and {each.state for each in messages} == {"delivered"}
        ids = {each.headers["webhook-id"] for each in receiver.got}
        assert ids == {each.id for each in messages}
        failed = sum(each.status == 500 for each in receiver.got)
        assert failed >= 3
        assert sum(each.attempts for each in messages) >= STUDIES + failed
    for log in tmp_path.glob("server-*.log"):
        text = log.read_text()
        assert secret not in text and "hidden" not in text and "Traceback" not in text


def _wait(done) -> None:  # type: ignore[no-untyped-def]
    give_up = time.monotonic() + _PATIENCE
    while not done():
        assert time.monotonic() < give_up
        time.sleep(0.1)


def test_a_server_that_is_told_to_end_does_not_wait_for_a_receiver(tmp_path: Path) -> None:
    storage, file = f"sqlite:///{tmp_path / 'a.db'}", tmp_path / "webhooks.yaml"
    with receiving() as receiver:
        asked: list[float] = []

        def behave(handler: BaseHTTPRequestHandler) -> None:
            asked.append(time.monotonic())
            time.sleep(60)

        receiver.behave = behave
        named = {"webhooks": {"chat": {"url": receiver.url, "secret": new_secret()}}}
        file.write_text(json.dumps(named), encoding="utf-8")
        servers = HttpServers(tmp_path, storage, 1, options=["--webhooks", str(file)])
        try:
            with Store.open(storage) as store:
                _wait(lambda: len(store.webhooks.keys("chat")) == len(EVENTS))
                _fail_a_run(store, 0)
                _wait(lambda: asked)
                began = time.monotonic()
                servers.stop(0)
                assert time.monotonic() - began < 30
                # it is sent by whoever comes next
                (message,) = store.webhooks.latest(most=10)
                assert message.state == "waiting" and message.due <= time.time() + 60 + AGAIN[0]
        finally:
            servers.close()
