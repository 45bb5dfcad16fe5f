"""What is recommended for a program as text: the command line to type, or the call of the function."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

import yaml

from tempopt.run_handle import RUN_FILE
from tempopt.spec.command import SEED, CommandTemplate
from tempopt.spec.study_spec import StudySpec

_ANY_SEED = 0
_CURRENT_RUN = "tempopt.current_run(params=params, seed=0)"


def program_yaml(spec: StudySpec, parameters: Mapping[str, Any]) -> str:
    """Return what to run as YAML: the command line or the function, and the parameters."""
    assert spec.program is not None, "only a program is exported so"
    data: dict[str, Any] = {"function": spec.program.function, "seed": _ANY_SEED}
    if spec.program.command is not None:
        data = {"command": _command_line(spec, parameters)}
    text: str = yaml.safe_dump(
        {**data, "params": dict(parameters)}, sort_keys=False, allow_unicode=True, width=10_000
    )
    return text


def program_python(spec: StudySpec, parameters: Mapping[str, Any]) -> str:
    """Return a Python script that runs what is recommended."""
    assert spec.program is not None, "only a program is exported so"
    if spec.program.function is not None:
        module, _, name = spec.program.function.rpartition(".")
        lines = ["import tempopt", f"from {module} import {name}", "", f"params = {dict(parameters)!r}"]
        return "\n".join([*lines, f"print({name}({_CURRENT_RUN}))", ""])
    line = _command_line(spec, parameters)
    return "\n".join(["import subprocess", "", f"subprocess.run({line!r}, shell=True, check=True)", ""])


def _command_line(spec: StudySpec, parameters: Mapping[str, Any]) -> str:
    assert spec.program is not None and spec.program.command is not None
    command = CommandTemplate.parse(spec.program.command)
    line = command.line(parameters, _ANY_SEED)
    if command.placeholders >= {*parameters, SEED}:
        return line
    # the program reads the others by tempopt.current_run()
    run = json.dumps({"params": dict(parameters), "seed": _ANY_SEED}, ensure_ascii=False)
    return f"{RUN_FILE}={shlex.quote(run)} {line}"
