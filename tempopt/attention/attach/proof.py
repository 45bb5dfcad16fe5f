"""Proves of what goes into a model's softmaxes that the temperature divides all of it that it has to divide.

``softmax_capture`` records the logits; ``self_test`` compares the outputs.

Of each softmax inside a tempered attention, L(t) being its logits at temperature t:

- They move with the temperature, all of them: none is left out of a module that has one.
- What is left of them at t → ∞ does not depend on the tokens: it is a mask, or a bias of positions. So no
  part of a query (a bias beside it, other queries, heads that were missed) is without the temperature.
- L(2) is half way between L(1) and that; or it is what the model's own scale, halved, makes of L(1).
- At t → ∞ the model's own scale has nothing left to act on.

With attention weights held, no output moves: the query is used for nothing but logits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from tempopt.attention.attach.outputs import around
from tempopt.attention.attach.preserve_state import halved, own_scales
from tempopt.attention.attach.query_rows import AS_TEMPERED_MODULE, PROJECTION_NAMES
from tempopt.attention.attach.softmax_capture import CapturedSoftmaxes, Softmax, capture_softmaxes
from tempopt.errors import AttachError

# As good as infinite, so that attention is uniform; at infinity itself a normalisation would divide by zero.
UNIFORM = 2.0**20
# What half of the logits may be off by, in parts of the way that they go: bfloat16 rounds to a 256th.
_MAX_RELATIVE_ERROR = 0.02
# Part of the dependence on tokens that may be left at infinite temperature.
_MAX_TOKEN_DEPENDENCE = 0.01
# A key whose logit is so much below the largest has weight zero: it is masked, or as good as that.
_MASKED = 1e3
_WITHOUT = f"Leave the layer out (layers=[...] takes patterns), attach another way, or {AS_TEMPERED_MODULE}."


class UnfitError(AttachError):
    """The forward shows nothing of the temperatures, whether they act or not."""


class Layers(Protocol):
    """What is proven, as far as it has to be known here."""

    @property
    def names(self) -> list[str]:
        """Names of the layers in depth order."""

    @property
    def attentions(self) -> list[str]:
        """Names of the modules that hold them."""


Outputs = Callable[..., list[Tensor]]
Same = Callable[[Sequence[Tensor], Sequence[Tensor]], bool]


@dataclass(frozen=True, slots=True)
class Proof:
    """What a forward has shown.

    Args:
        proven: Layers by number of whose logits everything was seen.
        not_run: Layers that the forward did not use.
    """

    proven: frozenset[int]
    not_run: frozenset[int]


@dataclass(slots=True)
class _Rows:
    """The rows of one softmax that tell something: more than one key, and not all of them masked."""

    softmax: Softmax
    valid: Tensor
    visible_mask: Tensor

    @classmethod
    def of(cls, softmax: Softmax) -> _Rows:
        logits = softmax.logits_NK.detach()
        top = logits.amax(dim=-1, keepdim=True) if logits.shape[-1] else logits.new_zeros(len(logits), 1)
        visible_mask = logits.isfinite() & (logits > top - _MASKED)
        valid = (top[:, 0].isfinite()) & (top[:, 0] > -_MASKED) & (visible_mask.sum(-1) > 1)
        return cls(softmax, valid, visible_mask[valid])

    @property
    def tell(self) -> bool:
        return bool(self.valid.any())

    def centred(self, softmax: Softmax) -> Tensor:
        """Return another run's logits less their mean over the keys seen, of which softmax is free."""
        logits = softmax.logits_NK[self.valid].masked_fill(~self.visible_mask, 0.0)
        mean = logits.sum(-1, keepdim=True) / self.visible_mask.sum(-1, keepdim=True)
        return (logits - mean).masked_fill(~self.visible_mask, 0.0)

    def distance(self, softmax: Softmax, other_softmax: Softmax) -> float:
        return float((self.centred(softmax) - self.centred(other_softmax)).detach().double().norm())

    @property
    def noise(self) -> float:
        """How far rounding alone may take them."""
        logits = self.softmax.logits_NK.detach()[self.valid].masked_fill(~self.visible_mask, 0.0)
        return 8 * self.softmax.eps * float(logits.double().norm())

    def dependence(self, softmax: Softmax, inputs: Sequence[Tensor]) -> float | None:
        """Return how much a random sum of the logits depends on what an attention was given."""
        centred = self.centred(softmax)
        if not centred.requires_grad or not inputs:
            return None
        generator = torch.Generator().manual_seed(0)
        random_weights = torch.randn(centred.shape, generator=generator, dtype=centred.dtype).to(
            centred.device
        )
        grads = torch.autograd.grad(
            (random_weights * centred).sum(),
            inputs,
            retain_graph=True,
            allow_unused=True,
            materialize_grads=True,
        )
        return float(torch.stack([grad.double().norm() for grad in grads]).norm())


