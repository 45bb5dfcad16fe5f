"""The numbers behind the names of heads: bounds against all permutations, intervals against scipy's."""

from __future__ import annotations

import itertools
import json
import math
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
from tempopt.attention.analysis.specialisation import HeadSpecialisation
from tempopt.attention.analysis.whole_model import specialisations
from tempopt.errors import SpecError, UsageError
from tests.attention.planted import PLANTED, Heads, planted, random_heads


def report_of(*batches: Heads) -> Specialisations:
    seen = HeadSpecialisation()
    for heads in batches:
        seen.update_weights(0, heads.weights_BHQK, tokens_BK=heads.tokens_BK, **heads.masking)
    return seen.report()


def one_of(weights: Tensor, *, window: int = 2, **more: Any) -> Specialisations:
    seen = HeadSpecialisation(window=window)
    seen.update_weights(0, weights, **more)
    return seen.report()


def measure(report: Specialisations, name: str) -> list[HeadMeasure]:
    return [each for each in report.measures if each.measure == name]


def softmax_of(*logits: Tensor) -> Tensor:
    return torch.stack(logits, dim=1).double().softmax(dim=-1)


def exact_chance(weights_BQK: np.ndarray, target_Q: np.ndarray) -> float:
    """The chance that random keys, the same in all inputs, get as much weight as those of the pattern."""
    mean_QK = weights_BQK.mean(axis=0)
    queries, keys = mean_QK.shape
    reached = mean_QK[np.arange(queries), target_Q].sum()
    sums = [
        sum(mean_QK[i, j] for i, j in enumerate(places))
        for places in itertools.product(range(keys), repeat=queries)
    ]
    return float(np.mean(np.array(sums) >= reached - 1e-12))


@pytest.mark.parametrize("sharp", [0.5, 2.0, 8.0])
def test_the_bound_is_above_the_chance_over_all_choices_of_keys(sharp: float) -> None:
    draw = torch.Generator().manual_seed(3)
    for _ in range(10):
        logits = sharp * torch.randn(2, 1, 5, 5, generator=draw, dtype=torch.float64)
        weights = (logits + 1.5 * torch.eye(5)).softmax(dim=-1)
        [diagonal] = measure(one_of(weights), "diagonal")
        assert diagonal.p is not None
        assert exact_chance(weights[:, 0].numpy(), np.arange(5)) <= diagonal.p <= 1.0


def test_the_bound_of_a_pure_head_is_the_product_of_the_chances_of_its_queries() -> None:
    weights = torch.eye(9, dtype=torch.float64).expand(3, 1, 9, 9)
    [causal] = measure(one_of(weights, is_causal=True), "diagonal")
    assert causal.p == pytest.approx(1.0 / math.factorial(9), rel=1e-6)
    [full] = measure(one_of(weights), "diagonal")
    assert full.p == pytest.approx(9.0**-9, rel=1e-6)


def test_the_bound_holds_its_level_for_heads_that_follow_positions() -> None:
    draw = torch.Generator().manual_seed(0)
    logits = 12.0 * torch.randn(1, 1000, 8, 8, generator=draw)
    report = one_of(logits.softmax(dim=-1).expand(2, -1, -1, -1))
    for name in ("diagonal", "previous_token", "local"):
        found = np.array([each.p for each in measure(report, name)])
        assert found.min() < 0.5
        for level in (0.01, 0.1):
            assert (found <= level).mean() <= level


def test_the_same_choice_for_the_same_token_counts_once() -> None:
    tokens = torch.arange(24).remainder(2).expand(6, -1)
    keys = (tokens[:, :, None] == tokens[:, None, :]) & ~torch.eye(24, dtype=torch.bool)
    weights = (keys / keys.sum(dim=-1, keepdim=True)).unsqueeze(1)
    [same] = measure(one_of(weights, tokens_BK=tokens), "same_token")
    assert same.score == pytest.approx(1.0)
    # two tokens, each of which might have preferred the other
    assert same.p == pytest.approx(0.25, rel=1e-3)
    assert not same.named


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("spread", [0.02, 1.0, 4.0, 16.0])
def test_heads_with_random_weights_have_no_name_however_sharp(spread: float, is_causal: bool) -> None:
    shape: dict[str, Any] = {"heads": 8, "length": 24, "inputs": 6, "is_causal": is_causal}
    for seed, position in itertools.product(range(3), (0.0, 0.5, 1.0)):
        heads = random_heads(spread=spread, position=position, padded=seed == 1, seed=seed, **shape)
        assert report_of(heads).names == {}


