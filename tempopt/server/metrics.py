"""Prometheus metrics of a server: its requests, and the studies and tickets of its database."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from anyio import CapacityLimiter
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from tempopt.storage.liveness import summary_state
from tempopt.storage.rows import STANDINGS, TICKET_STATES
from tempopt.storage.store import Store

_BUCKETS = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 30.0)


class Metrics(Collector):
    """The metrics of one server: of its requests, and of the studies and tickets in its database.

    Args:
        store: The database, which is read at each scrape.
    """

    def __init__(self, store: Store) -> None:
        self.registry = CollectorRegistry()
        self.probes = CapacityLimiter(2)
        self.requests = Histogram(
            "tempopt_request_seconds",
            "Time of requests, without the time that an answer was held back",
            ["method", "route", "status"],
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self._store = store
        self.registry.register(self)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the current metrics."""
        rows = self._store.list_studies()
        states = Counter(summary_state(row)[0] for row in rows)
        yield _build_gauge("studies", "Studies by state", "state", {**dict.fromkeys(STANDINGS, 0), **states})
        tickets = sum((row.counts for row in rows), Counter())
        yield _build_gauge(
            "tickets", "Tickets by state", "state", {**dict.fromkeys(TICKET_STATES, 0), **tickets}
        )
        totals = self._store.totals()
        hours: dict[str, float] = defaultdict(float)
        for row in rows:
            if (total := totals.get(row.study.id)) is not None:
                hours[row.study.owner] += total.hours
        yield _build_gauge("gpu_hours", "Hours of GPUs, else of training, by user", "user", hours)


def _build_gauge(name: str, about: str, label: str, values: Any) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"tempopt_{name}", about, labels=[label])
    for value, number in sorted(values.items()):
        family.add_metric([value], float(number))
    return family
