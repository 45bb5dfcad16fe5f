"""What the picture of a run is called in Optuna's artifacts; draws nothing.

Nothing is stored but the name: whoever opens it draws the picture of the run's rows.
"""

from __future__ import annotations

from uuid import UUID

# An id says which ticket it is of, so that a picture is found without searching. Of version 8 (RFC 9562),
# which leaves all bits but those of the version to whoever makes the id; these say "tempopt".
_OURS = 0x74656D706F70_8_074 << 64 | 1 << 63
_TICKET = (1 << 62) - 1

CURVE = {"filename": "curve.svg", "mimetype": "image/svg+xml", "encoding": None}
"""What Optuna knows of a picture, beside its id."""


def curve_id(ticket_id: int) -> str:
    """Return the id of the picture of a ticket's run: value and temperature over steps."""
    return str(UUID(int=_OURS | ticket_id))


def ticket_of(artifact_id: str) -> int | None:
    """Return the id of the ticket whose run a picture shows, None if the id is not of our making."""
    try:
        number = UUID(artifact_id).int
    except ValueError:
        return None
    ticket_id = number & _TICKET
    return ticket_id if ticket_id | _OURS == number else None
