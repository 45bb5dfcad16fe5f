"""Make the launcher that ``--launcher`` names; imports only the engine of that launcher."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from typing import cast

from tempopt.class_loading import load_class
from tempopt.errors import UsageError, install_command, unknown
from tempopt.launch.launcher import Launcher

_BUILT_IN_PATHS = {
    "local": "tempopt.launch.local:LocalLauncher",
    "ray": "tempopt.launch.ray:RayLauncher",
    "slurm": "tempopt.launch.slurm:SlurmLauncher",
}
BUILT_IN = tuple(_BUILT_IN_PATHS)
"""The launchers that come with tempopt, by name."""
# The package that a launcher imports and an extra installs, which has the launcher's name.
_ENGINES = {"ray": "ray", "slurm": "submitit"}


def make_launcher(launcher_name: str, options: Mapping[str, str]) -> Launcher:
    """Return the launcher of a name or an import path.

    Args:
        launcher_name: ``local``, ``ray``, ``slurm``, or ``package.module:Class`` for a custom one.
        options: The options ``--launch KEY=VALUE``.

    Raises:
        UsageError: There is no such launcher, its module cannot be imported, its engine is not installed, or
            it refuses its options.
    """
    if launcher_name not in _BUILT_IN_PATHS and ":" not in launcher_name:
        raise UsageError(
            unknown(
                "launcher", launcher_name, _BUILT_IN_PATHS, "For a custom launcher give package.module:Class."
            )
        )
    try:
        return _load_launcher_class(launcher_name)(options)
    except ImportError as error:
        raise _build_missing_engine_error(launcher_name, error) or UsageError(
            f"--launcher: {error}"
        ) from error
    except TypeError as error:
        raise UsageError(f'--launcher: "{launcher_name}" cannot be made: {error}.') from error


def _load_launcher_class(launcher_name: str) -> type[Launcher]:
    # Python itself reports missing abstract methods
    if launcher_name not in _BUILT_IN_PATHS:
        return cast(
            "type[Launcher]", load_class(launcher_name.replace(":", "."), base=Launcher, where="--launcher")
        )
    # not searched in the current folder, unlike a custom one: no file there replaces an engine
    built_in: type[Launcher] = pkgutil.resolve_name(_BUILT_IN_PATHS[launcher_name])
    return built_in


def _build_missing_engine_error(launcher_name: str, error: ImportError) -> UsageError | None:
    """Return the error for an engine that is not installed, None if the cause is another one."""
    engine = _ENGINES.get(launcher_name)
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if engine is None or missing is None or missing.partition(".")[0] != engine:
        return None
    return UsageError(
        f"The launcher {launcher_name} needs the package {engine}, which is not installed here. "
        f"Run: {install_command(launcher_name)}"
    )
