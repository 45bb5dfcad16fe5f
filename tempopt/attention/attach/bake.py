"""Writes attached temperatures into the weights of a model, so that it keeps them without tempopt.

Which weights those are is found in ``tempopt.attention.attach.scalings``, and how they are marked is decided
in ``tempopt.attention.attach.baked_marker``.
"""

from __future__ import annotations

from typing import Literal

from torch import nn

from tempopt.attention.attach.attachment import detach
from tempopt.attention.attach.baked_marker import mark, mark_configurations
from tempopt.attention.attach.scalings import Example, scalings, write


def bake(
    model: nn.Module, *, at: Literal["final", "current"] = "final", example: Example = "auto"
) -> dict[str, float]:
    """Write the attached temperatures into the weights of a model, and take the attachment off.

    What makes the query is multiplied by 1/temperature: the rows of its projection, or weight and bias of the
    norm behind it (QK-norm). Attached by
    ``query_rows``, the outputs are bit for bit what they were. By ``attention_interface`` they are for powers
    of two, and else up to rounding. State dicts, checkpoints and ``save_pretrained`` folders of the model
    then load in a process without tempopt.

    The weights are marked, in state dicts as metadata and in configurations of transformers as
    ``tempopt_baked``, so that :func:`tempopt.attach` refuses them. To save the module as a whole
    (``torch.save(model)``) keeps a reference to tempopt: save its state dict.

    Args:
        model: A model with a temperature attached, or a module around it.
        at: ``final`` for the temperatures at the end of the plan, which a trained model is evaluated with;
            ``current`` for those in force.
        example: A forward that proves which weights make the query, where the temperature is attached by
            ``attention_interface``. ``auto`` takes inputs that the model or a module in it names itself, as
            :func:`tempopt.attach` does; None goes by names alone. By query rows it is not needed.

    Returns:
        The temperature by name of each layer.

    Raises:
        AttachError: if no temperature is attached, or weights cannot hold it: head patterns, local heads,
            length scaling, other normalisers than softmax, norms without a weight, shared, computed and
            quantised parameters. The message says what to do instead. The model is then as it was.
    """
    changes = scalings(model, at=at, example=example)
    detach(model)
    write(changes)
    change_of_module = {id(change.module): change for change in changes}
    for change in change_of_module.values():
        mark(change.module, change.temperature)
    temperatures = {change.layer: change.temperature for change in changes}
    mark_configurations(model, temperatures.values())
    return temperatures
