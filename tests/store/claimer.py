"""One process that takes tickets until there are none, run by test_claims as a program of its own.

Says "ready" on its standard output, begins when a line comes in, and then prints the ids it was given.
"""

from __future__ import annotations

import sys

from sqlalchemy import create_engine

from tempopt.store import Store
from tempopt.store.schema import connect


def main(url: str, study_id: str, agent: str, form: str) -> None:
    """Take every ticket that can be had."""
    database = connect(url, create=False)
    if form == "plain":
        # What one would write without knowing better: engine.begin() as it comes.
        database._writer.dispose()
        database._writer = create_engine(database.address.url, connect_args={"timeout": 60})
    with Store(database) as store:
        print("ready", flush=True)
        sys.stdin.readline()
        claims = []
        while (ticket := store.take_ticket(int(study_id), agent)) is not None:
            claims.append(ticket.id)
        print(*claims, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
