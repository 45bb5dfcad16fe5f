"""Throttling of refused authentications by address, and of their rows in the audit log."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address, ip_network

_MAX_ADDRESSES = 4096
_NOTED_SECONDS = 60.0
_MAX_NOTED = 60


class AuthThrottle:
    """Counts refused authentications; threads may share it, and its memory is bounded.

    Args:
        clock: A monotonic clock, in seconds.
    """

    FREE = 10
    """Number of failures in a row that cause no wait."""
    LONGEST = 300.0

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._failures_by_client: OrderedDict[str, tuple[int, float]] = OrderedDict()
        self._noted: list[float] = []
        self._unwritten = 0

    def wait(self, address: str) -> float:
        """Return the seconds for which an address is blocked if it fails again."""
        with self._lock:
            return max(0.0, self._failures_by_client.get(_find_holder(address), (0, 0.0))[1] - self._clock())

    def count_failure(self, address: str) -> int | None:
        """Count a failure.

        Returns:
            The number of earlier failures without a row in the audit log, if this one gets a row; None if it
            does not. Blocked addresses get no rows, all others together 60 per minute.
        """
        holder = _find_holder(address)
        with self._lock:
            now = self._clock()
            count, wait_end = self._failures_by_client.pop(holder, (0, 0.0))
            is_waiting = now < wait_end
            if now > wait_end + self.LONGEST:
                count = 0
            # capped at the number of the longest wait, since the power of a larger number would overflow
            count = min(count + 1, self.FREE + 16)
            pause = 0.0 if count <= self.FREE else min(self.LONGEST, 2.0 ** (count - self.FREE))
            self._failures_by_client[holder] = (count, now + pause)
            while len(self._failures_by_client) > _MAX_ADDRESSES:
                self._failures_by_client.popitem(last=False)
            self._noted = [moment for moment in self._noted if now - moment < _NOTED_SECONDS]
            if is_waiting or len(self._noted) >= _MAX_NOTED:
                self._unwritten += 1
                return None
            self._noted.append(now)
            before, self._unwritten = self._unwritten, 0
            return before

    def reset(self, address: str) -> None:
        """Forget the failures of an address."""
        with self._lock:
            self._failures_by_client.pop(_find_holder(address), None)


def _find_holder(address: str) -> str:
    """Return the part of an address that a client cannot vary: IPv4, or the 64 bits of an IPv6 network."""
    try:
        ip = ip_address(address)
    except ValueError:
        return address
    if isinstance(ip, IPv6Address) and ip.ipv4_mapped is None:
        return str(ip_network((int(ip) >> 64 << 64, 64)))
    return str(ip)
