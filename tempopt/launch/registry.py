"""From what ``--launcher`` was given to a launcher; imports no engine but the one that is meant."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from typing import cast

from tempopt.class_loading import load_class
from tempopt.errors import UsageError, install_command, unknown
from tempopt.launch.launcher import Launcher

_OURS = {
    "local": "tempopt.launch.local:LocalLauncher",
    "ray": "tempopt.launch.ray:RayLauncher",
    "slurm": "tempopt.launch.slurm:SlurmLauncher",
}
BUILT_IN = tuple(_OURS)
"""The launchers that come with tempopt, by name."""
# What each imports that tempopt does not install by itself; the extra is called as the launcher is.
_ENGINES = {"ray": "ray", "slurm": "submitit"}


def make_launcher(launcher_name: str, options: Mapping[str, str]) -> Launcher:
    """Return the launcher that a name or an import path stands for.

    Args:
        launcher_name: ``local``, ``ray``, ``slurm``, or ``package.module:Class`` for one of your own.
        options: What ``--launch KEY=VALUE`` gave.

    Raises:
        UsageError: There is no such launcher, its module does not import, what it needs is not installed,
            or it refuses its options.
    """
    if launcher_name not in _OURS and ":" not in launcher_name:
        raise UsageError(
            unknown("launcher", launcher_name, _OURS, "For one of your own give package.module:Class.")
        )
    try:
        return _class(launcher_name)(options)
    except ImportError as error:
        raise _without_engine(launcher_name, error) or UsageError(f"--launcher: {error}") from error
    except TypeError as error:
        raise UsageError(f'--launcher: "{launcher_name}" cannot be made: {error}.') from error


def _class(launcher_name: str) -> type[Launcher]:
    # what is abstract stays so: Python itself reports a missing method
    if launcher_name not in _OURS:
        return cast(
            "type[Launcher]", load_class(launcher_name.replace(":", "."), base=Launcher, where="--launcher")
        )
    # not from the current folder, as one's own is: no file there takes an engine's place
    built_in: type[Launcher] = pkgutil.resolve_name(_OURS[launcher_name])
    return built_in


def _without_engine(launcher_name: str, error: ImportError) -> UsageError | None:
    """Return the message for an engine that is not installed, None if that is not what is wrong."""
    engine = _ENGINES.get(launcher_name)
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if engine is None or missing is None or missing.partition(".")[0] != engine:
        return None
    return UsageError(
        f"The launcher {launcher_name} needs the package {engine}, which is not installed here. "
        f"Run: {install_command(launcher_name)}"
    )
