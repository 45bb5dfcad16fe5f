"""A brake on guessing: after a few wrong secrets from one address, each further try there has to wait."""

from __future__ import annotations

import ipaddress
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

FREE = 10
"""Wrong secrets that an address may send before it has to wait."""

LONGEST_PAUSE = 60.0
"""Seconds that an address waits at most before its next try counts."""

_FORGET_SECONDS = 600.0
_MOST_ADDRESSES = 1000


@dataclass(slots=True)
class _Failures:
    count: int
    last: float


class Throttle:
    """Counts the wrong secrets of each address; safe to use from several threads.

    The pause after wrong secret number ``FREE`` is a second, and doubles with each further one, up to
    ``LONGEST_PAUSE``. An address is forgotten ten minutes after its last wrong secret, and after a right one.
    The addresses of one IPv6 network of 64 bits count as one.

    Args:
        note: Called with one line when an address has to wait for the first time.
        clock: Seconds that only grow.
    """

    def __init__(self, note: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._note = note
        self._clock = clock
        self._lock = threading.Lock()
        self._failures: OrderedDict[str, _Failures] = OrderedDict()

    def seconds_left(self, address: str) -> float:
        """Return how long an address has to wait before its next try, 0 if it need not."""
        with self._lock:
            found = self._failures.get(_network(address))
            if found is None or found.count < FREE:
                return 0.0
            pause = min(LONGEST_PAUSE, 2.0 ** min(found.count - FREE, 10))
            return max(0.0, found.last + pause - self._clock())

    def failed(self, address: str) -> None:
        """Count a wrong secret."""
        key, now = _network(address), self._clock()
        with self._lock:
            found = self._failures.pop(key, None)
            if found is None or now - found.last > _FORGET_SECONDS:
                found = _Failures(0, now)
            found.count, found.last = found.count + 1, now
            self._failures[key] = found
            if len(self._failures) > _MOST_ADDRESSES:
                self._failures.popitem(last=False)
            reached = found.count == FREE
        if reached:
            self._note(f"{FREE} wrong secrets came from {key}. Its further tries have to wait.")

    def passed(self, address: str) -> None:
        """Forget an address: it has sent the right secret."""
        with self._lock:
            self._failures.pop(_network(address), None)


def _network(address: str) -> str:
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return "an unknown address"
    if ip.version == 6:
        return str(ip.ipv4_mapped or ipaddress.ip_network((ip, 64), strict=False))
    return str(ip)
