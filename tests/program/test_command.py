"""Commands: split without a shell, placeholders filled in afterwards, checked before anything starts."""

from __future__ import annotations

import re
import shlex
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tempopt.errors import SpecError
from tempopt.spec.command import CommandTemplate


def test_words_are_split_first_and_filled_then() -> None:
    command = CommandTemplate.parse("SEED={seed} OPT='a b' python train.py --name {name} '--x={{{lr}}}'")
    variables, words = command.fill({"name": "two words; rm -rf $HOME", "lr": 1e-05}, 7)
    assert variables == {"SEED": "7", "OPT": "a b"}
    assert words == ["python", "train.py", "--name", "two words; rm -rf $HOME", "--x={1e-05}"]
    assert command.placeholders == {"seed", "name", "lr"}


@given(st.text(string.printable, max_size=20), st.integers(0, 2**63))
def test_a_filled_command_is_the_same_when_it_is_typed(value: str, seed: int) -> None:
    command = CommandTemplate.parse("A={x} prog {x} --seed {seed}")
    line = command.line({"x": value}, seed)
    assert shlex.split(line) == [f"A={value}", "prog", value, "--seed", str(seed)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("python 'train.py {seed}", "cannot be split"),
        ("SEED={seed}", "names no program"),
        ("", "names no program"),
        ("prog {seed} {", "{{ and }}"),
        ("prog {seed} {}", "name in braces"),
        ("prog {seed:.3f}", "name in braces"),
        ("prog {seed!r}", "name in braces"),
        ("prog {seed} \x1b[2J", "cannot be shown"),
        ("prog {seed} | tee log", r"sh -c 'prog {seed} | tee log'"),
        ("prog {seed} --x=a>log", "with > for a shell"),
        ("cd x && prog {seed}", "with && for a shell"),
        ("prog {seed}; rm x", "with ; for a shell"),
        ("prog {seed} $HOME/data", "with $HOME for a shell"),
        ("prog {seed} ${HOME}", "with ${HOME for a shell"),
        ("prog {seed} ~/data", "with ~ for a shell"),
        ("prog {seed} data/*.csv", "with * for a shell"),
    ],
)
def test_what_is_no_command_is_refused(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=re.escape(message)):
        CommandTemplate.parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "bash -c 'prog {seed} | tee log'",
        'bash -c "cd x && prog {seed} > \\"$HOME/log\\""',
        r"prog {seed} a\|b \$x",
        "prog {seed} --x=[1,2] a~b 5$ 'a'~ (x)",
    ],
)
def test_what_is_quoted_or_for_no_shell_reaches_the_program(text: str) -> None:
    assert CommandTemplate.parse(text).words == tuple(shlex.split(text))


def test_unknown_placeholders_are_refused() -> None:
    with pytest.raises(SpecError, match=r"qk_gian.*\{seed\}.*\{qk_gain\}"):
        CommandTemplate.parse("prog {seed} {qk_gian}").check(["qk_gain"])
    CommandTemplate.parse("SEED={seed} prog").check(["qk_gain"])


def test_a_temperature_that_a_plan_does_not_read_has_its_neutral_value() -> None:
    command = CommandTemplate.parse(
        "prog {seed} {temperature_init} {temperature_final} {layer_ratio} {schedule}"
    )
    assert command.fill({"temperature_init": 2.0}, 1)[1][2:] == ["2.0", "2.0", "1.0", "constant"]
