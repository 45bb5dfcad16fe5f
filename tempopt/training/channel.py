"""What a run knows of who gave it: where its messages go, and where the wish to stop it comes from."""

from __future__ import annotations

from typing import Protocol

from tempopt.training.messages import Message, RunRequest, Stop


class Channel(Protocol):
    """Where a run's messages go, and where the wish to stop it comes from."""

    def send(self, message: Message) -> None:
        """Send one message to the agent."""

    def stop(self, request: RunRequest) -> Stop | None:
        """Return the agent's wish that this run end, if there is one."""
