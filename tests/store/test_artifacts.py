"""The ids of pictures: each says which ticket it is of, and nobody else's id is taken for one."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tempopt.store.artifacts import curve_id, ticket_of


@given(st.integers(1, 2**62 - 1))
def test_an_id_leads_back_to_its_ticket_and_is_a_uuid_of_the_maker_s_own_kind(ticket_id: int) -> None:
    made = UUID(curve_id(ticket_id))
    assert (made.version, made.variant) == (8, UUID(_RANDOM[0]).variant)
    assert ticket_of(curve_id(ticket_id)) == ticket_id
    assert ticket_of(curve_id(ticket_id).upper()) == ticket_id


# as uuid4 makes them
_RANDOM = ("1128cf1e-f10b-4bb9-8435-bb7421d2a13f", "88dafb91-4f5e-4aaa-b195-e1a216240677")


@pytest.mark.parametrize("other", ["", "7", "curve.svg", "../curve", *_RANDOM])
def test_ids_of_others_are_not_ours(other: str) -> None:
    assert ticket_of(other) is None
