"""Finds models that scale their attention logits by the number of keys themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import nn

# Of modules, of configurations of transformers, and of the rotary embeddings that these describe.
_NAMES = (
    "attn_temperature_tuning",
    "llama_4_scaling_beta",
    "use_logn_attn",
    "attention_scaling",
    "attention_factor",
    "mscale",
    "mscale_all_dim",
)


def length_scaling_note(model: nn.Module) -> str | None:
    """Return a note on a model that scales its logits by length itself; None if it does not."""
    names = ", ".join(dict.fromkeys(_own_scalings(model)))
    if not names:
        return None
    return f"The model scales its logits by length itself ({names}). length_scaling comes on top of that."


def _own_scalings(model: nn.Module) -> Iterator[str]:
    for module in model.modules():
        config = getattr(module, "config", None)
        rotary = (getattr(config, name, None) for name in ("rope_parameters", "rope_scaling"))
        for source in (module, config, *rotary):
            for name in _NAMES:
                value = source.get(name) if isinstance(source, Mapping) else getattr(source, name, None)
                if value is True or (isinstance(value, int | float) and value not in (0, 1)):
                    yield f"{name}={value:g}"
