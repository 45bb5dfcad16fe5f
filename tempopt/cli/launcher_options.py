"""The launcher on the command line, with its options; does not load the launcher."""

from __future__ import annotations

import argparse

from tempopt.errors import UsageError
from tempopt.launch.job_status import LauncherSelection


def launch_options(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the options of ``--launch`` and ``--address``.

    Raises:
        UsageError: A key was given more than once.
    """
    options = dict(arguments.launch)
    if len(options) < len(arguments.launch):
        raise UsageError("--launch was given the same key more than once. Give each key once.")
    if arguments.address is not None:
        if "address" in options:
            raise UsageError("--address and --launch address=... were both given. Give one of them.")
        options["address"] = arguments.address
    return options


def selected_launcher(arguments: argparse.Namespace) -> LauncherSelection:
    """Return the launcher whose jobs a command queries; an address without a launcher means Ray.

    Raises:
        UsageError: There are options without a launcher.
    """
    options = launch_options(arguments)
    launcher = arguments.launcher or ("ray" if options.keys() == {"address"} else None)
    if options and launcher is None:
        raise UsageError("--launch is for a launcher. Give one, as in --launcher slurm.")
    return LauncherSelection(launcher=launcher, options=options)
