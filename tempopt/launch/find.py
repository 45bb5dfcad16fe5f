"""From what ``--launcher`` was given to a launcher; imports no engine but the one that is meant."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from tempopt.errors import SpecError, UsageError, unknown
from tempopt.launch.launcher import Launcher
from tempopt.workers.class_paths import load_class

_OURS = {
    "local": "tempopt.launch.local.LocalLauncher",
    "ray": "tempopt.launch.ray.RayLauncher",
    "slurm": "tempopt.launch.slurm.SlurmLauncher",
}
# What each imports that tempopt does not install by itself; the extra is called as the launcher is.
_ENGINES = {"ray": "ray", "slurm": "submitit"}


def make_launcher(given: str, options: Mapping[str, str]) -> Launcher:
    """Return the launcher that a name or an import path stands for.

    Args:
        given: ``local``, ``ray``, ``slurm``, or ``package.module:Class`` for one of your own.
        options: What ``--launch KEY=VALUE`` gave.

    Raises:
        UsageError: There is no such launcher, its module does not import, what it needs is not installed,
            or it refuses its options.
    """
    path = _OURS.get(given) or given.replace(":", ".")
    if given not in _OURS and ":" not in given:
        raise UsageError(unknown("launcher", given, _OURS, "For one of your own give package.module:Class."))
    try:
        # what is abstract stays so: whoever forgets a method is told by Python itself
        launcher = cast("type[Launcher]", load_class(path, base=Launcher, where="--launcher"))
        return launcher(options)
    except SpecError as error:
        raise _without_engine(given, error.__cause__) or error from error.__cause__
    except ImportError as error:
        raise _without_engine(given, error) or UsageError(f"--launcher: {error}") from error
    except TypeError as error:
        raise UsageError(f'--launcher: "{given}" cannot be made: {error}.') from error


def _without_engine(given: str, error: BaseException | None) -> UsageError | None:
    """Return the message for an engine that is not installed, None if that is not what is wrong."""
    engine = _ENGINES.get(given)
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if engine is None or missing is None or missing.partition(".")[0] != engine:
        return None
    return UsageError(
        f"The launcher {given} needs the package {engine}, which is not installed here. "
        f"Run: pip install 'tempopt[{given}]'"
    )