def test_a_uniform_head_is_one_beside_a_selective_one_only() -> None:
    draw = torch.Generator().manual_seed(0)
    flat, sharp = torch.zeros(4, 16, 16), 3.0 * torch.randn(4, 16, 16, generator=draw)
    slight = 0.1 * torch.randn(4, 16, 16, generator=draw)
    assert one_of(softmax_of(flat, sharp)).names == {(0, 0): ("uniform",)}
    assert one_of(softmax_of(flat, flat, sharp)).names == {(0, 0): ("uniform",), (0, 1): ("uniform",)}
    assert one_of(softmax_of(slight, sharp)).names == {(0, 0): ("uniform",)}
    for others in ((flat, slight), (flat, flat), (flat,), (0.3 * sharp, sharp)):
        assert one_of(softmax_of(*others)).names == {}


def test_uniformity_is_measured_beside_the_most_selective_head() -> None:
    draw = torch.Generator().manual_seed(0)
    weights = softmax_of(*(size * torch.randn(4, 12, 12, generator=draw) for size in (0.2, 1.0, 3.0)))
    gaps = 1.0 - scipy.stats.entropy(weights.numpy(), axis=-1).mean(axis=(0, 2)) / math.log(12)
    for each in measure(one_of(weights), "uniform"):
        assert each.value == pytest.approx(1.0 - gaps[each.head])
        assert each.chance == pytest.approx(1.0 - gaps[2])
        assert each.score == pytest.approx(1.0 - gaps[each.head] / gaps[2])


def test_a_score_has_scipys_t_interval_where_inputs_have_as_many_queries() -> None:
    heads = planted(length=20, seed=0, size=1.0)
    report = report_of(heads)
    for name, chance in (("diagonal", 1 / 20), ("first_token", 1 / 20), ("local", 0.235)):
        score, counts = pattern_score(heads.weights_BHQK, name)
        assert bool(counts.all())
        by_input = score.double().mean(dim=-1).numpy()
        for each in measure(report, name):
            assert each.chance == pytest.approx(chance)
            if PLANTED[each.head] == "uniform":
                continue
            values = by_input[:, each.head]
            error = scipy.stats.sem(values)
            low, high = scipy.stats.t.interval(0.95, len(values) - 1, loc=values.mean(), scale=error)
            assert (each.score, each.low, each.high) == pytest.approx((values.mean(), low, high), rel=1e-6)


def test_queries_of_unlike_inputs_weigh_the_same() -> None:
    heads = planted(length=20, seed=0, size=1.0, padded=True, is_causal=True)
    visible = heads.masking["attn_mask"] & torch.ones(20, 20, dtype=torch.bool).tril()
    score, counts = pattern_score(heads.weights_BHQK, "local", visible)
    counts = counts & heads.masking["valid_BQ"].unsqueeze(1)
    for each in measure(report_of(heads), "local"):
        values = score[:, each.head][counts[:, each.head]]
        assert each.score == pytest.approx(values.double().mean().item(), rel=1e-6)


def common_share(gaps: list[np.ndarray]) -> float:
    """What pairs of inputs have in common, over what each has with itself."""
    pairs = [(one * other).sum() for one, other in itertools.permutations(gaps, 2)]
    return float(np.mean(pairs) / np.mean([(each**2).sum() for each in gaps]))


def test_the_positional_share_is_what_pairs_of_inputs_have_in_common() -> None:
    draw = torch.Generator().manual_seed(0)
    position, content = torch.randn(8, 8, generator=draw), torch.randn(6, 8, 8, generator=draw)
    weights = softmax_of(*(share * position + (1 - share) * content for share in (0.0, 0.3, 0.7, 1.0)))
    found = measure(one_of(weights), "positional")
    for head, each in enumerate(found):
        assert each.score == pytest.approx(common_share([weights[b, head].numpy() - 1 / 8 for b in range(6)]))
    assert found[3].score == pytest.approx(1.0)
    assert found[0].low < 0.0 < found[0].high


def test_what_follows_position_is_told_from_what_follows_tokens() -> None:
    report = report_of(planted(length=64, inputs=16, seed=0))
    shares = {PLANTED[each.head]: each for each in measure(report, "positional")}
    for name in ("diagonal", "previous_token", "next_token", "first_token"):
        assert shares[name].low > 0.9
    for name in ("same_token", "induction", "content"):
        assert shares[name].high < 0.1


