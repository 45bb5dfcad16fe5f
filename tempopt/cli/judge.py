"""``tempopt judge``: a verdict on existing results."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from tempopt.cli import EXIT_FAILED, OUTCOME_CODES
from tempopt.service.judge import judge as judge_data


def judge(arguments: argparse.Namespace) -> int:
    """Compare the variants of a CSV file, and return the exit code of the outcome."""
    judgement = judge_data(
        Path(arguments.results), direction=arguments.direction, baseline=arguments.baseline
    )
    print(json.dumps(judgement.to_json(), indent=2, allow_nan=False) if arguments.json else judgement)
    comparison = judgement.comparison
    return OUTCOME_CODES[comparison.outcome] if comparison.has_verdict else EXIT_FAILED