@dataclass(slots=True)
class Prover:
    """Proves of each layer that its temperature divides what it has to, and nothing else.

    Args:
        model: The model, with temperatures attached, in eval mode.
        layers: The tempered layers.
        outputs: Runs the forward, given temperatures by number of the layer, 1 for the rest, and
            ``grad=True`` if gradients are to be taken.
        same: Whether two outputs are equal but for rounding.
        is_whole_model: Whether all attention of the model is meant to be tempered.
    """

    model: nn.Module
    layers: Layers
    outputs: Outputs
    same: Same
    is_whole_model: bool

    def prove(self) -> Proof:
        """Return the layers that are proven; of others the logits could not be seen, or they were not used.

        Raises:
            AttachError: if a temperature acts in part, or elsewhere than in a softmax.
        """
        layers = range(len(self.layers.names))
        cold, base_outputs = self.run(1.0)
        hot, hot_outputs = self.run(2.0)
        not_run = frozenset(layer for layer in layers if self.is_unused(layer, cold, base_outputs))
        if cold.opaque or not _alike(cold, hot):
            return Proof(frozenset(), not_run)
        rows = [_Rows.of(softmax) for softmax in cold.softmaxes]
        moving = [
            row.tell and row.distance(row.softmax, hot_softmax) > 1e-6 * _size(row)
            for row, hot_softmax in zip(rows, hot.softmaxes, strict=True)
        ]
        homes = {layer: self.home(layer, cold, moving, rows) for layer in layers if layer not in not_run}
        if not self.same(base_outputs, hot_outputs):
            raise AttachError(self.leaking(base_outputs))
        self.require_all(rows, moving, set(homes.values()))
        proven = self.judge(homes, moving)
        return Proof(frozenset(proven), not_run)

    def run(
        self, temperature: float, cut: Sequence[str] = (), *, grad: bool = False
    ) -> tuple[CapturedSoftmaxes, list[Tensor]]:
        """Return what is seen of a forward with all layers at one temperature, and what comes out."""
        return self.look(dict.fromkeys(range(len(self.layers.names)), temperature), cut, grad=grad)

    def look(
        self, temperatures: Mapping[int, float], cut: Sequence[str] = (), *, grad: bool = False
    ) -> tuple[CapturedSoftmaxes, list[Tensor]]:
        try:
            with capture_softmaxes(self.model, cut=cut) as record:
                return record, self.outputs(temperatures, grad=grad)
        except AttachError:
            raise
        except Exception as error:
            raise AttachError(
                "The model does not run while the weights of its attention are held, so it cannot be proven "
                f"that temperatures act: {type(error).__name__}: {error}. Attend by torch.softmax or by "
                f"scaled_dot_product_attention, or {AS_TEMPERED_MODULE}."
            ) from error

    def is_unused(self, layer: int, cold: CapturedSoftmaxes, base_outputs: Sequence[Tensor]) -> bool:
        """Whether the forward goes neither through a layer nor past it to its weights."""
        names = {self.layers.names[layer], self.layers.attentions[layer]}
        if "" in names or names & cold.ran:
            return False
        layer_record, layer_outputs = self.look({layer: 2.0})
        return self.same(layer_outputs, base_outputs) and all(
            torch.equal(softmax.logits_NK, layer_softmax.logits_NK)
            for softmax, layer_softmax in zip(cold.softmaxes, layer_record.softmaxes, strict=True)
        )

    def home(self, layer: int, cold: CapturedSoftmaxes, moving: Sequence[bool], rows: Sequence[_Rows]) -> str:
        """Return the innermost module around a projection in which its temperature moves a softmax."""
        name = self.layers.attentions[layer]
        if any(moves and _inside(row.softmax, name) for row, moves in zip(rows, moving, strict=True)):
            return name
        layer_record, _ = self.look({layer: 2.0})
        moved_softmaxes = [
            row.softmax
            for row, layer_softmax in zip(rows, layer_record.softmaxes, strict=True)
            if row.tell and row.distance(row.softmax, layer_softmax) > 1e-6 * _size(row)
        ]
        if not moved_softmaxes:
            has_one_key = not any(row.tell for row in rows)
            kind = UnfitError if rows and has_one_key else AttachError
            raise kind(_unreached(self.layers.names[layer], has_one_key=has_one_key, has_softmax=bool(rows)))
        return next(ancestor for ancestor in around(name) if _inside(moved_softmaxes[0], ancestor))

    def leaking(self, base_outputs: Sequence[Tensor]) -> str:
        """Return what is wrong where outputs move though the weights of attention do not."""
        names = self.layers.names
        leaks = (
            name
            for layer, name in enumerate(names)
            if not self.same(self.look({layer: 2.0})[1], base_outputs)
        )
        return (
            f'The temperature of layer "{next(leaks, names[0])}" does not act as it should: it changes the '
            "output by other ways than the weights of a softmax. Query, key and value may not be the three "
            "equal blocks, in this order, that they were taken for; the query may be used for more than "
            f"attention; or the attention is linear, without a softmax. {_WITHOUT}"
        )

    def require_all(self, rows: Sequence[_Rows], moving: Sequence[bool], homes: set[str]) -> None:
        """Refuse attention that the temperature misses, in modules that have one or in all of the model."""
        keys = {row.visible_mask.shape[-1] for row, moves in zip(rows, moving, strict=True) if moves}
        for row, moves in zip(rows, moving, strict=True):
            module_names = row.softmax.module_names
            if moves or not row.tell:
                continue
            home = next((name for name in reversed(module_names) if name in homes), None)
            inner_names = module_names[module_names.index(home) + 1 :] if home is not None else module_names
            is_own_attention = home is not None and not any(map(self.holds_query, inner_names))
            if is_own_attention and (row.softmax.fused or row.visible_mask.shape[-1] in keys):
                raise AttachError(
                    f'The temperature acts in only a part of "{home}": of its softmaxes there is one that '
                    "does not follow it, as where some tokens have queries of their own. Its query "
                    f"projections may not all be known. {_WITHOUT}"
                )
            if self.is_whole_model and not is_own_attention and self.is_attention(row.softmax):
                raise AttachError(
                    f'The attention in "{module_names[-1] if module_names else ""}" '
                    f"({type(self.model.get_submodule(module_names[-1] if module_names else '')).__name__}) "
                    "has no temperature, though all layers were to have one. If that is meant, name the "
                    f"layers that are to have one (layers=[...] takes patterns); else attach another way, or "
                    f"{AS_TEMPERED_MODULE}."
                )

    def holds_query(self, name: str) -> bool:
        module = self.model.get_submodule(name)
        return isinstance(module, nn.MultiheadAttention) or any(
            child.lower() in PROJECTION_NAMES for child, _ in module.named_children()
        )

    def is_attention(self, softmax: Softmax) -> bool:
        if softmax.fused:
            return True
        kinds = [type(self.model.get_submodule(name)).__name__.lower() for name in softmax.module_names[-1:]]
        return any("attention" in kind or "attn" in kind for kind in kinds)

    def judge(self, homes: Mapping[int, str], moving: Sequence[bool]) -> Iterator[int]:
        """Yield the layers of whose softmaxes all was seen, and all is right."""
        cut = sorted(set(homes.values()))
        # All in one mode: without gradients products may be rounded otherwise.
        cold, _ = self.run(1.0, cut, grad=True)
        rows = [_Rows.of(softmax) for softmax in cold.softmaxes]
        # At once, since temperatures that are set again are no longer those of the graph.
        cold_dependences = {name: _dependences(rows, cold, name) for name in cut}
        cold.release()
        hot, _ = self.run(2.0, grad=True)
        last, _ = self.run(UNIFORM, cut, grad=True)
        records = (cold, hot, last)
        if not all(_alike(cold, record) for record in records) or len(moving) != len(rows):
            return
        last_dependences = {name: _dependences(rows, last, name) for name in cut}
        last.release()
        cold_halved, last_halved = self.by_own_scale() or (cold, last)
        if not (_alike(cold, cold_halved) and _alike(cold, last_halved)):
            return
        runs = [record.softmaxes for record in (*records, cold_halved, last_halved)]
        cases = [_Case(row, softmaxes) for row, softmaxes in zip(rows, zip(*runs, strict=True), strict=True)]
        for layer, home in homes.items():
            indices = [
                index for index, row in enumerate(rows) if moving[index] and _inside(row.softmax, home)
            ]
            name = self.layers.names[layer]
            if all(
                [
                    _prove_softmax(
                        name, cases[index], cold_dependences[home][index], last_dependences[home][index]
                    )
                    for index in indices
                ]
            ):
                yield layer

    def by_own_scale(self) -> tuple[CapturedSoftmaxes, CapturedSoftmaxes] | None:
        """Return what is seen with the model's own scale halved, at temperature 1 and at infinity."""
        modules = {name: self.model.get_submodule(name) for name in self.layers.attentions}
        scales = [(module, name) for module in modules.values() for name in own_scales(module)]
        if not scales:
            return None
        with halved(scales):
            return self.run(1.0, grad=True)[0], self.run(UNIFORM, grad=True)[0]


