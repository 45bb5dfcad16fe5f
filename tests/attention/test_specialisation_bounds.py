"""The numbers behind the names of heads: bounds against all permutations, intervals against scipy's."""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor

from lightning_modules import AssociativeRecall
from lightning_modules.associative_recall import draw_recall
from tempopt.attention.analysis.head_measures import HeadMeasure, Specialisations
from tempopt.attention.analysis.patterns import pattern_score
from tempopt.attention.analysis.specialisation import HeadSpecialisation, specialisations
from tempopt.errors import SpecError, UsageError
from tests.attention.planted import PLANTED, Heads, planted_heads


def report_of(*batches: Heads) -> Specialisations:
    specialisation = HeadSpecialisation()
    for heads in batches:
        specialisation.update_weights(0, heads.weights_BHQK, tokens_BK=heads.tokens_BK, **heads.masking)
    return specialisation.report()


def one_of(weights: Tensor, *, window: int = 2, **options: Any) -> Specialisations:
    specialisation = HeadSpecialisation(window=window)
    specialisation.update_weights(0, weights, **options)
    return specialisation.report()


def measure(report: Specialisations, name: str) -> list[HeadMeasure]:
    return [head_measure for head_measure in report.measures if head_measure.measure == name]


def softmax_of(*logits: Tensor) -> Tensor:
    return torch.stack(logits, dim=1).double().softmax(dim=-1)


def exact_chance(weights_BQK: np.ndarray, target_Q: np.ndarray) -> float:
    """The chance that random keys, the same in all inputs, get as much weight as those of the pattern."""
    mean_QK = weights_BQK.mean(axis=0)
    queries, keys = mean_QK.shape
    pattern_weight = mean_QK[np.arange(queries), target_Q].sum()
    sums = [
        sum(mean_QK[i, j] for i, j in enumerate(places))
        for places in itertools.product(range(keys), repeat=queries)
    ]
    return float(np.mean(np.array(sums) >= pattern_weight - 1e-12))


@pytest.mark.parametrize("sharp", [0.5, 2.0, 8.0])
def test_the_bound_is_above_the_chance_over_all_choices_of_keys(sharp: float) -> None:
    draw = torch.Generator().manual_seed(3)
    for _ in range(10):
        logits = sharp * torch.randn(2, 1, 5, 5, generator=draw, dtype=torch.float64)
        weights = (logits + 1.5 * torch.eye(5)).softmax(dim=-1)
        [diagonal] = measure(one_of(weights), "diagonal")
        assert diagonal.p is not None
        assert exact_chance(weights[:, 0].numpy(), np.arange(5)) <= diagonal.p <= 1.0


def test_the_bound_holds_its_level_for_heads_that_follow_positions() -> None:
    draw = torch.Generator().manual_seed(0)
    logits = 12.0 * torch.randn(1, 1000, 8, 8, generator=draw)
    report = one_of(logits.softmax(dim=-1).expand(2, -1, -1, -1))
    for name in ("diagonal", "previous_token", "local"):
        p_values = np.array([head_measure.p for head_measure in measure(report, name)])
        assert p_values.min() < 0.5
        for level in (0.01, 0.1):
            assert (p_values <= level).mean() <= level


def test_the_same_choice_for_the_same_token_counts_once() -> None:
    tokens = torch.arange(24).remainder(2).expand(6, -1)
    keys = (tokens[:, :, None] == tokens[:, None, :]) & ~torch.eye(24, dtype=torch.bool)
    weights = (keys / keys.sum(dim=-1, keepdim=True)).unsqueeze(1)
    [same] = measure(one_of(weights, tokens_BK=tokens), "same_token")
    assert same.score == pytest.approx(1.0)
    # two tokens, each of which might have preferred the other
    assert same.p == pytest.approx(0.25, rel=1e-3)
    assert not same.named


def test_a_uniform_head_is_one_beside_a_selective_one_only() -> None:
    draw = torch.Generator().manual_seed(0)
    flat, sharp = torch.zeros(4, 16, 16), 3.0 * torch.randn(4, 16, 16, generator=draw)
    slight = 0.1 * torch.randn(4, 16, 16, generator=draw)
    assert one_of(softmax_of(flat, sharp)).names == {(0, 0): ("uniform",)}
    assert one_of(softmax_of(flat, flat, sharp)).names == {(0, 0): ("uniform",), (0, 1): ("uniform",)}
    assert one_of(softmax_of(slight, sharp)).names == {(0, 0): ("uniform",)}
    for logits in ((flat, slight), (flat, flat), (flat,), (0.3 * sharp, sharp)):
        assert one_of(softmax_of(*logits)).names == {}


def test_a_score_has_scipys_t_interval_where_inputs_have_as_many_queries() -> None:
    heads = planted_heads(length=20, seed=0, size=1.0)
    report = report_of(heads)
    for name, chance in (("diagonal", 1 / 20), ("first_token", 1 / 20), ("local", 0.235)):
        score, counts = pattern_score(heads.weights_BHQK, name)
        assert bool(counts.all())
        by_input = score.double().mean(dim=-1).numpy()
        for head_measure in measure(report, name):
            assert head_measure.chance == pytest.approx(chance)
            if PLANTED[head_measure.head] == "uniform":
                continue
            values = by_input[:, head_measure.head]
            error = scipy.stats.sem(values)
            low, high = scipy.stats.t.interval(0.95, len(values) - 1, loc=values.mean(), scale=error)
            assert (head_measure.score, head_measure.low, head_measure.high) == pytest.approx(
                (values.mean(), low, high), rel=1e-6
            )


