"""What a run's Trainer is given: tempopt's own defaults, and a spec's callbacks and plugins."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lightning import LightningModule
from lightning.fabric.plugins import ClusterEnvironment
from lightning.pytorch.callbacks import ModelCheckpoint

from tempopt.errors import SpecError
from tempopt.training.callbacks import TemperatureCallback
from tempopt.training.entropy_control import EntropyControl
from tempopt.training.planned_control import PlannedControl

# A person who wants a logger says so in the spec; the rest is the agent's business.
LEAN: dict[str, Any] = {
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "num_sanity_val_steps": 0,
    # the order of the data is ours, and so is the share that each rank gets of them
    "use_distributed_sampler": False,
}


def compiled(module: LightningModule, mode: str | None) -> dict[str, Any]:
    """Have the steps of a module compiled, unless ``mode`` is None; return what its Trainer should know."""
    if mode is None:
        return {}
    # what is imported here is nothing to all others
    from tempopt.training.compiling import compile_steps

    compile_steps(module, mode)
    # as in the validations of a training, whose graph the evaluations at its end then share
    return {"inference_mode": False}


def compile_faults(mode: str | None) -> list[str]:
    """Return what a person should know of the compilation."""
    if mode is None:
        return []
    from tempopt.training.compiling import faults

    return faults()


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def callbacks_given(value: Any, run: str) -> list[Any]:
    """Return the callbacks that a spec gives; a ModelCheckpoint writes into a folder that is the run's own.

    Args:
        value: ``trainer.callbacks``, made for this run alone.
        run: Name of the run, as in ``search-0003``.

    Raises:
        SpecError: One of them sets temperatures.
    """
    callbacks = _listed(value)
    for callback in callbacks:
        if isinstance(callback, TemperatureCallback):
            raise SpecError(
                "trainer.callbacks: tempopt adds a TemperatureCallback to every run itself. Take it out; the "
                "temperature that validation runs under is said by study.validate_at."
            )
        if isinstance(callback, ModelCheckpoint) and callback.dirpath is not None:
            # runs are trained side by side, and would replace each other's files
            callback.dirpath = f"{str(callback.dirpath).rstrip('/')}/{run}"
    refuse_control(callbacks)
    return callbacks


def refuse_control(callbacks: Iterable[Any], *, planned: bool = False) -> None:
    """Refuse what would set the temperature of the runs at temperature 1, too.

    Args:
        callbacks: Those of a run.
        planned: Whether the parameters of the run ask for control.

    Raises:
        SpecError: One of the callbacks does.
    """
    controls = [callback for callback in callbacks if isinstance(callback, EntropyControl)]
    if any(not (planned and isinstance(control, PlannedControl)) for control in controls):
        raise SpecError(
            "EntropyControl sets the temperature of every run, those at temperature 1 that the others are "
            "measured against too. Take it out of trainer.callbacks, or of the module's "
            "configure_callbacks, and search the parameter entropy_control, which is none at temperature 1."
        )


def plugins_given(value: Any) -> list[Any]:
    """Return the plugins that a spec gives.

    Raises:
        SpecError: One of them says where processes are.
    """
    plugins = _listed(value)
    for plugin in plugins:
        if isinstance(plugin, ClusterEnvironment):
            raise SpecError(
                f"trainer.plugins: {type(plugin).__name__} says which processes train together, and tempopt "
                "starts those itself, as many as trainer.devices says. Take it out."
            )
    return plugins
