"""Learned temperatures as modules that return 1 / tau; attention.py applies it.

Each returns a tensor that broadcasts to (B, H, Q, 1), in float32 or better. Multiply it by the plan's 1 / tau
and pass the product to :func:`tempopt.attention.functional.attention.tempered_attention` as
``inverse_temperature``: the learned temperature is then relative to the plan, and a schedule still acts on
it. Only QK-norm returns queries and keys; the plan's 1 / tau is then passed unchanged.

Shape suffixes: B batch, H heads, Q queries, K keys, D head dimension, N tokens, M model dimension.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tempopt.attention.functional.logits import to_wide_type, visible_keys
from tempopt.errors import SpecError, UsageError
from tempopt.temperature.length import MIN_KEYS
from tempopt.temperature.ranges import HIGHEST, LOWEST


class LearnedTemperature(nn.Module):
    """A module with a temperature among its parameters; subclasses are final.

    Attributes:
        no_decay: Names of the parameters that must be exempt from weight decay, since 0 is an ordinary
            temperature for them and not a small one. :func:`parameter_groups` uses it.
    """

    no_decay: ClassVar[frozenset[str]]


@final
class HeadTemperature(LearnedTemperature):
    """One learned temperature per head, stored as its logarithm: positive and scale-free.

    tau_h = exp(log_temperature_h). With the default ``init`` it starts exactly at the plan's temperature.
    Known from vision transformers for small data (LSA: Lee, Lee & Song 2021), which also masks the diagonal.

    Args:
        num_heads: Number of heads, >= 1.
        init: tau at the start, dimensionless, from 1e-6 to 1e6; one number, or one per head.

    Raises:
        SpecError: ``num_heads`` or ``init`` is out of range, or there is not one number per head.
    """

    no_decay = frozenset({"log_temperature"})

    def __init__(self, num_heads: int, *, init: float | Sequence[float] = 1.0) -> None:
        super().__init__()
        self.log_temperature = nn.Parameter(_to_logarithms("init", init, num_heads))

    def forward(self) -> Tensor:
        """Return 1 / tau, (H, 1, 1)."""
        return _reshape_per_head(self.log_temperature).neg().exp()


@final
class ConditionalTemperature(LearnedTemperature):
    """A temperature per token and head, computed from the features of the token.

    tau = lowest + softplus(f(x) + softplus^-1(init - lowest)), where f is a network with one hidden layer
    whose last layer starts at zero: tau starts exactly at ``init`` and never falls below ``lowest``. Since a
    token's temperature depends on no other token, it depends neither on future tokens nor on padding, and is
    the same with and without a cache of keys. The form in tutorials pools over the tokens, which breaks all
    three.

    Args:
        d_model: Number M of features of a token, >= 1.
        num_heads: Number of heads, >= 1.
        d_hidden: Width of the hidden layer, >= 1.
        init: tau at the start, relative to the plan's, from 1e-6 to 1e6.
        lowest: Lower bound of tau, positive and less than ``init``.

    Raises:
        SpecError: A number is out of range.
    """

    no_decay = frozenset({"hidden.bias", "last.bias"})

    def __init__(
        self, d_model: int, num_heads: int, *, d_hidden: int = 32, init: float = 1.0, lowest: float = 0.1
    ) -> None:
        super().__init__()
        for name, count in (("d_model", d_model), ("num_heads", num_heads), ("d_hidden", d_hidden)):
            check_count(name, count)
        check_scale("init", init)
        check_scale("lowest", lowest)
        if lowest >= init:
            raise SpecError(
                f"lowest={lowest!r} is not below init={init!r}, where tau is to start. Give a lower one."
            )
        self.init = init
        self.lowest = lowest
        self.hidden = nn.Linear(d_model, d_hidden)
        self.last = nn.Linear(d_hidden, num_heads)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)

    def forward(self, x_BNM: Tensor) -> Tensor:
        """Return 1 / tau of each token, (B, H, N, 1), for the query of the token.

        Args:
            x_BNM: Features from which the query is projected.
        """
        moved_BNH = self.last(F.gelu(self.hidden(x_BNM)))
        moved_BNH = to_wide_type(moved_BNH)
        start = _softplus_inverse(self.init - self.lowest)
        # The difference is exactly 0 before training, unlike softplus of its inverse; a constant of another
        # shape would be rounded by another kernel.
        rise_BNH = F.softplus(moved_BNH + start) - F.softplus(torch.zeros_like(moved_BNH) + start)
        tau_BNH = (self.init + rise_BNH).clamp(min=self.lowest)
        return tau_BNH.reciprocal().transpose(1, 2).unsqueeze(-1)


@final
class ScalableSoftmax(LearnedTemperature):
    """SSMax: 1 / tau_i = s_h ln n_i, with n_i the keys that query i sees and s_h learned per head.

    With ``bias`` it is s_h ln n_i + b_h. Scale and 1 / tau are positive for every n >= 2, since the
    logarithms of the scale and of the value at 2 keys are learned; a query that sees one key attends to it at
    any temperature, and counts as 2 keys. After Nakanishi, "Scalable-Softmax Is Superior for Attention"
    (2025), where s and b are not bounded.

    Args:
        num_heads: Number of heads, >= 1.
        init_scale: s at the start, from 1e-6 to 1e6; one number, or one per head. With 1 / ln n0 a query that
            sees n0 keys starts at the plan's temperature.
        bias: Whether b is learned as well, starting at 0.

    Raises:
        SpecError: A number is out of range, or there is not one per head.
    """

    no_decay = frozenset({"log_scale", "log_level"})

    def __init__(self, num_heads: int, *, init_scale: float | Sequence[float], bias: bool = False) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(_to_logarithms("init_scale", init_scale, num_heads))
        level = self.log_scale.detach() + math.log(math.log(MIN_KEYS))
        self.log_level = nn.Parameter(level) if bias else None

    @property
    def scale(self) -> Tensor:
        """The scale s of each head, (H,)."""
        return to_wide_type(self.log_scale).exp()

    @property
    def bias(self) -> Tensor:
        """The bias b of each head, (H,); zeros if it is not learned."""
        if self.log_level is None:
            return torch.zeros_like(self.scale)
        return to_wide_type(self.log_level).exp() - self.scale * math.log(MIN_KEYS)

    def forward(
        self, q_len: int, k_len: int, *, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """Return 1 / tau of each head and query, broadcasting to (B, H, Q, 1).

        Args:
            q_len: Number of queries.
            k_len: Number of keys.
            attn_mask: Boolean or floating mask that broadcasts to (B, H, Q, K), or None.
            is_causal: Whether query i sees the keys 0 to i only, in addition to ``attn_mask``.
        """
        num_keys = visible_keys(q_len, k_len, attn_mask, is_causal, device=self.log_scale.device)
        log_scale_H11 = _reshape_per_head(self.log_scale)
        log_keys = num_keys.unsqueeze(-1).clamp(min=MIN_KEYS).to(log_scale_H11.dtype).log()
        if self.log_level is None:
            return log_scale_H11.exp() * log_keys
        return log_scale_H11.exp() * (log_keys - math.log(MIN_KEYS)) + _reshape_per_head(self.log_level).exp()


@final
class QueryKeyNorm(LearnedTemperature):
    """Queries and keys of length 1, and a learned gain per head: logits g_h cos(q, k).

    The length of queries and keys can then no longer absorb a temperature. Attend to the result with
    ``scale=1.0``; the plan's 1 / tau multiplies the gain. After Henry et al., "Query-Key Normalization for
    Transformers" (2020), which has one gain for all heads.

    Args:
        num_heads: Number of heads of the queries, >= 1; keys may have fewer.
        init_gain: Gain at the start, from 1e-6 to 1e6; one number, or one per head.
            :func:`qk_norm_init_scale` gives the paper's; with the square root of the head dimension the
            logits of random vectors have the variance of plain attention.

    Raises:
        SpecError: A number is out of range, or there is not one per head.
    """

    no_decay = frozenset({"log_gain"})

    def __init__(self, num_heads: int, *, init_gain: float | Sequence[float]) -> None:
        super().__init__()
        self.log_gain = nn.Parameter(_to_logarithms("init_gain", init_gain, num_heads))

    def forward(self, q_BHQD: Tensor, k_BHKD: Tensor) -> tuple[Tensor, Tensor]:
        """Return the queries with length g_h and the keys with length 1, in their original types.

        A zero vector stays zero.

        Args:
            q_BHQD: Queries without temperature, which the normalisation would cancel.
            k_BHKD: Keys.
        """
        q_hat, k_hat = _l2_normalise(q_BHQD), _l2_normalise(k_BHKD)
        return (q_hat * _reshape_per_head(self.log_gain).exp()).to(q_BHQD.dtype), k_hat.to(k_BHKD.dtype)


def qk_norm_init_scale(length: int) -> float:
    """Return log2(L^2 - L), the gain at which Henry et al. (2020) let QK-norm start.

    Args:
        length: L, the 97.5th percentile of the training sequences' lengths, >= 2.

    Raises:
        SpecError: The length is less than 2.
    """
    check_count("length", length, min_value=2)
    return math.log2(length * length - length)


def no_decay_names(model: nn.Module) -> set[str]:
    """Return the names of a model's learned temperatures, as in ``named_parameters``.

    For code that groups parameters by name, such as timm with ``no_weight_decay()`` of a model.

    Args:
        model: Any module.
    """
    return {
        f"{prefix}.{name}" if prefix else name
        for prefix, module in model.named_modules()
        if isinstance(module, LearnedTemperature)
        for name, _ in module.named_parameters()
        if name in module.no_decay
    }


def parameter_groups(
    model: nn.Module, *, weight_decay: float, temperature_lr: float | None = None
) -> list[dict[str, Any]]:
    """Return two parameter groups for an optimizer: learned temperatures without decay, and all others.

    Args:
        model: Any module.
        weight_decay: Weight decay of the others, >= 0.
        temperature_lr: Learning rate of the temperatures; None for that of the optimizer.

    Raises:
        UsageError: The model has no learned temperature.
    """
    names = no_decay_names(model)
    if not names:
        raise UsageError(
            "The model has no learned temperature. Put a module of tempopt.attention into it, as "
            "HeadTemperature, or give model.parameters() to the optimizer."
        )
    learned_parameters: list[nn.Parameter] = []
    other_parameters: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        (learned_parameters if name in names else other_parameters).append(parameter)
    temperature_group: dict[str, Any] = {"params": learned_parameters, "weight_decay": 0.0}
    if temperature_lr is not None:
        temperature_group["lr"] = temperature_lr
    return [{"params": other_parameters, "weight_decay": weight_decay}, temperature_group]


def check_scale(name: str, value: object) -> None:
    """Refuse a value that is not a temperature or a factor on one.

    Raises:
        SpecError: The value is not a number from 1e-6 to 1e6.
    """
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not (number and LOWEST <= value <= HIGHEST):  # type: ignore[operator]
        raise SpecError(f"{name}={value!r} is out of range. Give a number from {LOWEST:g} to {HIGHEST:g}.")


def check_count(name: str, value: object, *, min_value: int = 1) -> None:
    """Refuse a value that is not a count.

    Raises:
        SpecError: The value is not an integer of at least ``min_value``.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < min_value:
        raise SpecError(f"{name}={value!r} is out of range. Give a whole number of at least {min_value}.")


def _to_logarithms(name: str, value: float | Sequence[float], num_heads: int) -> Tensor:
    check_count("num_heads", num_heads)
    numbers = list(value) if isinstance(value, Sequence) else [value] * num_heads
    if len(numbers) != num_heads:
        raise SpecError(
            f"{name} has {len(numbers)} numbers for {num_heads} heads. Give one, or one per head."
        )
    for number in numbers:
        check_scale(name, number)
    return torch.tensor([math.log(number) for number in numbers], dtype=torch.float32)


def _reshape_per_head(x_H: Tensor) -> Tensor:
    return to_wide_type(x_H).reshape(-1, 1, 1)


def _l2_normalise(x: Tensor) -> Tensor:
    x = to_wide_type(x)
    length: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    # Adding a small number instead would give a gradient of its inverse, which overflows half precision.
    return x / length.masked_fill(length == 0.0, 1.0)


def _softplus_inverse(value: float) -> float:
    # ln(e^y - 1), without overflow for large y and without cancellation for small y.
    return value + math.log(-math.expm1(-value))