def common_share(gaps: list[np.ndarray]) -> float:
    """What pairs of inputs have in common, over what each has with itself."""
    pairs = [(gap * other_gap).sum() for gap, other_gap in itertools.permutations(gaps, 2)]
    return float(np.mean(pairs) / np.mean([(gap**2).sum() for gap in gaps]))


def test_the_positional_share_is_what_pairs_of_inputs_have_in_common() -> None:
    draw = torch.Generator().manual_seed(0)
    position, content = torch.randn(8, 8, generator=draw), torch.randn(6, 8, 8, generator=draw)
    weights = softmax_of(*(share * position + (1 - share) * content for share in (0.0, 0.3, 0.7, 1.0)))
    measures = measure(one_of(weights), "positional")
    for head, head_measure in enumerate(measures):
        assert head_measure.score == pytest.approx(
            common_share([weights[b, head].numpy() - 1 / 8 for b in range(6)])
        )
    assert measures[3].score == pytest.approx(1.0)
    assert measures[0].low < 0.0 < measures[0].high


def test_what_follows_position_is_told_from_what_follows_tokens() -> None:
    report = report_of(planted_heads(length=64, inputs=16, seed=0))
    shares = {PLANTED[head_measure.head]: head_measure for head_measure in measure(report, "positional")}
    for name in ("diagonal", "previous_token", "next_token", "first_token"):
        assert shares[name].low > 0.9
    for name in ("same_token", "induction", "content"):
        assert shares[name].high < 0.1


@pytest.mark.long
def test_the_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    draw = torch.Generator().manual_seed(0)
    position = torch.randn(12, 12, generator=draw)

    def draw_weights(inputs: int) -> Tensor:
        return softmax_of(position + 1.5 * torch.randn(inputs, 12, 12, generator=draw))

    reports = [one_of(draw_weights(12)) for _ in range(400)]
    full_report = one_of(draw_weights(20_000))
    for name in ("positional", "local"):
        [truth] = measure(full_report, name)
        hits = [
            measure(report, name)[0].low <= truth.score <= measure(report, name)[0].high for report in reports
        ]
        assert 0.91 <= np.mean(hits) <= 0.985


def test_batches_are_the_parts_of_one() -> None:
    heads = planted_heads(length=20, seed=0, padded=True)
    parts = [
        Heads(
            weights_BHQK=heads.weights_BHQK[part],
            masking={name: value[part] for name, value in heads.masking.items() if name != "is_causal"},
            tokens_BK=heads.tokens_BK[part],
        )
        for part in (slice(0, 5), slice(5, 8))
    ]
    full_report, split_report = report_of(heads), report_of(*parts)
    assert split_report.inputs == full_report.inputs == 8
    for full_measure, split_measure in zip(full_report.measures, split_report.measures, strict=True):
        assert (full_measure.measure, full_measure.head, full_measure.named) == (
            split_measure.measure,
            split_measure.head,
            split_measure.named,
        )
        if full_measure.measure != "positional":
            assert (full_measure.score, full_measure.low) == pytest.approx(
                (split_measure.score, split_measure.low), rel=1e-9
            )
            assert (full_measure.p is None) == (split_measure.p is None)
            assert full_measure.p is None or full_measure.p == pytest.approx(split_measure.p, rel=1e-9)


def test_a_report_is_plain_values_and_a_table() -> None:
    report = report_of(planted_heads(length=20, seed=0))
    [first, *_] = json.loads(json.dumps(report.rows()))
    assert (first["measure"], first["named"]) == ("diagonal", True)
    assert report.of(3, 0) == {}
    lines = str(report).splitlines()
    assert lines[0] == "what heads do, over 8 inputs"
    assert len(lines) == 2 + len(PLANTED)
    assert "previous_token 0.9" in lines[3]
    assert lines[-1].endswith("  -")


def test_what_cannot_be_looked_at_is_said() -> None:
    heads = planted_heads(length=12, seed=0)
    specialisation = HeadSpecialisation()
    with pytest.raises(UsageError, match="Given 0 inputs"):
        specialisation.report()
    specialisation.update_weights(0, heads.weights_BHQK)
    with pytest.raises(UsageError, match=r"Given attention of 2 heads in layer 0, which had 9 before"):
        specialisation.update_weights(0, heads.weights_BHQK[:, :2])
    with pytest.raises(UsageError, match="sum to"):
        specialisation.update_weights(1, 0.5 * heads.weights_BHQK)
    with pytest.raises(SpecError, match="window"):
        HeadSpecialisation(window=0)
    torch.manual_seed(0)
    model = AssociativeRecall(vocabulary=32, d_model=16, num_heads=4, normaliser="sparsemax")
    with pytest.raises(UsageError, match="no attention was seen"):
        specialisations(model, [draw_recall(6, 8, vocabulary=32)])
