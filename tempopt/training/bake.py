"""Writes a temperature into initial query weights: the arm that asks whether no more than that was needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import lightning as L
from torch import Tensor

from tempopt.attention.attach.outputs import close, tensors
from tempopt.attention.attach.query_rows import query_rows
from tempopt.attention.attach.scalings import Scaling, of_rows, scalings, write, written
from tempopt.errors import AttachError
from tempopt.temperature import TemperatureParameters
from tempopt.training.callbacks import Tempered
from tempopt.training.module import TemperedModule

# Numbers of one query that are compared.
_KEPT = 2**16


def bake_initial(
    module: L.LightningModule,
    tempered: Tempered,
    parameters: Mapping[str, Any],
    *,
    layers: Sequence[str] | str,
) -> None:
    """Multiply the plan at step 0 into what makes the queries of each layer.

    Args:
        module: Whose weights they are: a TemperedModule, or one with a temperature attached, which stays.
        tempered: Its layers.
        parameters: Temperature parameters of the plan.
        layers: Layers of a TemperedModule: patterns, or ``auto``.

    Raises:
        AttachError: There are not as many query projections as layers, or they cannot hold a temperature.
    """
    plan = TemperatureParameters.from_mapping(parameters).plan(len(tempered.layers))
    temperatures = plan.temperatures(0.0)
    tells = isinstance(module, TemperedModule)
    write(_of_projections(module, temperatures, layers) if tells else scalings(module, at=temperatures))


def prove_baked(
    module: TemperedModule, *, evaluate: Callable[[], object], layers: Sequence[str] | str = "auto"
) -> None:
    """Prove that a temperature in the query weights of a TemperedModule is one of its attention.

    With the weights of each layer divided by a temperature, and what :meth:`TemperedModule.attend` is given
    multiplied by it, all is as before, and each layer is given its queries divided by the temperature. A norm
    behind the projection (QK-norm) undoes it.

    Args:
        module: The module; afterwards as it was.
        evaluate: Runs it on the same data each time, as an evaluation without dropout.
        layers: Layers: patterns, or ``auto``.

    Raises:
        AttachError: A layer is given other queries, or there are not as many projections as layers.
    """
    # powers of 2 do not round, and neighbours that differ tell which projection is which layer's
    temperatures = [2.0 ** (1 + layer % 3) for layer in range(module.num_layers)]
    changes = _of_projections(module, temperatures, layers)
    plain = _queries(module, evaluate, [1.0] * module.num_layers)
    with written(changes):
        baked = _queries(module, evaluate, temperatures)
    for layer in sorted(plain):
        if not close([temperatures[layer] * each for each in baked.get(layer, [])], plain[layer]):
            raise AttachError(
                f"A temperature in query weights of {type(module).__name__} does not reach layer {layer}: "
                "self.attend is not given queries that are divided by it. They may be normalised behind the "
                "projection (QK-norm), which undoes any factor, or be made by other weights than those of "
                f"{', '.join(dict.fromkeys(each.layer for each in changes))}."
            )


def _queries(
    module: TemperedModule, evaluate: Callable[[], object], factors: Sequence[float]
) -> dict[int, list[Tensor]]:
    """Return what each layer is given as queries, which is then multiplied by a factor."""
    found: dict[int, list[Tensor]] = {}
    attend, own = module.attend, module.__dict__.get("attend")

    def recording(q_BHQD: Tensor, *args: Any, layer: int, **more: Any) -> Tensor:
        found.setdefault(layer, []).extend(tensors(q_BHQD, _KEPT))
        return attend(q_BHQD * factors[layer], *args, layer=layer, **more)

    module.__dict__["attend"] = recording
    try:
        evaluate()
    finally:
        del module.__dict__["attend"]
        if own is not None:
            module.__dict__["attend"] = own
    return found


def _of_projections(
    module: L.LightningModule, temperatures: Sequence[float], layers: Sequence[str] | str
) -> list[Scaling]:
    rows = query_rows(module, layers)
    if len(rows) != len(temperatures):
        raise AttachError(
            f"{type(module).__name__} has {len(temperatures)} tempered layers, but query "
            f"projections were found in {[row.name for row in rows]}; an initial temperature cannot be "
            "baked into their weights."
        )
    return [
        scaling for row, each in zip(rows, temperatures, strict=True) for scaling in of_rows(row, 1.0 / each)
    ]
