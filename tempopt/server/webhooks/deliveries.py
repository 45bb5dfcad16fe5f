"""Webhooks of one server: events are looked for, and messages sent until they are delivered.

All that has to last is in the store. Any number of servers do this side by side, and one may be killed at any
moment: an event is added once, and a message that was under way is sent again.
"""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from tempopt.errors import StoreUnreachable, StudyNotFound, TempoptError, masked
from tempopt.pool.dispatcher import Picture
from tempopt.records.pool import Quota
from tempopt.records.webhooks import Message
from tempopt.scheduling.limits import budgets
from tempopt.server.webhooks.endpoints import Endpoint
from tempopt.server.webhooks.events import Event, body, happened, used_up
from tempopt.server.webhooks.sending import LONGEST_SECONDS, send
from tempopt.store.store import Store
from tempopt.store.webhooks import message_id

LOGGER = logging.getLogger("tempopt.server")
INTERVAL = 5.0
"""Seconds between two looks at what has happened, and at what is due."""
AGAIN = (5.0, 60.0, 300.0, 1800.0, 7200.0, 18_000.0, 36_000.0, 50_400.0, 72_000.0, 86_400.0)
"""Seconds from each failed attempt to the next, three days in all, and up to a fifth more."""
_TAKEN_SECONDS = 3 * LONGEST_SECONDS
_TIDY_SECONDS = 300.0
_UNREAD_SECONDS = 300.0
_MOST_MARKED = 200
# what is under way then is sent again by another server, or by the next
_LEAVING_SECONDS = 5.0


