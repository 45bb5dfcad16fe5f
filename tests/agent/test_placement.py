"""How a machine is dealt out: no card over-committed, every trial's need met, nothing refused that fits."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tempopt.agent.machine import Machine
from tempopt.agent.placement import Placement, assign_placements, capacity, count_workers
from tempopt.errors import UsageError
from tempopt.spec.resources import Need

SHARES = st.floats(0.01, 0.99) | st.integers(2, 64).map(lambda parts: 1 / parts)
NEEDS = st.one_of(
    st.builds(Need, gpus=SHARES, cpus=st.integers(1, 4)),
    st.builds(
        lambda gpus, cpus: Need(gpus=float(gpus), cpus=cpus, ranks=max(1, gpus)),
        st.integers(0, 5),
        st.integers(1, 8),
    ),
)
MACHINES = st.builds(
    lambda cores, cards, memory: Machine(
        cores=cores, memory=memory, cards=tuple(f"GPU-{card}" for card in range(cards))
    ),
    st.integers(1, 64),
    st.integers(0, 9),
    st.none() | st.integers(1, 2**40),
)


@given(need=NEEDS, machine=MACHINES, memory=st.none() | st.integers(1, 2**40))
def test_whatever_there_is_room_for_can_be_dealt_and_overcommits_nothing(
    need: Need, machine: Machine, memory: int | None
) -> None:
    need = dataclasses.replace(need, memory=memory)
    count = capacity(need, machine)
    # by cores, cards and memory, said another way than the code says it
    assert count * need.cpus <= machine.cores
    assert need.memory is None or machine.memory is None or count * need.memory <= machine.memory
    places = assign_placements(need, min(count, 200), machine)
    counts: Counter[str] = Counter()
    for placement in places:
        cards = placement.gpus or ()
        assert len(cards) == len(set(cards)) == math.ceil(need.gpus)
        assert set(cards) <= set(machine.cards)
        assert placement.ranks == need.ranks and placement.threads * need.ranks <= max(need.cpus, need.ranks)
        for card in cards:
            counts[card] += 1
        assert placement.share == (need.gpus if 0 < need.gpus < 1 else 1.0)
        assert placement.cards == pytest.approx(need.gpus)
    for number in counts.values():
        assert number * min(1.0, need.gpus) <= 1 + 1e-6


@given(need=NEEDS, machine=MACHINES)
def test_there_is_room_for_all_that_fits(need: Need, machine: Machine) -> None:
    num_workers = capacity(need, machine) + 1
    too_little = [num_workers * need.cpus > machine.cores]
    if 0 < need.gpus < 1:
        # no trial is on two cards
        too_little.append(math.ceil(num_workers / math.floor(1 / need.gpus + 1e-9)) > len(machine.cards))
    elif need.gpus:
        too_little.append(num_workers * need.gpus > len(machine.cards))
    assert any(too_little)


@given(need=NEEDS, machine=MACHINES, max_workers=st.integers(1, 20))
def test_auto_takes_all_the_room_up_to_what_may_be_in_flight_and_never_more(
    need: Need, machine: Machine, max_workers: int
) -> None:
    fit = capacity(need, machine)
    if fit == 0:
        with pytest.raises(UsageError, match=r"resources"):
            count_workers(need, machine, num_requested=None, max_workers=max_workers)
    else:
        assert count_workers(need, machine, num_requested=None, max_workers=max_workers) == min(
            fit, max_workers
        )


FOUR = Machine(cores=2, memory=16 * 10**9, cards=("GPU-a", "GPU-b", "3", "MIG-c"))


@pytest.mark.parametrize(
    ("need", "count", "machine", "placements"),
    [
        # shares fill one card after another
        (
            Need(gpus=0.25),
            6,
            FOUR,
            [Placement(gpus=("GPU-a",), share=0.25)] * 4 + [Placement(gpus=("GPU-b",), share=0.25)] * 2,
        ),
        (Need(gpus=2.0, ranks=2, cpus=8), 1, FOUR, [Placement(gpus=("GPU-a", "GPU-b"), threads=4, ranks=2)]),
        # what needs no card sees none where there are some
        (Need(), 1, FOUR, [Placement(gpus=())]),
        (Need(), 1, Machine(cores=1, busy=(("GPU-a", 7),)), [Placement(gpus=())]),
        (Need(), 1, Machine(cores=1), [Placement(gpus=None)]),
        # the cores of a trial are shared out among its processes
        (Need(cpus=6, ranks=2), 1, FOUR, [Placement(gpus=(), threads=3, ranks=2)]),
        (Need(cpus=1, ranks=2), 1, FOUR, [Placement(gpus=(), threads=1, ranks=2)]),
    ],
)
def test_workers_are_placed_on_cards_and_cores(
    need: Need, count: int, machine: Machine, placements: list[Placement]
) -> None:
    assert assign_placements(need, count, machine) == placements
    (first, *_) = assign_placements(need, count, machine, threads=7)
    assert first.threads == 7


def test_more_than_there_are_cores_may_be_asked_for_by_number() -> None:
    assert count_workers(Need(), FOUR, num_requested=5, max_workers=9) == 5
    assert count_workers(Need(), FOUR, num_requested=None, max_workers=9) == 2


@pytest.mark.parametrize(
    ("need", "machine", "num_requested", "message"),
    [
        (Need(gpus=0.5), FOUR, 9, r"9 workers .* GPUs: 0.5 .*, free GPUs: 4\..*at most 8 workers"),
        (
            Need(gpus=1.0),
            Machine(cores=9, why="no driver"),
            None,
            r"this machine has none \(no driver\).*resources.gpus: 0",
        ),
        (
            Need(gpus=1.0),
            Machine(cores=9, busy=(("GPU-a", 77), ("GPU-b", 0))),
            None,
            r"free GPUs: 0\. Taken: GPU-a by process 77; GPU-b by another agent\. Wait until .*CUDA_VISIBLE",
        ),
        (Need(memory=10**10), FOUR, 2, r"memory: 10 GB .*, memory: 16 GB\. Give at most 1 workers"),
        (Need(memory=10**11), FOUR, None, r"A trial takes .*, memory: 100 GB .*Ask for less"),
        (
            Need(cpus=3),
            FOUR,
            None,
            r"A trial takes CPU cores: 3 .*, and there is CPU cores: 2\. .*--workers 1\.",
        ),
        (Need(gpus=2.0, ranks=2, cpus=1), FOUR, 1, r"MIG instances, of which a program can use one"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_there_is(
    need: Need, machine: Machine, num_requested: int | None, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        count_workers(need, machine, num_requested=num_requested, max_workers=9)
