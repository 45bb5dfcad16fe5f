"""Finds the attention modules that ask Hugging Face transformers for their attention function.

Knows what such a module and its configuration look like; what is put in place of the function is not
decided here. transformers need not be installed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor, nn

from tempopt.attention.attach.query_names import query_norm
from tempopt.attention.attach.query_rows import AS_TEMPERED_MODULE, Layers
from tempopt.errors import AttachError
from tempopt.temperature import EntropyParameters, SoftmaxNormaliser, TemperaturePlan

SETTING = "_attn_implementation_internal"
"""Where a configuration keeps the name of its implementation; its property would change parts of it too."""

IMPLEMENTATIONS = ("sdpa", "eager")
"""Names of the implementations that can be tempered."""

RECIPE = """\
attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention_forward)
output, weights = attend(self, query, key, value, attention_mask, scaling=self.scaling, dropout=dropout)"""
"""What a model of transformers has to write in place of a softmax of its own."""

_SOFT_CAPS = ("attn_logit_softcapping", "attn_logit_soft_cap")


@dataclass(frozen=True, slots=True)
class InterfaceLayer:
    """An attention module that asks transformers for its attention function.

    Args:
        name: Its name in the model, as in ``named_modules``.
        module: The module.
    """

    name: str
    module: nn.Module


def interface_layers(model: nn.Module, layers: Layers = "auto") -> list[InterfaceLayer]:
    """Return the attention modules that ask for their attention function, in depth order.

    Args:
        model: Any module; not changed.
        layers: ``"auto"`` for all, or patterns as in ``fnmatch``. A pattern takes a module that it matches,
            or one inside of which or around which it matches a module, as its query projection.
    """
    all_layers = [InterfaceLayer(name, module) for name, module in model.named_modules() if _asks(module)]
    if layers == "auto":
        return all_layers
    return [layer for layer in all_layers if any(_matches(layer, pattern) for pattern in layers)]


def normalises_query(layer: InterfaceLayer) -> bool:
    """Whether the query is normalised after its projection, which undoes a factor on its rows (QK-norm)."""
    return query_norm(layer.module) is not None


def _asks(module: nn.Module) -> bool:
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    return code is not None and "ALL_ATTENTION_FUNCTIONS" in code.co_names and config_of(module) is not None


def _matches(layer: InterfaceLayer, pattern: str) -> bool:
    parts = layer.name.split(".")
    ancestors = (".".join(parts[:end]) for end in range(1, len(parts) + 1))
    descendants = (f"{layer.name}.{name}" for name, _ in layer.module.named_modules() if name)
    return any(fnmatchcase(name, pattern) for name in (*ancestors, *descendants))


def config_of(module: nn.Module) -> Any:
    config = module.__dict__.get("config")
    return config if hasattr(config, "_attn_implementation") else None


def implementation_of(module: nn.Module) -> str | None:
    implementation: str | None = getattr(config_of(module), SETTING, None)
    return implementation


def check_implementation(layer: InterfaceLayer) -> None:
    implementation = implementation_of(layer.module)
    if implementation not in IMPLEMENTATIONS:
        raise AttachError(
            f'"{layer.name}" attends by "{implementation}"; a temperature can be put on '
            f"{' and '.join(IMPLEMENTATIONS)}. Call "
            'model.set_attn_implementation("sdpa") before attaching.'
        )
    if implementation == "eager" and getattr(config_of(layer.module), "reorder_and_upcast_attn", False):
        raise AttachError(
            f'"{layer.name}" computes its attention itself where reorder_and_upcast_attn is set, past the '
            'attention interface. Build the model without it, or attach with method="query_rows".'
        )


def own_attention(layer: InterfaceLayer) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """Return the function that an attention module would use if nothing was attached.

    Raises:
        AttachError: if it cannot be found.
    """
    implementation = implementation_of(layer.module)
    try:
        return attention_by(str(implementation), layer.module)
    except KeyError:
        raise AttachError(
            f'"{layer.name}" attends by "{implementation}", but where that is cannot be found: its file has '
            'no eager_attention_forward. Call model.set_attn_implementation("sdpa") before attaching, or '
            'attach with method="query_rows".'
        ) from None


def attention_by(implementation: str, module: nn.Module) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """Return the function that transformers has under a name for an attention module."""
    names = inspect.unwrap(type(module).forward).__globals__
    attention: Any = (
        names["eager_attention_forward"]
        if implementation == "eager"
        else names["ALL_ATTENTION_FUNCTIONS"][implementation]
    )
    return attention  # type: ignore[no-any-return]


def check_deliverable(
    layers: Sequence[InterfaceLayer], plan: TemperaturePlan, entropy: EntropyParameters
) -> None:
    """Refuse what the logits of these layers do not allow.

    Raises:
        AttachError: if an entropy term or another normaliser is wanted where logits are soft-capped, or an
            entropy term of another normaliser than softmax.
    """
    normaliser = plan.normaliser.name
    option = f'normaliser="{normaliser}"' if normaliser != SoftmaxNormaliser.name else ""
    if entropy.has_term:
        if option:
            raise AttachError(
                f"entropy_lambda={entropy.entropy_lambda!r} cannot be had with {option}: the entropy term is "
                "that of softmax, whose weights these are not. Give entropy_lambda=0.0, or "
                'normaliser="softmax".'
            )
        option = f"entropy_lambda={entropy.entropy_lambda!r}"
    for layer in layers if option else ():
        for name in _SOFT_CAPS:
            if getattr(config_of(layer.module), name, None) is not None:
                raise AttachError(
                    f'{option} cannot be had in "{layer.name}": its logits are capped ({name}) behind the '
                    "temperature, and what is computed beside its attention would be of others. Take "
                    f"{option} out, or {AS_TEMPERED_MODULE}."
                )
