"""The command of a section ``program:``: words with placeholders, which are filled in without a shell."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from string import Formatter
from typing import Any, Self

from tempopt.errors import SpecError, unknown
from tempopt.temperature.parameters import NEUTRAL, TEMPERATURE_PARAMETERS

SEED = "seed"
"""Name of the placeholder of a run's seed."""

SCRIPT_SUFFIXES = (".py", ".sh", ".r", ".jl", ".lua")
"""Endings of the names of scripts, in lower case."""

_VARIABLE = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_QUOTED = re.compile(r"""\\.|'[^']*'|"(?:\\.|[^"\\])*\"""", re.DOTALL)
# pipes, redirections, lists of commands, globs, variables and home folders
_FOR_A_SHELL = re.compile(r"[|&;<>`*?]+|\$[\w{(]\w*|(?<!\S)~")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandTemplate:
    """A command, split as a shell splits it.

    Args:
        variables: Environment variables by name, from leading ``NAME=value`` words.
        words: The program and its arguments.
        placeholders: Names in braces, of words and variables.
    """

    variables: Mapping[str, str]
    words: tuple[str, ...]
    placeholders: frozenset[str]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Split a command.

        Raises:
            SpecError: It cannot be split, has no program, a sign for a shell outside of quotes, or a brace
                that begins no placeholder.
        """
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise SpecError(f"given {text!r}, which cannot be split: {error}. Check the quotes.") from None
        if not text.isprintable():
            raise SpecError(f"given {text!r}, with a character that cannot be shown. Take it out.")
        if shell_sign := _FOR_A_SHELL.search(_QUOTED.sub("_", text)):
            raise SpecError(
                f"given {text!r}, with {shell_sign[0]} for a shell, and no shell is started. To have one, "
                f"write sh -c {shlex.quote(text)}; or put quotes around what the program is to have as it is."
            )
        variables: dict[str, str] = {}
        while words and (match := _VARIABLE.fullmatch(words[0])):
            variables[match[1]] = match[2]
            del words[0]
        if not words:
            raise SpecError(
                f"given {text!r}, which names no program. Give one, as in python train.py --seed {{seed}}."
            )
        names = frozenset(name for word in (*variables.values(), *words) for name in _names_in(word))
        return cls(variables=variables, words=tuple(words), placeholders=names)

    def check(self, names: Collection[str]) -> None:
        """Refuse unknown placeholders.

        Args:
            names: Parameters that have a value in every run.

        Raises:
            SpecError: One is unknown.
        """
        for name in sorted(self.placeholders - {SEED}):
            if name not in names:
                raise SpecError(
                    unknown(
                        "placeholder",
                        f"{{{name}}}",
                        [f"{{{allowed}}}" for allowed in (SEED, *sorted(names))],
                        "For braces themselves write {{ and }}.",
                    )
                )

    def fill(self, parameters: Mapping[str, Any], seed: int | str) -> tuple[dict[str, str], list[str]]:
        """Return the environment variables and the words of a run."""
        values = {name: _value(name, parameters) for name in self.placeholders if name != SEED} | {SEED: seed}
        variables = {name: _fill_word(word, values) for name, word in self.variables.items()}
        return variables, [_fill_word(word, values) for word in self.words]

    def line(self, parameters: Mapping[str, Any], seed: int | str) -> str:
        """Return the command of a run as it can be typed in a shell."""
        variables, words = self.fill(parameters, seed)
        settings = [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
        return " ".join([*settings, shlex.join(words)])


def _names_in(word: str) -> list[str]:
    try:
        fields = [field[1:] for field in Formatter().parse(word) if field[1] is not None]
    except ValueError as error:
        raise SpecError(
            f"in {word!r}: {error}. A placeholder is a name in braces, as in {{seed}}; for braces themselves "
            "write {{ and }}."
        ) from None
    for name, style, conversion in fields:
        if not name or style or conversion:
            raise SpecError(f"in {word!r}: a placeholder is a name in braces alone, as in {{seed}}.")
    return [str(name) for name, _, _ in fields]


def _fill_word(word: str, values: Mapping[str, Any]) -> str:
    return "".join(
        text + ("" if name is None else str(values[name])) for text, name, _, _ in Formatter().parse(word)
    )


def _value(name: str, parameters: Mapping[str, Any]) -> Any:
    """Return the value of a placeholder, the neutral one of a temperature parameter that is not read."""
    if name in parameters or name not in TEMPERATURE_PARAMETERS:
        return parameters[name]
    value, level = NEUTRAL[name], name.replace("_final", "_init")
    return parameters.get(level, NEUTRAL.get(level)) if value is None and level != name else value
