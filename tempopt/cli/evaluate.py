"""``tempopt evaluate``: the best temperatures at inference, and generation, of trained weights."""

from __future__ import annotations

import argparse
import json
import sys

from tempopt.cli import DONE
from tempopt.evaluation.evaluate import evaluate as evaluate_weights
from tempopt.store.urls import shown


def evaluate(arguments: argparse.Namespace) -> int:
    """Evaluate trained weights, or continue to, and print what was found."""
    result = evaluate_weights(
        arguments.spec,
        arguments.weights,
        storage=arguments.url,
        trials=arguments.trials,
        name=arguments.name,
        overrides=arguments.set,
        on_progress=lambda line: print(line, file=sys.stderr),
    )
    if arguments.json:
        print(json.dumps(result.to_json(), indent=2, allow_nan=False))
        return DONE
    print("", *result.lines(), "", sep="\n")
    print(f'The evaluations are the trials of the Optuna study "{result.name}" in {shown(arguments.url)}.')
    return DONE
