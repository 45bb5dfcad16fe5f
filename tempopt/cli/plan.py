"""``tempopt plan``: how many runs a study takes, for how long, and what it can show, before it is begun."""

from __future__ import annotations

import argparse
import json

from tempopt.cli import EXIT_OK
from tempopt.cli.specs import read_spec


def plan(arguments: argparse.Namespace) -> int:
    """Print the forecast of a study; nothing is written."""
    spec = read_spec(arguments.spec, arguments.set)
    from tempopt.service import studies  # loads Optuna, which a spec that is refused does not need

    forecast = studies.plan(
        spec,
        storage=arguments.url,
        workers=arguments.workers,
        trials=arguments.trials,
        earlier=arguments.earlier,
        run_hours=arguments.run_hours,
    )
    if arguments.json:
        print(json.dumps(forecast.to_json(), indent=2))
        return EXIT_OK
    from tempopt.cli.plan_text import print_forecast

    print_forecast(forecast)
    return EXIT_OK
