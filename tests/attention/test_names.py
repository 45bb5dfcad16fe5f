"""The names of the package: all there, and light to ask for."""

from __future__ import annotations

import subprocess
import sys

import pytest

import tempopt.attention


def test_every_public_name_is_there() -> None:
    assert tempopt.attention.__all__ == sorted(tempopt.attention.__all__)
    for name in tempopt.attention.__all__:
        assert getattr(tempopt.attention, name).__name__ == name


def test_a_name_that_is_not_there_is_answered_with_those_that_are() -> None:
    with pytest.raises(AttributeError, match='no attribute "entropi"; it has .*attention_entropy'):
        tempopt.attention.entropi  # noqa: B018


@pytest.mark.long
def test_the_package_alone_loads_no_torch_and_all_of_it_no_lightning() -> None:
    code = (
        "import sys, tempopt.attention as a; print('torch' in sys.modules); "
        "[getattr(a, name) for name in a.__all__]; "
        "print([name for name in ('lightning', 'optuna', 'sqlalchemy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["False", "[]"]
