"""Messages of webhooks on every database: added once, taken by one, kept until they are delivered."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from tempopt.records.changes import Lost, Outcomes
from tempopt.records.rows import StudyRow
from tempopt.records.webhooks import Message
from tempopt.store import Store, webhooks
from tempopt.store.webhooks import message_id
from tests.store.scenes import HOUR, complete, ended, new, taken


def _message(key: str, *, endpoint: str = "chat", state: str = "waiting") -> Message:
    return Message(
        id=message_id(),
        endpoint=endpoint,
        event="study.done",
        key=key,
        body=f'{{"about": "{key} \u00e9"}}',
        state=state,  # type: ignore[arg-type]
    )


def _take(store: Store, *, seconds: float = HOUR, endpoint: str = "chat", most: int = 10) -> list[Message]:
    return store.webhooks.take(endpoint, most=most, seconds=seconds)


def test_a_message_is_added_once_for_an_endpoint(store: Store) -> None:
    first = _message("a")
    store.webhooks.add([first, _message("b")])
    store.webhooks.add([_message("a"), _message("a", endpoint="mail")])
    found = _take(store)
    assert [each.key for each in found] == ["a", "b"]
    assert (found[0].id, found[0].body, found[0].attempts) == (first.id, first.body, 1)
    assert store.webhooks.keys("chat") == {"a", "b"}
    assert store.webhooks.keys("mail") == {"a"}
    assert store.webhooks.keys("nobody") == set()


def test_what_is_taken_is_nobody_elses_until_its_time_is_over(store: Store) -> None:
    store.webhooks.add([_message("a"), _message("b")])
    (first,) = _take(store, most=1, seconds=-1.0)
    (again,) = _take(store, most=1)
    assert [each.key for each in _take(store)] == ["b"]
    assert _take(store) == []
    assert (again.id, again.attempts) == (first.id, 2)
    # whoever was too slow changes nothing any more
    store.webhooks.failed(first, "late", again=None)
    store.webhooks.delivered(again)
    assert [(each.key, each.state, each.error) for each in store.webhooks.latest(most=1)] == [
        ("b", "waiting", "")
    ]
    assert store.webhooks.backlog()["chat"].waiting == 1


def test_two_who_take_at_the_same_moment_get_different_messages(store: Store, url: str) -> None:
    store.webhooks.add([_message(str(number)) for number in range(40)])
    got: dict[int, list[str]] = {0: [], 1: []}

    def work(number: int) -> None:
        with Store.open(url) as own:
            idle = 0
            while idle < 20:
                found = _take(own, most=1)
                idle = 0 if found else idle + 1
                got[number] += [each.key for each in found]

    threads = [threading.Thread(target=work, args=(number,)) for number in got]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert sorted(got[0] + got[1], key=int) == [str(number) for number in range(40)]


def test_what_failed_comes_again_later_or_never_and_is_sent_again_on_request(store: Store) -> None:
    store.webhooks.add([_message("a"), _message("b"), _message("c", endpoint="mail")])
    first, second = _take(store)
    store.webhooks.failed(first, "answered 500", again=HOUR)
    store.webhooks.failed(second, "answered 410", again=None)
    assert _take(store) == []
    store.webhooks.failed(first, "answered 500\0", again=-1.0)
    backlog = store.webhooks.backlog()
    assert (backlog["chat"].waiting, backlog["chat"].given_up, backlog["mail"].waiting) == (1, 1, 1)
    assert 0.0 <= backlog["chat"].oldest < 60.0
    (again,) = _take(store)
    assert (again.key, again.attempts, again.error) == ("a", 2, "answered 500\\0")
    store.webhooks.delivered(again)
    assert store.webhooks.backlog()["chat"].oldest == 0.0
    assert store.webhooks.retry("chat") == 1
    assert [(each.key, each.attempts) for each in _take(store)] == [("b", 1)]
    assert store.webhooks.retry("chat") == 0


def test_of_what_is_past_nothing_is_sent_and_only_the_first_says_what_is_past(store: Store) -> None:
    marker = _message("from now on", state="past")
    store.webhooks.begin(marker, [_message("old", state="past")])
    store.webhooks.begin(replace(marker, id=message_id()), [_message("new", state="past")])
    assert store.webhooks.keys("chat") == {"from now on", "old"}
    store.webhooks.add([_message("new"), _message("old")])
    assert [each.key for each in _take(store)] == ["new"]
    assert [each.key for each in store.webhooks.latest(most=10)] == ["new"]


def test_what_is_forgotten_may_be_added_again_unless_it_waits(store: Store) -> None:
    store.webhooks.add([_message("a"), _message("b")])
    (first,) = _take(store, most=1)
    store.webhooks.delivered(first)
    store.webhooks.forget("mail", ["a"])
    assert store.webhooks.keys("chat") == {"a", "b"}
    store.webhooks.forget("chat", ["a", "b"])
    store.webhooks.forget("chat", [])
    # what was sent can still be looked at, under another key
    assert store.webhooks.keys("chat") == {"b", f"forgotten:{first.id}"}
    assert [each.id for each in store.webhooks.latest(most=10)][-1] == first.id
    store.webhooks.add([_message("a")])
    assert [each.key for each in _take(store)] == ["b", "a"]
    store.webhooks.begin(
        _message("marker", state="past"), [_message(str(n), state="past") for n in range(1200)]
    )
    store.webhooks.forget("chat", [str(number) for number in range(1200)])
    assert store.webhooks.keys("chat") == {"a", "b", "marker", f"forgotten:{first.id}"}


def test_messages_are_kept_for_a_month_and_their_keys_for_longer(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.webhooks.add([_message("a"), _message("b"), _message("c")])
    for each in _take(store, most=2):
        store.webhooks.delivered(each)
    store.webhooks.forget("chat", ["b"])
    store.webhooks.tidy()
    assert len(store.webhooks.latest(most=10)) == 3
    monkeypatch.setattr(webhooks, "LONGEST_KEPT", -60.0)
    store.webhooks.tidy()
    assert [each.key for each in store.webhooks.latest(most=10)] == ["c"]
    assert store.webhooks.keys("chat") == {"a", "c"}
    assert store.webhooks.remove("chat") == 1 and store.webhooks.keys("chat") == set()


def _end(store: Store, study: StudyRow, outcomes: Outcomes) -> None:
    change = ended(taken(store, study), outcomes)
    assert not store.write(study.id, [change], agent="agent", lease=HOUR).refused


def test_marks_tell_studies_that_are_done_and_runs_that_were_given_up(store: Store) -> None:
    one, other = (store.create_study(name, {}, "0") for name in ("one", "other"))
    for each in (one, other):
        store.add_tickets(each.id, [new(0), new(1)])
    _end(store, one, complete(0.5))
    assert store.webhooks.marks().done == ()
    ticket = taken(store, one)
    away = Lost(ticket_id=ticket.id, attempt=ticket.attempt, error="a card fell off", max_attempts=1)
    store.write(one.id, [away], agent="agent", lease=HOUR)
    store.set_state(one.id, "done")
    found = store.webhooks.marks()
    assert found.studies == {one.id, other.id}
    version = store.load_study("one").version
    assert [(each.name, each.study_id, each.version) for each in found.done] == [("one", one.id, version)]
    assert [(each.ticket_id, each.study, each.attempt) for each in found.failed] == [(ticket.id, "one", 1)]
    store.delete_study("one")
    assert store.webhooks.marks().studies == {other.id}
    assert store.webhooks.marks().failed == ()
