"""``tempopt search``, ``compare``, ``resume`` and ``explain``: build their requests from the arguments.

Modules that run a study are imported after its spec has been checked, so that a refusal is quick.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

from tempopt.cli.run_study import carry_out
from tempopt.cli.specs import advise_check, read_spec
from tempopt.errors import UsageError
from tempopt.service.requests import CompareRequest, ResumeRequest, SearchRequest
from tempopt.spec.compared_sets import MAX_COMPARISON_RUNS, parse_vary
from tempopt.spec.comparison_spec import command_study, has_section, refuse_comparison
from tempopt.spec.yaml_source import read_sets


def search(arguments: argparse.Namespace) -> int:
    """Create or continue the study of a spec, to its verdict."""
    overrides = list(arguments.set)
    if arguments.name is not None:
        overrides.append(f"study.name={json.dumps(arguments.name)}")
    if arguments.submit and (arguments.launcher or arguments.workers):
        option = "--launcher" if arguments.launcher else "--workers"
        raise UsageError(f"With --submit other agents train the study. Take {option} out, or --submit.")
    spec = read_spec(arguments.spec, overrides)
    refuse_comparison(spec)
    options = _request_options(SearchRequest, arguments) | {
        "spec": spec,
        "trials": arguments.trials.total,
        "add_trials": arguments.trials.additional,
        "enqueue": () if arguments.enqueue is None else read_sets(Path(arguments.enqueue)),
    }
    return carry_out(arguments, SearchRequest(**options))


def compare(arguments: argparse.Namespace) -> int:
    """Create or continue a comparison, to its end."""
    is_command = arguments.program_command is not None
    _take_command(arguments)
    advice = contextlib.nullcontext() if is_command else advise_check(arguments.spec, arguments.set)
    with advice:
        options = _request_options(CompareRequest, arguments) | {
            "vary": parse_vary(
                arguments.vary, of_program=bool(arguments.vary) and has_section(arguments.spec, "program")
            ),
            "overrides": arguments.set,
            "max_runs": arguments.max_runs or MAX_COMPARISON_RUNS,
        }
        search_request = CompareRequest(**options).to_search(arguments.url)
    # the first one is the baseline
    num_sets = len(search_request.spec.compare or ()) - 1
    if arguments.top is not None and num_sets < arguments.top:
        print(
            f"--top {arguments.top}: {arguments.from_study} has {num_sets} different sets "
            "beside the baseline, which are all compared.",
            file=sys.stderr,
        )
    if arguments.json and arguments.detach:
        raise UsageError("--json prints the result, and --detach does not wait for it. Take one of them out.")
    return carry_out(arguments, search_request)


def _take_command(arguments: argparse.Namespace) -> None:
    """Put the spec that ``--command`` describes in the place of SPEC.

    Raises:
        UsageError: There are both, or neither; or an option is missing or without effect.
    """
    command, metric, direction = arguments.program_command, arguments.metric, arguments.direction
    if command is None:
        if arguments.spec is None:
            raise UsageError("Give a study spec, or --command with --vary. See `tempopt compare --help`.")
        if metric or direction:
            raise UsageError("--metric and --direction are for --command. In a spec they are keys of study:.")
        return
    words = {"": arguments.spec, "--from ": arguments.from_study}
    if surplus_word := next((f"{option}{word}" for option, word in words.items() if word is not None), None):
        raise UsageError(
            f"--command begins a new study each time, and {surplus_word} was given as well. Take it out; the "
            "values to compare are given by --vary."
        )
    required_options = {"--metric": metric, "--direction": direction, "--vary": arguments.vary}
    if missing := [option for option, value in required_options.items() if not value]:
        raise UsageError(
            f"--command needs {', '.join(missing)} as well, as in: tempopt compare --command 'python "
            "train.py --seed {seed} --lr {lr}' --vary lr=0.001,0.003 --metric val_loss --direction minimize"
        )
    arguments.spec = command_study(command, metric=metric, direction=direction)
    arguments.name = arguments.name or arguments.spec["study"]["name"]


def resume(arguments: argparse.Namespace) -> int:
    """Continue a study from the database alone, to its verdict."""
    request = ResumeRequest(study=arguments.name, **_request_options(ResumeRequest, arguments))
    return carry_out(arguments, request)


def explain(arguments: argparse.Namespace) -> int:
    """Explain the verdict of a study by further trainings."""
    return carry_out(arguments, ResumeRequest(study=arguments.name, explain=True))


def _request_options(
    kind: type[SearchRequest | CompareRequest | ResumeRequest], arguments: argparse.Namespace
) -> dict[str, Any]:
    """Return the arguments of a command that are named as a field of its request."""
    names = {field.name for field in fields(kind)}
    return {name: value for name, value in vars(arguments).items() if name in names}