def _dependences(rows: Sequence[_Rows], record: CapturedSoftmaxes, home: str) -> list[float | None]:
    """Return for each softmax in a module how much its logits depend on the tokens that go in."""
    inputs = record.reached.get(home, [])
    return [
        row.dependence(softmax, inputs) if row.tell and _inside(softmax, home) else None
        for row, softmax in zip(rows, record.softmaxes, strict=True)
    ]


def _prove_softmax(
    layer: str, case: _Case, cold_dependence: float | None, last_dependence: float | None
) -> bool:
    """Return whether everything was seen of one softmax, in which all is right.

    Args:
        layer: Name of the layer.
        case: The softmax.
        cold_dependence: How much its logits depend on the tokens at temperature 1.
        last_dependence: The same at infinity.

    Raises:
        AttachError: if something is not right.
    """
    if case.unmoved():
        raise AttachError(unmoved(layer, _NORMALISED))
    if case.own_scale_left():
        raise AttachError(_in_part(layer, "its own scale still acts on a part of its logits"))
    if case.as_own_scale():
        return True
    if cold_dependence is None or last_dependence is None:
        return False
    if last_dependence > max(_MAX_TOKEN_DEPENDENCE, 4 * case.eps) * cold_dependence:
        raise AttachError(_in_part(layer, "a part of its logits still depends on the tokens"))
    if not case.in_proportion():
        raise AttachError(
            f'The temperature of layer "{layer}" does not act as it should: its logits are not divided '
            f"by it, but go another way from 1 to 2. {_WITHOUT}"
        )
    return True


