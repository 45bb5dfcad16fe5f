"""One process that takes and begins tickets until there are none, run by test_claims as a program of its own.

Says "ready" on its standard output, begins when a line comes in, and then prints ticket:trial for each claim.
"""

from __future__ import annotations

import sys

from sqlalchemy import create_engine

from tempopt.errors import StaleAttempt
from tempopt.storage import Store
from tempopt.storage.changes import ClaimRequest
from tempopt.storage.schema import connect
from tests.storage.scenes import HOUR, PARAMETERS, SAMPLED, TRIAL


def main(url: str, study_id: str, agent: str, form: str) -> None:
    """Take every ticket that can be had, and begin each one."""
    database = connect(url, create=False)
    if form == "plain":
        # What one would write without knowing better: engine.begin() as it comes.
        database._writer.dispose()
        database._writer = create_engine(database.address.url, connect_args={"timeout": 60})
    with Store(database) as store:
        print("ready", flush=True)
        sys.stdin.readline()
        claims: dict[int, int | None] = {}
        claim_texts: list[str] = []
        while True:
            ticket = store.take_ticket(
                int(study_id),
                agent,
                ClaimRequest(limits={"search": None}, lease=HOUR, max_attempts=3, held_ticket_ids=claims),
            )
            if ticket is None:
                break
            try:
                number = store.begin(ticket.id, ticket.attempt, PARAMETERS, SAMPLED, TRIAL)
            except StaleAttempt:
                number = None
            claims[ticket.id] = number
            claim_texts.append(f"{ticket.id}:{number}")
        print(*claim_texts, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
