"""A disk under a search is full, read-only or closed for a while: nothing is lost, no attempt is used up."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.full_disk import CASES, TICKETS, carry_out, why_not
from tests.cluster.studies import Record

pytestmark = pytest.mark.long


@pytest.mark.parametrize("name", CASES)
def test_a_search_whose_disk_refuses_for_a_while_ends_as_an_undisturbed_one(
    name: str, undisturbed: Callable[[int], Record]
) -> None:
    if reason := why_not():
        pytest.skip(reason)
    with tempfile.TemporaryDirectory() as folder:
        found = carry_out(name, Path(folder), undisturbed(TICKETS))
    assert (found.code, found.resumed, found.differences) == (0, False, []), found.said
    assert found.failures == 0
    # told of checkpoints and of logs, and not with every run; what other runs delete makes room for a moment
    assert 1 <= found.said.count(CASES[name].told) <= 6, found.said