class Deliveries:
    """Looks for events and sends messages, in threads, until the server is to end.

    Args:
        store: Where studies are.
        endpoints: Who is told.
        picture: Returns how the pool stands.
        leaving: Set once the server is to end.
        interval: Seconds between two looks.
    """

    def __init__(
        self,
        store: Store,
        endpoints: Sequence[Endpoint],
        *,
        picture: Callable[[], Picture],
        leaving: threading.Event,
        interval: float = INTERVAL,
    ) -> None:
        self._store = store
        self._picture = picture
        self._endpoints = tuple(endpoints)
        self._leaving = leaving
        self._interval = interval
        self._added = {each.name: threading.Event() for each in endpoints}
        self._threads: list[threading.Thread] = []
        self._keys: dict[str, set[str]] = {}
        self._unread: dict[str, float] = {}
        self._tidy_at = -math.inf

    def start(self) -> None:
        """Start the threads; an endpoint that is slow has one of its own, and keeps nobody waiting."""
        if not self._endpoints:
            return
        self._begin("events", self.look, lambda: self._leaving.wait(self._interval))
        for each in self._endpoints:
            self._begin(each.name, partial(self.deliver, each), partial(self._rest, each))

    def join(self) -> None:
        """Wait until the threads have ended, which they do once the server is to end."""
        for event in self._added.values():
            event.set()
        for each in self._threads:
            each.join(_LEAVING_SECONDS)

    def _begin(self, name: str, work: Callable[[], object], rest: Callable[[], object]) -> None:
        thread = threading.Thread(
            target=self._repeat, args=(name, work, rest), name=f"webhooks {name}", daemon=True
        )
        self._threads.append(thread)
        thread.start()

    def _repeat(self, name: str, work: Callable[[], object], rest: Callable[[], object]) -> None:
        troubled = ""
        while not self._leaving.is_set():
            try:
                work()
                troubled = ""
            except Exception as error:
                # nobody would see that webhooks have ended
                trouble = masked(str(error) if isinstance(error, TempoptError) else repr(error))
                if trouble != troubled:
                    LOGGER.error("webhooks (%s): %s", name, trouble)
                troubled = trouble
            rest()

    def _rest(self, endpoint: Endpoint) -> None:
        added = self._added[endpoint.name]
        if not self._leaving.is_set():
            added.wait(self._interval)
        added.clear()

    # ---- events

    def look(self) -> int:
        """Add a message for each event that an endpoint was not told of; return how many were added.

        Raises:
            StorageError: The database is away; look again.
        """
        if time.monotonic() >= self._tidy_at:
            self._store.webhooks.tidy()
            # what other servers have forgotten is to be seen here, too
            self._keys.clear()
            self._tidy_at = time.monotonic() + _TIDY_SECONDS
        spent, held = used_up(self._budgets())
        marks = self._store.webhooks.marks()
        events = happened(marks, spent)
        texts: dict[str, str | None] = {}
        return sum(self._look_for(each, events, texts, held, marks.studies) for each in self._endpoints)

    def _budgets(self) -> list[tuple[Quota, float]]:
        # what everybody has used takes long to add up
        if all(each.gpu_hours is None for each in self._store.pool.quotas()):
            return []
        seen = self._picture()
        return budgets(seen.quotas, seen.usage, now=seen.now)

    def _look_for(
        self,
        endpoint: Endpoint,
        events: Sequence[Event],
        texts: dict[str, str | None],
        held: set[str],
        studies: frozenset[int],
    ) -> int:
        webhooks = self._store.webhooks
        known = self._known(endpoint)
        wanted = [each for each in events if each.concerns(endpoint)]
        for kind in endpoint.events:
            # with another prefix, what other studies have come to is past as well
            marker = f"from now on:{kind}:{endpoint.studies[:_MOST_MARKED]}"
            if marker not in known:
                past = [_past(endpoint, each.type, each.key) for each in wanted if each.type == kind]
                webhooks.begin(_past(endpoint, kind, marker), past)
                wanted = [each for each in wanted if each.type != kind]
                self._keys.pop(endpoint.name, None)
        if over := _over(known, held, studies):
            webhooks.forget(endpoint.name, over)
            known -= over
        new = [each for each in wanted if each.key not in known]
        messages = [found for each in new if (found := self._message(endpoint, each, texts)) is not None]
        if not messages:
            return 0
        webhooks.add(messages)
        known |= {each.key for each in messages}
        self._added[endpoint.name].set()
        return sum(each.state == "waiting" for each in messages)

    def _known(self, endpoint: Endpoint) -> set[str]:
        """Return the keys that an endpoint has, as far as this server has heard of them."""
        if endpoint.name not in self._keys:
            self._keys[endpoint.name] = self._store.webhooks.keys(endpoint.name)
        return self._keys[endpoint.name]

    def _message(self, endpoint: Endpoint, event: Event, texts: dict[str, str | None]) -> Message | None:
        """Return the message about an event; None if that cannot be told now."""
        if self._unread.get(event.key, -math.inf) > time.monotonic():
            return None
        try:
            if event.key not in texts:
                texts[event.key] = body(self._store, event)
        except StudyNotFound:
            return None
        except StoreUnreachable:
            raise
        except Exception as error:
            # one study that cannot be read keeps no other from being told of, and is read again later
            LOGGER.error("webhooks: %s of %s is told later: %s", event.type, event.study, masked(repr(error)))
            self._unread[event.key] = time.monotonic() + _UNREAD_SECONDS
            return None
        self._unread.pop(event.key, None)
        text = texts[event.key]
        if text is None:
            return _past(endpoint, event.type, event.key)
        return Message(id=message_id(), endpoint=endpoint.name, event=event.type, key=event.key, body=text)

    # ---- messages

    def deliver(self, endpoint: Endpoint) -> int:
        """Send what is due, one after the other; return how many messages were delivered.

        Raises:
            StorageError: The database is away; what was delivered may be sent once more.
        """
        count = 0
        while not self._leaving.is_set():
            # one at a time: what is taken and not sent would wait for as long as it is taken
            taken = self._store.webhooks.take(endpoint.name, most=1, seconds=_TAKEN_SECONDS)
            if not taken:
                break
            count += self._sent(endpoint, taken[0])
        return count

    def _sent(self, endpoint: Endpoint, message: Message) -> bool:
        answer = send(endpoint, message.id, message.body)
        if not answer.error:
            self._store.webhooks.delivered(message)
            return True
        again = None
        if not answer.gone and message.attempts <= len(AGAIN):
            again = max(answer.wait, AGAIN[message.attempts - 1] * random.uniform(1.0, 1.2))
        self._store.webhooks.failed(message, answer.error, again=again)
        if again is None:
            LOGGER.error(
                "webhook %s: %s (%s) was given up after %d attempts: %s",
                endpoint.name,
                message.event,
                message.id,
                message.attempts,
                answer.error,
            )
        return False


def _over(known: set[str], held: set[str], studies: frozenset[int]) -> set[str]:
    """Return the keys of budgets that are in use again, and of studies that are not there any more."""
    again = {key for key in known if key.startswith("budget.") and key not in held}
    there = {str(id) for id in studies}
    gone = {key for key in known if key.startswith(("study.", "run.")) and key.split(":")[1] not in there}
    return again | gone


def _past(endpoint: Endpoint, event: str, key: str) -> Message:
    return Message(id=message_id(), endpoint=endpoint.name, event=event, key=key, state="past")
