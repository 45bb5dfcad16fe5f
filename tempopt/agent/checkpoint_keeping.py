"""Which checkpoints of a study an agent has deleted: those that the store names no more, and no others."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Iterable

from tempopt.agent.checkpoint_reuse import beyond_quota, for_others, kept_at_end
from tempopt.agent.store_connection import StoreAway, StoreConnection
from tempopt.agent.study_cache import StudyCache
from tempopt.records.rows import Checkpoint, Outcome, StudyRow, TicketRow, to_go_on_from
from tempopt.spec.study_spec import StudySpec
from tempopt.store import checkpoints
from tempopt.store.store import Store


class KeptCheckpoints:
    """The checkpoints that an agent answers for: what becomes needless is deleted once that was delivered.

    Args:
        spec: The study's spec.
        study: The study's row.
        store: Where tickets are.
        cache: The tickets, as far as the agent knows.
        connection: How the store is reached.
    """

    def __init__(
        self, spec: StudySpec, study: StudyRow, store: Store, cache: StudyCache, connection: StoreConnection
    ) -> None:
        self._spec = spec
        self._study = study
        self._store = store
        self._cache = cache
        self._connection = connection
        self._useless: list[tuple[TicketRow, str]] = []
        self._shared: dict[str, TicketRow] = {}
        self._evicted: dict[int, TicketRow] = {}

    def keep(self, ticket: TicketRow, checkpoint: Checkpoint) -> TicketRow:
        """Take note of a checkpoint that a run has written; return its ticket with it."""
        newest = (checkpoint, *(each for each in ticket.checkpoints if each.url != checkpoint.url))
        needed = to_go_on_from(newest)
        self._useless += [(ticket, each.url) for each in newest if each not in needed]
        self._cache.note(ticket.id, checkpoints=needed)
        return dataclasses.replace(ticket, checkpoints=needed)

    def at_end(self, ticket: TicketRow, outcome: Outcome, value: float | None) -> tuple[Checkpoint, ...]:
        """Return which checkpoints of a run that ends so are kept for other runs.

        Those of others that have to go for it are deleted when the store names them no more.
        """
        kept = kept_at_end(ticket, self._spec, outcome)
        if not kept:
            return ()
        row = dataclasses.replace(ticket, outcome=outcome, value=value, checkpoints=kept)
        gone = beyond_quota([*for_others(self._cache.tickets.values()), row], self._spec)
        self.evict([each for each in gone if each.id != ticket.id])
        return () if row in gone else kept

    def discard(self, ticket: TicketRow, *, kept: Collection[Checkpoint] = ()) -> None:
        """Have the checkpoints of a run that is over deleted, but for those kept for other runs."""
        self._useless += [(ticket, each.url) for each in ticket.checkpoints if each not in kept]
        self._shared |= {each.url: ticket for each in kept}

    def evict(self, tickets: Collection[TicketRow]) -> None:
        """Have the checkpoints deleted that runs which are over have left to others."""
        self._evicted |= {ticket.id: ticket for ticket in tickets}
        self._cache.forget_checkpoints([ticket.id for ticket in tickets])

    def evict_all(self) -> None:
        """Delete what the search has kept for itself; after a round nothing begins from it."""
        self.evict(for_others(self._cache.tickets.values()))
        self.delete_evicted()

    def delivered(self, refused: Collection[int]) -> None:
        """Delete what the store names no more, now that it has been told all; no agent uses it.

        Args:
            refused: Ids of tickets that are others' by now.
        """
        useless, self._useless = self._useless, []
        self._remove((ticket, url) for ticket, url in useless if ticket.id not in refused)
        self._shared = {url: ticket for url, ticket in self._shared.items() if ticket.id not in refused}
        with contextlib.suppress(StoreAway):
            self.delete_evicted(refused)

    def delete_evicted(self, refused: Collection[int] = ()) -> None:
        """Delete checkpoints that were kept for other runs, as soon as the store names them no more."""
        # a run that is another's by now has other checkpoints, or these to go on from
        evicted = {id: ticket for id, ticket in self._evicted.items() if id not in refused}
        self._evicted = evicted
        if not evicted:
            return
        over = self._connection.attempt(
            lambda: self._store.forget_checkpoints(self._study.id, evicted.keys())
        )
        self._evicted = {}
        self._remove((evicted[id], each.url) for id in over for each in evicted[id].checkpoints)

    def delete_forgotten(self) -> None:
        """Delete what this agent kept for other runs, and others, perhaps out of reach of it, gave up."""
        named = {each.url for ticket in self._cache.tickets.values() for each in ticket.checkpoints}
        gone = {url: ticket for url, ticket in self._shared.items() if url not in named}
        self._shared = {url: ticket for url, ticket in self._shared.items() if url in named}
        self._remove((ticket, url) for url, ticket in gone.items())

    def _remove(self, files: Iterable[tuple[TicketRow, str]]) -> None:
        study = self._study.name
        checkpoints.remove(
            url
            for ticket, url in files
            # a row of the store is no reason to delete a file that tempopt has not written
            if checkpoints.is_ours(url, study=study, run=checkpoints.run_name(ticket.kind, ticket.number))
        )
