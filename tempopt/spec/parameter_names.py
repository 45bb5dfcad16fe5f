"""Names of searched and compared parameters: which are allowed, and how they are written."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from tempopt.errors import unknown
from tempopt.spec.lightning_config import SEARCHABLE, UNSEARCHED, argument_problem
from tempopt.spec.program_section import program_name_problem
from tempopt.spec.temperatures import check_unknown_temperature_name
from tempopt.temperature.named import split_name
from tempopt.temperature.parameters import TEMPERATURE_PARAMETERS

_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def name_problem(
    name: str,
    model_args: Mapping[str, Any] | None,
    *,
    action: str = "searched",
    temperatures: Collection[str] | None = (),
) -> str | None:
    """Return what is wrong with the name of a parameter, or None.

    Args:
        name: As a person wrote it.
        model_args: Init arguments that the ``model:`` section sets; None: a program trains, which takes
            parameters of any name.
        action: Past participle for the message: what is done with such parameters.
        temperatures: Names in the section ``temperatures:``; None if that section is invalid.
    """
    if not _NAME.fullmatch(name):
        return (
            f'"{name}" is not a name of an argument. Give a name, as in temperature_init or data.batch_size.'
        )
    if problem := check_unknown_temperature_name(name, temperatures):
        return problem
    if model_args is None:
        return program_name_problem(name)
    prefix, dot, argument = name.partition(".")
    is_of_faulty_section = temperatures is None and bool(split_name(name)[0])
    if not dot or name in TEMPERATURE_PARAMETERS or is_of_faulty_section:
        return None
    bare_name = argument.removeprefix("init_args.")
    if prefix == "model" and ("." not in bare_name or bare_name in TEMPERATURE_PARAMETERS):
        return (
            f'init arguments of the model are {action} by their bare name: write "{bare_name}", not "{name}".'
        )
    if prefix not in ("model", "data", "trainer"):
        if isinstance(model_args.get(prefix), Mapping):
            return None
        remedy = "What is inside of an init argument of the model is written model.ARGUMENT.KEY:"
        return unknown("prefix", prefix, ("data", "trainer"), f"{remedy} model.{name}.")
    if prefix in model_args:
        return (
            f'"{name}" could mean the {prefix}: section, or the init argument "{prefix}" of the model. '
            f"Rename the init argument."
        )
    if bare_name != argument:
        return f'leave init_args out: write "{prefix}.{bare_name}".'
    if prefix == "trainer" and argument in UNSEARCHED:
        return f"{argument} cannot be {action}: {UNSEARCHED[argument]}"
    if prefix == "trainer":
        return argument_problem(argument.partition(".")[0], choices=SEARCHABLE)
    return None
