"""The code that trained a run: one line of text, and a mixture within a study."""

from __future__ import annotations

import pytest

from tempopt.storage.run_code import RunCode, run_codes, run_codes_json

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    "code",
    [
        RunCode(identity="c0ffee"),
        RunCode(identity="c0ffee", commit=COMMIT),
        RunCode(identity="c0ffee", commit=COMMIT, is_dirty=True, packages={"torch": "2.10.0+cu128"}),
        RunCode(identity="c0ffee", packages={"torch": "2.10.0", "optuna": "5.0"}),
    ],
)
def test_the_text_is_read_back(code: RunCode) -> None:
    assert RunCode.parse(code.text) == code and "\n" not in code.text


def test_words_say_commit_changes_and_packages() -> None:
    code = RunCode(identity="c0ffee", commit=COMMIT, is_dirty=True, packages={"torch": "2.10.0"})
    assert code.words == "code c0ffee, commit 0123456789ab with uncommitted changes, torch 2.10.0"
    assert RunCode(identity="c0ffee").words == "code c0ffee"


def test_versions_are_counted_by_runs() -> None:
    code = RunCode(identity="a", commit=COMMIT)
    other_code = RunCode(identity="a", commit=COMMIT, is_dirty=True)
    codes = [code.text, None, other_code.text, other_code.text]
    assert run_codes(codes) == [(other_code, 2), (code, 1)]
    assert [(row["is_dirty"], row["runs"]) for row in run_codes_json(codes)] == [(True, 2), (False, 1)]
    assert run_codes([None]) == []