@pytest.mark.long
def test_the_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    draw = torch.Generator().manual_seed(0)
    position = torch.randn(12, 12, generator=draw)

    def drawn(inputs: int) -> Tensor:
        return softmax_of(position + 1.5 * torch.randn(inputs, 12, 12, generator=draw))

    reports = [one_of(drawn(12)) for _ in range(400)]
    whole = one_of(drawn(20_000))
    for name in ("positional", "local"):
        [truth] = measure(whole, name)
        held = [measure(each, name)[0].low <= truth.score <= measure(each, name)[0].high for each in reports]
        assert 0.91 <= np.mean(held) <= 0.985


def test_batches_are_the_parts_of_one() -> None:
    heads = planted(length=20, seed=0, padded=True)
    parts = [
        Heads(
            weights_BHQK=heads.weights_BHQK[part],
            masking={name: value[part] for name, value in heads.masking.items() if name != "is_causal"},
            tokens_BK=heads.tokens_BK[part],
        )
        for part in (slice(0, 5), slice(5, 8))
    ]
    whole, split = report_of(heads), report_of(*parts)
    assert split.inputs == whole.inputs == 8
    for one, other in zip(whole.measures, split.measures, strict=True):
        assert (one.measure, one.head, one.named) == (other.measure, other.head, other.named)
        if one.measure != "positional":
            assert (one.score, one.low) == pytest.approx((other.score, other.low), rel=1e-9)
            assert (one.p is None) == (other.p is None)
            assert one.p is None or one.p == pytest.approx(other.p, rel=1e-9)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_changes_no_name(dtype: torch.dtype) -> None:
    heads = planted(length=48, seed=1)
    half = Heads(weights_BHQK=heads.weights_BHQK.to(dtype), masking=heads.masking, tokens_BK=heads.tokens_BK)
    assert report_of(half).names == report_of(heads).names != {}


def test_a_report_is_plain_values_and_a_table() -> None:
    report = report_of(planted(length=20, seed=0))
    [first, *_] = json.loads(json.dumps(report.rows()))
    assert (first["measure"], first["named"]) == ("diagonal", True)
    assert report.of(3, 0) == {}
    lines = str(report).splitlines()
    assert lines[0] == "what heads do, over 8 inputs"
    assert len(lines) == 2 + len(PLANTED)
    assert "previous_token 0.9" in lines[3]
    assert lines[-1].endswith("  -")


def test_a_wider_window_is_local_farther_away() -> None:
    near = (torch.arange(32)[:, None] - torch.arange(32)).abs() <= 6
    weights = (near / near.sum(dim=-1, keepdim=True)).expand(4, 1, 32, 32)
    assert one_of(weights, window=2).names == {}
    assert one_of(weights, window=6).names == {(0, 0): ("local",)}


def test_a_tempered_module_shows_what_its_queries_and_keys_do() -> None:
    torch.manual_seed(0)
    model = AssociativeRecall(vocabulary=32, d_model=16, num_heads=4, temperature_init=0.5)
    batch = draw_recall(6, 8, vocabulary=32, generator=torch.Generator().manual_seed(0))
    report = specialisations(model, [batch], tokens=lambda each: each.tokens_BN)
    assert report.names == {}
    seen = HeadSpecialisation()
    with model.eval().observed(
        lambda layer, q, k, **masking: seen.update(layer, q, k, tokens_BK=batch.tokens_BN, **masking)
    ):
        model(batch)
    assert seen.report() == report


def test_what_cannot_be_looked_at_is_said() -> None:
    heads = planted(length=12, seed=0)
    seen = HeadSpecialisation()
    with pytest.raises(UsageError, match="Given 0 inputs"):
        seen.report()
    seen.update_weights(0, heads.weights_BHQK)
    with pytest.raises(UsageError, match=r"Given attention of 2 heads in layer 0, which had 9 before"):
        seen.update_weights(0, heads.weights_BHQK[:, :2])
    with pytest.raises(UsageError, match="sum to"):
        seen.update_weights(1, 0.5 * heads.weights_BHQK)
    with pytest.raises(SpecError, match="window"):
        HeadSpecialisation(window=0)
    torch.manual_seed(0)
    model = AssociativeRecall(vocabulary=32, d_model=16, num_heads=4, normaliser="sparsemax")
    with pytest.raises(UsageError, match="no attention was seen"):
        specialisations(model, [draw_recall(6, 8, vocabulary=32)])
