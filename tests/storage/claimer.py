"""Processes that take and begin tickets until there are none, run by test_claims as a program of its own.

They are forked from one that has all imported, begin at the same moment, and print ticket:trial for each
claim.
"""

from __future__ import annotations

import multiprocessing
import sys
from multiprocessing.synchronize import Barrier

from tempopt.errors import StaleAttempt
from tempopt.storage import Store
from tempopt.storage.changes import ClaimRequest
from tempopt.storage.schema import connect
from tests.storage.scenes import HOUR, PARAMETERS, SAMPLED, TRIAL


def claim(url: str, study_id: str, agent: str, barrier: Barrier) -> None:
    """Take every ticket that can be had, and begin each one."""
    with Store(connect(url, create=False)) as store:
        barrier.wait()
        claims: dict[int, int | None] = {}
        claim_texts: list[str] = []
        while True:
            ticket = store.take_ticket(
                int(study_id),
                agent,
                ClaimRequest(
                    max_number_by_kind={"search": None}, lease=HOUR, max_attempts=3, held_ticket_ids=claims
                ),
            )
            if ticket is None:
                break
            try:
                number = store.begin(ticket.id, ticket.attempt, PARAMETERS, SAMPLED, TRIAL)
            except StaleAttempt:
                number = None
            claims[ticket.id] = number
            claim_texts.append(f"{ticket.id}:{number}")
        # one write, which the others do not come between
        sys.stdout.write("".join(f"{text}\n" for text in claim_texts))


def main(url: str, study_id: str, num_processes: str) -> None:
    """Let processes claim tickets, and exit with 1 if one of them failed."""
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(int(num_processes))
    processes = [
        context.Process(target=claim, args=(url, study_id, f"agent-{n}", barrier))
        for n in range(int(num_processes))
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    sys.exit(any(process.exitcode for process in processes))


if __name__ == "__main__":
    main(*sys.argv[1:])
