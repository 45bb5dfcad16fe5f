"""A message that repeats what was given is short, keeps what to do, and shows no password."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tempopt.errors import TempoptError, UsageError, mask_secrets, shorten_message, unknown

LIMIT = 2000


@given(st.text() | st.lists(st.text(max_size=300), max_size=40).map("\n".join))
def test_a_message_is_at_most_2_kb_and_a_short_one_is_as_it_was(text: str) -> None:
    message = str(TempoptError(text))
    assert len(message) <= LIMIT
    assert len(text) > 1900 or message == text


@pytest.mark.parametrize("name", ["x" * 100_000, "a b " * 20_000, "[1, " * 30_000])
def test_what_was_given_is_cut_and_what_to_do_stays(name: str) -> None:
    message = str(UsageError(f'study.name: given the text "{name}". Give a name of at most 100 letters.'))
    assert message.startswith('study.name: given the text "')
    assert message.endswith("Give a name of at most 100 letters.")
    assert len(message) <= LIMIT


def test_of_many_faults_the_first_and_the_last_are_told_and_the_others_counted() -> None:
    faults = [
        f'  mine.yaml:{line}: study.a{line}: Unknown key "a{line}". Known: {"b, " * 40}c.'
        for line in range(3000)
    ]
    message = shorten_message("\n".join(["This study spec has 3000 faults:", *faults, "Put them right."]))
    lines = message.splitlines()
    assert lines[0] == "This study spec has 3000 faults:"
    assert lines[1].startswith("  mine.yaml:0: study.a0:")
    assert lines[-1] == "Put them right."
    assert lines[-2] == f"  … ({3000 - (len(lines) - 3)} lines are left out)"


def test_known_names_are_left_out_of_a_long_message_where_the_nearest_is_told() -> None:
    fault = unknown("key", "trails", ["trials", *(f"another_key_{number}" for number in range(30))])
    assert "another_key_29" in fault
    message = shorten_message("\n".join([fault] * 6))
    assert message.count('Unknown key "trails". Did you mean "trials"?') == 6
    assert "another_key" not in message


def test_no_password_is_cut_in_two() -> None:
    url = f"postgresql://me:{'p' * 300}zqx@host/{'d' * 3000}"
    message = str(UsageError(f"The storage URL {url} cannot be read."))
    assert "pp" not in message
    assert "zqx" not in message


@pytest.mark.parametrize("part", ["a:", "@", "?", "?pass", "://", ":@", ":password@host/"])
def test_hiding_passwords_goes_through_a_long_text_but_once(part: str) -> None:
    # with a search from each place to the end these would take hours
    for text in (part * 50_000, f"{part * 50_000}@", f"@{part * 50_000}"):
        assert len(mask_secrets(text)) <= len(text)


def test_of_a_store_full_of_names_the_first_are_told() -> None:
    message = unknown("study", "x", (f"study{number}" for number in range(500)))
    assert "study59 and 440 more." in message


def test_where_nothing_is_known_the_message_says_so() -> None:
    assert unknown("guard", "x", []) == 'Unknown guard "x". Known: none.'