class _Case:
    """One softmax at temperatures 1, 2 and infinity; at 1 and infinity with its own scale halved, too."""

    def __init__(self, rows: _Rows, runs: Sequence[Softmax]) -> None:
        self.rows = rows
        self.cold, self.hot, self.last, self.cold_halved, self.last_halved = runs
        cold, last, cold_halved = self.cold, self.last, self.cold_halved
        self.eps = cold.eps
        self._noise = rows.noise
        self._full_distance = rows.distance(cold, last)
        self._own_scale_distance = rows.distance(cold, cold_halved)
        # An attribute of that name may do something else, or nothing.
        self._has_own_scale = self._own_scale_distance > max(
            _MAX_RELATIVE_ERROR * self._full_distance, self._noise
        )

    def unmoved(self) -> bool:
        return self.rows.distance(self.cold, self.hot) < _MAX_RELATIVE_ERROR * self._full_distance

    def own_scale_left(self) -> bool:
        distance = self.rows.distance(self.last, self.last_halved)
        return self._has_own_scale and distance > _MAX_RELATIVE_ERROR * self._own_scale_distance + self._noise

    def as_own_scale(self) -> bool:
        return (
            self._has_own_scale
            and self.rows.distance(self.cold_halved, self.hot)
            <= _MAX_RELATIVE_ERROR * self._own_scale_distance + self._noise
        )

    def in_proportion(self) -> bool:
        start, half, end = (
            self.rows.centred(softmax).detach() for softmax in (self.cold, self.hot, self.last)
        )
        off = float((half - (start + end) / 2).double().norm())
        return off <= _MAX_RELATIVE_ERROR * self._full_distance + self._noise or self._capped()

    def _capped(self) -> bool:
        """Whether each logit goes the same way as in proportion, and not as far: a cap lies behind it."""
        start, half, end = (
            softmax.logits_NK.detach()[self.rows.valid][self.rows.visible_mask]
            for softmax in (self.cold, self.hot, self.last)
        )
        full_change, half_change = start - end, half - end
        slack = _MAX_RELATIVE_ERROR * full_change.abs().max()
        return bool(
            (
                (half_change * full_change.sign() >= full_change.abs() / 2 - slack)
                & (half_change.abs() <= full_change.abs() + slack)
            ).all()
        )


