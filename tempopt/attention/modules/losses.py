"""Losses with an output temperature, which divides the logits of a loss instead of those of attention.

Independent of Lightning; the training code sets the progress of an :class:`OutputTemperature`.

A temperature T changes the size of the gradient as well as its shape: the gradient of cross-entropy of z / T
is (p - y) / T, so annealing T also anneals the learning rate. ``keep_gradient`` multiplies the loss by T, so
that the gradient is p - y at every temperature. The value of the loss is then T times the cross-entropy:
compare losses at different temperatures by a metric without temperature only.

Shape suffixes: N examples, C classes, E features.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Self, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tempopt.attention.functional.logits import to_wide_type
from tempopt.attention.modules.learned import LearnedTemperature, check_scale
from tempopt.errors import SpecError, UsageError
from tempopt.temperature.ranges import HIGHEST, LOWEST
from tempopt.temperature.schedules import Schedule

_REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": torch.mean,
    "sum": torch.sum,
    "none": lambda losses: losses,
}


@final
class OutputTemperature(nn.Module):
    """A schedule's temperature as a tensor, so that one compiled graph serves all of training.

    It is not part of the state dict: set the progress after a resume. Its type is float32 or better for any
    type of the model. Contrastive losses with a cosine that falls and rises (Kukleva et al. 2023) use
    :class:`tempopt.temperature.Cyclic`.

    Args:
        schedule: Any schedule of :mod:`tempopt.temperature`.

    Attributes:
        schedule: The given schedule.
        progress: The training progress, in [0, 1], whose temperature is set.
        temperature: The temperature, 0-d.
    """

    temperature: Tensor

    def __init__(self, schedule: Schedule) -> None:
        super().__init__()
        self.schedule = schedule
        self.register_buffer("temperature", torch.ones((), dtype=torch.float32), persistent=False)
        self.set_progress(0.0)

    def set_progress(self, progress: float) -> None:
        """Set the schedule's temperature at ``progress`` in [0, 1], in place.

        Call it before a forward pass, not between a forward pass and its backward pass.

        Raises:
            UsageError: The progress is outside [0, 1].
        """
        temperature = self.schedule(progress)
        with torch.no_grad():
            self.temperature.fill_(temperature)
        self.progress = progress

    def forward(self) -> Tensor:
        """Return the temperature, 0-d."""
        return self.temperature

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        # converting the weights must not round the temperature
        self.temperature = to_wide_type(self.temperature)
        self.set_progress(self.progress)
        return self


@final
class LearnedOutputTemperature(LearnedTemperature):
    """A learned temperature of a loss, exp(log_temperature), between two bounds.

    In training the parameter itself is clamped before it is used, as CLIP (Radford et al. 2021) does after
    each step: beyond a bound it would have no gradient and never return. The defaults are CLIP's.

    Args:
        init: Temperature at the start, from ``lowest`` to ``highest``.
        lowest: Lower bound, >= 1e-6.
        highest: Upper bound, <= 1e6.

    Raises:
        SpecError: A number is out of range, or they are not in order.
    """

    no_decay = frozenset({"log_temperature"})

    def __init__(self, *, init: float = 0.07, lowest: float = 0.01, highest: float = 1.0) -> None:
        super().__init__()
        for name, value in (("init", init), ("lowest", lowest), ("highest", highest)):
            check_scale(name, value)
        if not lowest <= init <= highest:
            raise SpecError(
                f"init={init!r} is not between lowest={lowest!r} and highest={highest!r}. Give one that is."
            )
        self.lowest = lowest
        self.highest = highest
        self.log_temperature = nn.Parameter(torch.tensor(math.log(init), dtype=torch.float32))

    def forward(self) -> Tensor:
        """Return the temperature, 0-d."""
        low, high = math.log(self.lowest), math.log(self.highest)
        if self.training:
            with torch.no_grad():
                self.log_temperature.clamp_(low, high)
        # In training not clamped out of place: its backward would fail after the next forward's in-place
        # clamp.
        log_temperature = self.log_temperature if self.training else self.log_temperature.clamp(low, high)
        return to_wide_type(log_temperature).exp()


def tempered_cross_entropy(
    logits: Tensor,
    target: Tensor,
    *,
    temperature: Tensor | float,
    keep_gradient: bool = True,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> Tensor:
    """Return the cross-entropy of softmax(logits / T), in float32 or better.

    At T = 1 it equals ``torch.nn.functional.cross_entropy`` to the last bit. Smoothed targets bound what the
    logits gain by growing, and so does a high T, so their effects overlap.

    Args:
        logits: (N, C), (C) or (N, C, ...), as for torch's.
        target: Class numbers or probabilities, as for torch's.
        temperature: T, positive; a number, or a tensor of one element.
        keep_gradient: Whether the loss is multiplied by T, so that annealing T does not anneal the learning
            rate. The factor is a constant of the differentiation, also where T is learned.
        weight: Weight of each class, (C), or None.
        ignore_index: Target class that is ignored.
        label_smoothing: Share of the uniform distribution in the targets, in [0, 1].
        reduction: ``mean``, ``sum`` or ``none``.

    Raises:
        SpecError: A temperature given as a number is not from 1e-6 to 1e6.
        UsageError: A temperature given as a tensor has more than one element.
    """
    _check_temperature(temperature)
    tempered_logits = _divide_by_temperature(logits, temperature)
    loss = F.cross_entropy(
        tempered_logits,
        target,
        weight=None if weight is None else weight.to(tempered_logits.dtype),
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        reduction=reduction,
    )
    return loss * _detach_temperature(temperature) if keep_gradient else loss


def distillation_loss(
    student: Tensor,
    teacher: Tensor,
    *,
    temperature: Tensor | float,
    target: Tensor | None = None,
    mix: float = 1.0,
    reduction: str = "mean",
) -> Tensor:
    """Return mix T^2 KL(teacher at T || student at T) + (1 - mix) cross-entropy(student at 1, target).

    The factor T^2 keeps the size of the first term's gradient constant as T changes, for T large compared
    with the logits (Hinton, Vinyals & Dean 2015). It is the KL divergence instead of the cross-entropy with
    the teacher: the gradients are equal, and it is 0 where student and teacher agree.

    Args:
        student: Logits (N, C), (C) or (N, C, ...).
        teacher: Logits of the same shape, without gradient. A class that is minus infinity in both is
            ignored.
        temperature: T, positive; a number, or a tensor of one element.
        target: True classes, as for torch's cross-entropy; None if ``mix`` is 1.
        mix: Share of the first term, in [0, 1].
        reduction: ``mean`` over the examples (and positions), ``sum`` or ``none``.

    Raises:
        SpecError: ``mix``, ``reduction`` or a temperature given as a number is not allowed.
        UsageError: The shapes differ, or ``target`` is missing or would have no effect.
    """
    _check_temperature(temperature)
    _check_distillation(student, teacher, target, mix, reduction)
    classes = 0 if student.ndim == 1 else 1
    log_student = _divide_by_temperature(student, temperature).log_softmax(dim=classes)
    log_teacher = _divide_by_temperature(teacher.detach(), temperature).log_softmax(dim=classes)
    pointwise_kl = F.kl_div(log_student, log_teacher, reduction="none", log_target=True)
    # 0 ln 0 is 0
    divergence = pointwise_kl.masked_fill(log_teacher == -math.inf, 0.0).sum(dim=classes)
    soft = _REDUCTIONS[reduction](divergence) * _detach_temperature(temperature) ** 2
    if target is None:
        return soft
    hard = F.cross_entropy(_divide_by_temperature(student, 1.0), target, reduction=reduction)
    return mix * soft + (1.0 - mix) * hard


def contrastive_loss(
    a_NE: Tensor, b_NE: Tensor, *, temperature: Tensor | float, keep_gradient: bool = False
) -> Tensor:
    """Return the symmetric InfoNCE loss of N pairs: each a has to identify its b among all, and vice versa.

    The mean of the cross-entropies along rows and along columns of cos(a_i, b_j) / T, as in CLIP (Radford et
    al. 2021; van den Oord et al. 2018).

    Args:
        a_NE: One side of the pairs; it is normalised to length 1.
        b_NE: The other side, in the same order.
        temperature: T, positive; a number, or a tensor of one element, as from :class:`OutputTemperature` or
            :class:`LearnedOutputTemperature`.
        keep_gradient: Whether the loss is multiplied by T, as for :func:`tempered_cross_entropy`; not usual
            here, except in MoCo v3.

    Raises:
        SpecError: A temperature given as a number is not from 1e-6 to 1e6.
        UsageError: The sides are not two matrices of the same shape.
    """
    _check_temperature(temperature)
    if a_NE.ndim != 2 or a_NE.shape != b_NE.shape:
        raise UsageError(
            f"a has shape {tuple(a_NE.shape)} and b {tuple(b_NE.shape)}; allowed are two matrices of one "
            "shape, (pairs, features). Pair them up and flatten other dimensions."
        )
    a_NE, b_NE = (F.normalize(to_wide_type(features_NE), dim=-1) for features_NE in (a_NE, b_NE))
    with torch.autocast(a_NE.device.type, enabled=False):
        logits_NN = _divide_by_temperature(a_NE @ b_NE.T, temperature)
    own_N = torch.arange(len(logits_NN), device=logits_NN.device)
    loss = (F.cross_entropy(logits_NN, own_N) + F.cross_entropy(logits_NN.T, own_N)) / 2.0
    return loss * _detach_temperature(temperature) if keep_gradient else loss


def calibrated_temperature(logits_NC: Tensor, target_N: Tensor) -> float:
    """Return the temperature that maximises the likelihood of held-out examples.

    The minimum of the mean negative log-likelihood of softmax(logits / T), which is convex in 1 / T and has
    at most one; found as the root of its derivative E_p[z] - z_y, in float64. It changes no prediction, only
    the confidence (Guo et al. 2017).

    Args:
        logits_NC: Finite logits of examples that were not trained on.
        target_N: Their true classes, from 0 to C - 1.

    Raises:
        UsageError: Shapes or values are invalid, or no temperature from 1e-6 to 1e6 is best: none is low
            enough if every example is classified correctly, none is high enough if the logits do not predict
            the classes.
    """
    from scipy.optimize import brentq

    _check_calibration(logits_NC, target_N)
    logits = logits_NC.detach().double()
    true_logits = logits.gather(1, target_N.unsqueeze(1)).squeeze(1)

    def slope(log_temperature: float) -> float:
        """Return the derivative of the mean negative log-likelihood by 1 / T, which rises with 1 / T."""
        weights = (logits * math.exp(-log_temperature)).softmax(dim=1)
        return float(((weights * logits).sum(dim=1) - true_logits).mean())

    low, high = math.log(LOWEST), math.log(HIGHEST)
    if slope(low) <= 0.0 or slope(high) >= 0.0:
        reason = (
            "the logits tell nothing of the classes, or the contrary"
            if slope(high) >= 0.0
            else "every example is classified rightly, so the colder the better"
        )
        raise UsageError(
            f"No temperature from {LOWEST:g} to {HIGHEST:g} makes these {len(logits)} examples most likely: "
            f"{reason}. Give more examples, ones that were not trained on."
        )
    return math.exp(float(brentq(slope, low, high, xtol=1e-13)))


def _check_temperature(temperature: Tensor | float) -> None:
    if not isinstance(temperature, Tensor):
        check_scale("temperature", temperature)
    elif temperature.numel() != 1:
        raise UsageError(
            f"temperature has shape {tuple(temperature.shape)}; allowed is a number or a tensor of one "
            "element. Take the mean of several, or call once for each."
        )


def _check_distillation(
    student: Tensor, teacher: Tensor, target: Tensor | None, mix: float, reduction: str
) -> None:
    if reduction not in _REDUCTIONS:
        raise SpecError(f'reduction is "{reduction}"; allowed are {", ".join(_REDUCTIONS)}.')
    if student.shape != teacher.shape:
        raise UsageError(
            f"student has shape {tuple(student.shape)} and teacher {tuple(teacher.shape)}; they must be the "
            "same. Give logits over the same classes, (N, C) or (N, C, ...)."
        )
    if not 0.0 <= mix <= 1.0:
        raise SpecError(f"mix={mix!r} is out of range. Give a number from 0 to 1.")
    if (target is None) != (mix == 1.0):
        raise UsageError(
            f"mix={mix!r}, and target is {'missing' if target is None else 'given'}. Give the true classes "
            "with a mix below 1, and only then."
        )


def _check_calibration(logits_NC: Tensor, target_N: Tensor) -> None:
    if logits_NC.ndim != 2 or target_N.shape != logits_NC.shape[:1] or not len(logits_NC):
        raise UsageError(
            f"logits have shape {tuple(logits_NC.shape)} and targets {tuple(target_N.shape)}; allowed are "
            "(examples, classes) and (examples), with one example at least."
        )
    is_class = (target_N >= 0) & (target_N < logits_NC.shape[1])
    if target_N.is_floating_point() or not bool(is_class.all()) or not bool(logits_NC.isfinite().all()):
        raise UsageError(
            "logits have values that are not finite, or targets are no whole numbers from 0 to "
            f"{logits_NC.shape[1] - 1}. Leave those examples or classes out."
        )


def _divide_by_temperature(logits: Tensor, temperature: Tensor | float) -> Tensor:
    if isinstance(temperature, Tensor):
        temperature = temperature.reshape(())
    return to_wide_type(logits) / temperature


def _detach_temperature(temperature: Tensor | float) -> Tensor | float:
    return temperature.detach().reshape(()) if isinstance(temperature, Tensor) else temperature
