"""``tempopt evaluate``: the best temperatures and generation parameters of trained weights."""

from __future__ import annotations

import argparse
import json
import sys

from tempopt.cli import EXIT_INTERRUPTED
from tempopt.service.evaluation.evaluate import evaluate as evaluate_weights
from tempopt.storage.urls import masked_url


def evaluate(arguments: argparse.Namespace) -> int | None:
    """Evaluate trained weights, or continue an evaluation, and print the result."""
    try:
        result = evaluate_weights(
            arguments.spec,
            arguments.weights,
            storage=arguments.url,
            trials=arguments.trials,
            name=arguments.name,
            overrides=arguments.set,
            on_progress=lambda line: print(line, file=sys.stderr),
        )
    except KeyboardInterrupt:
        print(
            "\nInterrupted. Every evaluation that ended is saved. To continue, run the same command.",
            file=sys.stderr,
        )
        return EXIT_INTERRUPTED
    if arguments.json:
        print(json.dumps(result.to_json(), indent=2, allow_nan=False))
        return None
    print("", *result.lines(), "", sep="\n")
    print(
        f'The evaluations are the trials of the Optuna study "{result.name}" in {masked_url(arguments.url)}.'
    )
    return None