NOT_RUN = "This forward does not use it."
DISCARDED = "Nothing behind it depends on what it attends to."
_ONE_KEY = "No query of this forward has more than one key to attend to: try a longer batch."
_NORMALISED = (
    "Its query may be normalised after the projection, which undoes any scale (QK-norm), or be copied before "
    "it is read."
)


def unmoved(layer: str, reason: str) -> str:
    """Return what is said of a layer whose temperature does nothing."""
    return (
        f'The temperature of layer "{layer}" did not move the output. {reason} Leave the layer out '
        f"(layers=[...] takes patterns), or {AS_TEMPERED_MODULE}."
    )


def why_unmoved(model: nn.Module, layers: Layers, outputs: Outputs, layer: int) -> str:
    """Return why the temperature of a layer does nothing, as far as one more forward shows it."""
    with capture_softmaxes(model) as record:
        outputs()
    names = {layers.names[layer], layers.attentions[layer]}
    if "" not in names and not names & record.ran:
        return NOT_RUN
    rows = [_Rows.of(softmax) for softmax in record.softmaxes if _inside(softmax, layers.attentions[layer])]
    return _ONE_KEY if rows and not any(row.tell for row in rows) else _NORMALISED


def _unreached(layer: str, *, has_one_key: bool, has_softmax: bool) -> str:
    if has_softmax and has_one_key:
        return unmoved(layer, _ONE_KEY)
    problem = "reaches none of the softmaxes that ran" if has_softmax else "reaches no softmax, for none ran"
    return (
        f'The temperature of layer "{layer}" {problem} (torch.softmax, scaled_dot_product_attention). It may '
        "be no attention, a linear one, or one that is written otherwise; its query may be normalised "
        f"(QK-norm), or copied before it is read. {_WITHOUT}"
    )


def _in_part(layer: str, problem: str) -> str:
    return (
        f'The temperature of layer "{layer}" acts in part only: where it is as good as infinite, {problem}. '
        "There may be a bias beside the query, heads or positions with queries of their own, or a query that "
        f"is not one block of rows. {_WITHOUT}"
    )


def _inside(softmax: Softmax, name: str) -> bool:
    return not name or name in softmax.module_names


def _alike(record: CapturedSoftmaxes, other_record: CapturedSoftmaxes) -> bool:
    return [softmax.logits_NK.shape for softmax in record.softmaxes] == [
        softmax.logits_NK.shape for softmax in other_record.softmaxes
    ]


def _size(rows: _Rows) -> float:
    return float(rows.centred(rows.softmax).detach().double().norm())
