"""Does everybody get their share of a pool of agents, in weeks that are simulated?

`allocate` decides once a minute, runs take minutes to hours, users come and go. Of the GPU time in which a
user wanted some, the table has what it had, what the weights alone say of those who wanted some at the same
moments, and what the formula of docs/fair-share.md says if GPUs and time could be divided at will.

    python -m benchmarks.fair_share
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from benchmarks.simulated.pool import DAY, HOUR, Length, Person, Pool, heavy, long, short
from tempopt.records.pool import PoolAgent

_WEEK = 7 * DAY
_QUEUES = {"research": 2.0, "class": 1.0}
_HEAD = "| users | runs | agents | user | had | weights | formula | had / weights | longest wait |"


def agents(count: int, labelled: int = 0) -> list[PoolAgent]:
    """Return idle agents; the first ones have the label big."""
    label = frozenset({"big"})
    return [
        PoolAgent(name=f"agent{i:02}", labels=label if i < labelled else frozenset()) for i in range(count)
    ]


def three(length: Length) -> list[Person]:
    """Return three users in two queues, who want as much as there is, always: due 4/9, 2/9 and 1/3."""
    return [
        Person(name="ada", queue="research", weight=2.0, studies=2, length=length),
        Person(name="bob", queue="research", length=length),
        Person(name="cleo", queue="class", studies=3, length=length),
    ]


def come_and_go(length: Length) -> list[Person]:
    """Return the three, there for 12, 6 and 24 hours on average, and away for 12, 6 and 12."""
    rng = random.Random(1)
    hours = [(12, 12), (6, 6), (24, 12)]
    return [
        replace(each, present=_spans(rng, *given)) for each, given in zip(three(length), hours, strict=True)
    ]


def _spans(rng: random.Random, there: float, away: float) -> list[tuple[float, float]]:
    found, now = [], 0.0
    while now < _WEEK:
        end = now + rng.expovariate(1 / (there * HOUR))
        found.append((now, end))
        now = end + rng.expovariate(1 / (away * HOUR))
    return found


def one_long_run(_: Length) -> list[Person]:
    """Return a user whose only study trains one run of 3 to 5 hours at a time, and two others."""
    return [
        Person(name="ada", studies=1, parallel=1, length=long),
        Person(name="bob", studies=2),
        Person(name="cleo"),
    ]


def labels(length: Length) -> list[Person]:
    """Return a user who can use labelled agents only, and two who can use all."""
    return [
        Person(name="ada", length=length),
        Person(name="bob", length=length),
        Person(name="cleo", length=length, labels=frozenset({"big"})),
    ]


def fifty_studies(length: Length) -> list[Person]:
    """Return one who has split its study into fifty, and one who has not."""
    return [Person(name="ada", studies=50, length=length), Person(name="bob", length=length)]


def urgent(length: Length) -> list[Person]:
    """Return two users, and one with studies of a higher priority in one hour of six."""
    spans = [(i * 6 * HOUR, (i * 6 + 1) * HOUR) for i in range(28)]
    ops = Person(name="ops", priority=1, parallel=2, length=short, present=spans)
    return [Person(name="ada", length=length), Person(name="bob", length=length), ops]


World = tuple[str, Callable[[Length], list[Person]], Length, list[PoolAgent]]


def worlds(most: int) -> list[World]:
    """Return the worlds: what users there are, how long runs take, and the agents, ``most`` at most."""
    sizes = [each for each in (1, 8, 64) if each <= most]
    found: list[World] = []
    for count in sizes:
        lengths = (short, heavy, long) if count < 64 else (heavy,)
        found += [("always there", three, length, agents(count)) for length in lengths]
        found += [("come and go", come_and_go, heavy, agents(count))]
    for count in (1, 8):
        found.append(("one long run at a time", one_long_run, short, agents(count)))
        found.append(("fifty studies of one", fifty_studies, heavy, agents(count)))
    found.append(("cleo needs a label that 3 have", labels, heavy, agents(8, labelled=3)))
    found.append(("ops has a higher priority", urgent, heavy, agents(8)))
    return found


def main() -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--most", type=int, default=64, help="agents; 8 takes two minutes")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    print(_HEAD + "\n" + "|---" * (_HEAD.count("|") - 1) + "|", flush=True)
    counted = []
    for name, people, length, rows in worlds(given.most):
        pool = Pool(people(length), rows, queues=_QUEUES, seed=given.seed)
        pool.run(_WEEK)
        _print(f"| {name} | {length.__name__} | {len(rows)} |", pool)
        counted.append((f"| {name} | {length.__name__} | {len(rows)} |", pool))
    print(
        "\n| users | runs | agents | idle | runs ended | changes of study | preempted |\n" + "|---" * 7 + "|"
    )
    for head, pool in counted:
        idle = pool.idle / len(pool.agents) / pool.now
        print(f"{head} {idle:.2%} | {pool.runs} | {pool.switches} | {pool.preempted} |")
    _newcomer(given.seed)


def _print(head: str, pool: Pool) -> None:
    for name, seen in pool.seen.items():
        had, due, formula = (each / seen.there for each in (seen.seconds, seen.due, seen.formula))
        wait = f"{seen.wait / HOUR:.1f} h"
        print(
            f"{head} {name} | {had:.1%} | {due:.1%} | {formula:.1%} | {had / due - 1:+.1%} | {wait} |",
            flush=True,
        )


def _newcomer(seed: int) -> None:
    """Print what two users have by day where one comes after the other had the pool for a week."""
    print(
        "\n| a newcomer after a week | agents | "
        + " | ".join(f"day {i}" for i in range(1, 8))
        + " | ada waits |"
    )
    print("|---" * 10 + "|")
    for count in (1, 8):
        people: Sequence[Person] = [
            Person(name="ada", length=short),
            Person(name="bob", length=short, present=[(_WEEK, 2 * _WEEK)]),
        ]
        pool = Pool(people, agents(count), seed=seed)
        pool.run(2 * _WEEK)
        days = [pool.seen["bob"].daily[day] / (count * DAY) for day in range(7, 14)]
        shown = " | ".join(f"{each:.0%}" for each in days)
        print(f"| bob's share | {count} | {shown} | {pool.seen['ada'].wait / HOUR:.1f} h |", flush=True)


if __name__ == "__main__":
    main()
