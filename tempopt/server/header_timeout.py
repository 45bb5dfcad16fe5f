"""The line to one client: who does not say within a while what is wanted is cut off."""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

LONGEST_HEAD_SECONDS = 30.0
"""Seconds from the first byte of a request, or from the opening of a line, until its headers are there."""


class TimeoutH11Protocol(H11Protocol):
    """HTTP as uvicorn speaks it, which waits for the headers of a request no longer than a while."""

    longest = LONGEST_HEAD_SECONDS
    _awaited: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._await()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._stop()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take in what came; wait on if the headers are not all there."""
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._stop()
        elif self._awaited is None:
            self._await()

    def _await(self) -> None:
        self._awaited = self.loop.call_later(self.longest, self.timeout_keep_alive_handler)

    def _stop(self) -> None:
        if self._awaited is not None:
            self._awaited.cancel()
            self._awaited = None
