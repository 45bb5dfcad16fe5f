"""Max retrieval: labels, splits, learning, and the parameters that make a module again."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import lightning as L
import pytest
import torch
from torch import Tensor

from lightning_modules.associative_recall import AssociativeRecall, AssociativeRecallData, draw_recall
from lightning_modules.graph_walks import GraphWalks, GraphWalksData, Walks, are_walks, draw_walks
from lightning_modules.max_retrieval import MaxRetrieval, MaxRetrievalData, Sets, draw_sets
from tempopt.attention.generation import pass_at_k_of, sample
from tempopt.temperature import GenerationParameters, TemperatureParameters

Fit = Callable[..., L.Trainer]


def small_data(**changes: int) -> MaxRetrievalData:
    return MaxRetrievalData(sizes=(32, 64), num_sets=(20, 10), num_sets_id=30, **changes)


def test_the_label_is_the_class_of_the_item_of_highest_priority() -> None:
    sets = draw_sets(200, 4, 16, num_classes=10, generator=torch.Generator().manual_seed(0))
    assert sets.valid_BN is not None
    for items, valid, label in zip(sets.items_BNF, sets.valid_BN, sets.label_B, strict=True):
        valid_items = [
            item for item, is_there in zip(items.tolist(), valid.tolist(), strict=True) if is_there
        ]
        assert 4 <= len(valid_items) <= 16
        priority, *one_hot = max(valid_items)
        assert 0.0 <= priority < 1.0
        assert one_hot == [float(number == label) for number in range(10)]


def test_padding_is_empty_and_comes_last() -> None:
    sets = draw_sets(200, 4, 16, num_classes=10, generator=torch.Generator().manual_seed(0))
    assert sets.valid_BN is not None
    assert (sets.items_BNF[~sets.valid_BN] == 0).all()
    assert (sets.valid_BN.int().diff(dim=1) <= 0).all()
    assert set(sets.valid_BN.sum(1).tolist()) == set(range(4, 17))


def test_sets_of_one_size_need_no_mask() -> None:
    assert draw_sets(3, 8, 8, num_classes=10).valid_BN is None


def test_the_module_does_not_see_padding() -> None:
    torch.manual_seed(0)
    module, sets = MaxRetrieval(length_scaling="log_n"), draw_sets(50, 4, 16, num_classes=10)
    assert sets.valid_BN is not None
    noise = torch.randn_like(sets.items_BNF) * ~sets.valid_BN[..., None]
    changed = sets._replace(items_BNF=sets.items_BNF + noise)
    assert torch.equal(module(sets), module(changed))


def load_batches(loaders: list[torch.utils.data.DataLoader[Sets]]) -> list[Sets]:
    return [batch for loader in loaders for batch in loader]


def test_validation_sets_are_the_same_in_all_runs() -> None:
    batches = []
    for run_seed in (1, 2):
        torch.manual_seed(run_seed)
        data = small_data(seed=5)
        data.setup("fit")
        batches.append(load_batches(data.val_dataloader()))
    for first_sets, second_sets in zip(*batches, strict=True):
        assert torch.equal(first_sets.items_BNF, second_sets.items_BNF)


DATA = {
    "sets": (small_data, "items_BNF"),
    "recall": (partial(AssociativeRecallData, pairs=(16,), num_sequences=8), "tokens_BN"),
    "walks": (partial(GraphWalksData, num_graphs=8), "to_BE"),
}


@pytest.mark.parametrize(("make", "column"), DATA.values(), ids=DATA)
def test_test_data_are_new_for_each_run_and_shaped_like_those_of_validation(
    make: Callable[[], Any], column: str
) -> None:
    def columns(loaders: Any) -> list[Tensor]:
        return [
            getattr(batch, column)
            for loader in (loaders if isinstance(loaders, list) else [loaders])
            for batch in loader
        ]

    data = make()
    data.setup("fit")
    runs = []
    for run_seed in (1, 1, 2):
        torch.manual_seed(run_seed)
        runs.append(columns(data.test_dataloader()))
    for first, repeated, reseeded, validation in zip(*runs, columns(data.val_dataloader()), strict=True):
        assert torch.equal(first, repeated) and first.shape == validation.shape
        assert not torch.equal(first, reseeded)
        assert not torch.equal(first, validation)


def test_it_learns_what_it_is_trained_on_in_a_plain_trainer(fit: Fit) -> None:
    logged = fit(MaxRetrieval(), small_data(), steps=100).callback_metrics
    assert logged["val_accuracy_id"] > 0.6
    assert logged["val_accuracy"].item() == pytest.approx(
        (logged["val_accuracy_32"] + logged["val_accuracy_64"]).item() / 2
    )


def test_length_scaling_changes_what_large_sets_are_answered() -> None:
    torch.manual_seed(0)
    plain, sets = MaxRetrieval(), draw_sets(20, 64, 64, num_classes=10)
    scaled = MaxRetrieval(length_scaling="log_n", n0=16.0)
    scaled.load_state_dict(plain.state_dict())
    # ln 64 / ln 16 = 3/2
    with torch.no_grad():
        for parameter in (plain.q_proj.weight, plain.q_proj.bias):
            parameter *= 1.5
    assert torch.allclose(plain(sets), scaled(sets), atol=1e-5)


# ---- Associative recall: the task, causality, splits and learning


def test_each_query_asks_for_the_value_that_followed_its_key() -> None:
    recall = draw_recall(50, 8, vocabulary=32, generator=torch.Generator().manual_seed(0))
    assert recall.tokens_BN.shape == (50, 24)
    for tokens, values in zip(recall.tokens_BN.tolist(), recall.values_BQ.tolist(), strict=True):
        value_by_key = dict(zip(tokens[0:16:2], tokens[1:16:2], strict=True))
        assert len(value_by_key) == 8
        assert max(value_by_key) < 16 <= min(value_by_key.values())
        assert sorted(tokens[16:]) == sorted(value_by_key)
        assert [value_by_key[key] for key in tokens[16:]] == values


def test_an_answer_does_not_depend_on_later_questions() -> None:
    torch.manual_seed(0)
    module, recall = AssociativeRecall(), draw_recall(4, 8, vocabulary=128)
    changed = recall.tokens_BN.clone()
    changed[:, -3:] = 0
    before, after = module(recall), module(recall._replace(tokens_BN=changed))
    assert torch.allclose(before[..., :-3], after[..., :-3], atol=1e-6)
    assert not torch.allclose(before[..., -3:], after[..., -3:], atol=1e-3)


def test_it_learns_an_easy_case_in_a_plain_trainer(fit: Fit) -> None:
    module = AssociativeRecall(vocabulary=16, d_model=32)
    data = AssociativeRecallData(num_pairs=2, vocabulary=16, pairs=(2, 4), num_sequences=64)
    logged = fit(module, data, steps=130).callback_metrics
    assert logged["val_accuracy_2"] > 0.8
    assert logged["val_success"] == float(logged["val_accuracy"] > 0.5)


# ---- Walks through graphs: the task, sampling beside a loop without a cache, splits and learning


def draw(num_graphs: int = 40, num_nodes: int = 6, vocabulary: int = 12) -> Walks:
    generator = torch.Generator().manual_seed(0)
    return draw_walks(num_graphs, num_nodes, num_steps=3, vocabulary=vocabulary, generator=generator)


def edges(walks: Walks, graph: int) -> list[tuple[int, int]]:
    return list(zip(walks.from_BE[graph].tolist(), walks.to_BE[graph].tolist(), strict=True))


def test_two_edges_leave_each_node_and_the_walk_is_along_edges() -> None:
    walks = draw()
    for graph, walk in enumerate(walks.walk_BL.tolist()):
        graph_edges = edges(walks, graph)
        assert len(set(graph_edges)) == len(graph_edges) == 12 and all(
            source != target for source, target in graph_edges
        )
        assert sorted(node for node, _ in graph_edges) == sorted(2 * list({node for node, _ in graph_edges}))
        assert len({node for node, _ in graph_edges}) == 6
        assert all(step in graph_edges for step in itertools.pairwise(walk)) and len(walk) == 4
    assert are_walks(walks, walks.walk_BL[:, None]).all()


def test_a_step_that_is_no_edge_makes_no_walk() -> None:
    walks = draw()
    changed_walks = walks.walk_BL.clone()
    for graph in range(len(changed_walks)):
        start_node = int(changed_walks[graph, 1])
        nodes = {node for node, _ in edges(walks, graph)}
        strangers = nodes - {target for node, target in edges(walks, graph) if node == start_node}
        changed_walks[graph, 2] = min(strangers)
    walk_pairs = torch.stack([walks.walk_BL, changed_walks], dim=1)
    assert are_walks(walks, walk_pairs).tolist() == [[True, False]] * len(changed_walks)


def test_walks_are_sampled_as_by_a_loop_that_reads_the_whole_sequence_again() -> None:
    torch.manual_seed(0)
    options = {"sampling_temperature": 0.7, "top_k_tokens": 4, "temperature_init": 0.5}
    module = GraphWalks(vocabulary=12, d_model=16, num_samples=4, **options).eval()
    walks = draw(5)
    with torch.no_grad():
        sampled_walks = module.sampled(walks, torch.Generator().manual_seed(1))
        generator = torch.Generator().manual_seed(1)
        nowhere = torch.full((5, 1), 12)
        previous = torch.cat([walks.from_BE, nowhere], dim=1).repeat_interleave(4, 0)
        token = torch.cat([walks.to_BE, walks.walk_BL[:, :1]], dim=1).repeat_interleave(4, 0)
        for _ in range(3):
            next_token = sample(module(previous, token)[:, -1], module.generation, generator=generator)
            previous = torch.cat([previous, token[:, -1:]], dim=1)
            token = torch.cat([token, next_token[:, None]], dim=1)
    assert torch.equal(sampled_walks, token[:, -4:].unflatten(0, (5, 4)))


def test_greedy_walks_are_all_the_same_and_sampled_ones_are_not() -> None:
    torch.manual_seed(0)
    walks = draw(8)
    for tau, is_varied in ((0.0, False), (1.0, True)):
        module = GraphWalks(vocabulary=12, d_model=16, sampling_temperature=tau).eval()
        with torch.no_grad():
            sampled_walks = module.sampled(walks, torch.Generator().manual_seed(1))
        assert sampled_walks.shape == (8, 16, 4)
        assert bool((sampled_walks != sampled_walks[:, :1]).any()) == is_varied


def test_it_learns_to_walk_and_both_temperatures_change_what_is_found(fit: Fit, validate: Any) -> None:
    module = GraphWalks(vocabulary=12, d_model=32, lr=0.01)
    data = GraphWalksData(num_nodes=4, num_nodes_larger=8, vocabulary=12, num_graphs=64)
    logged = fit(module, data, steps=260).callback_metrics
    assert logged["val_valid"] > 0.5
    pass_values = {}
    for tau, sampling in ((1.0, 1.0), (0.5, 1.0), (1.0, 0.0)):
        module.use(TemperatureParameters(temperature_init=tau))
        module._generation = GenerationParameters(sampling_temperature=sampling)
        _, items = validate(module, data, "val_pass_at_4")
        pass_values[tau, sampling] = items
    assert len({tuple(items.tolist()) for items in pass_values.values()}) == 3
    # the one walk that greedy decoding repeats ends at the goal, or not
    assert set(pass_values[1.0, 0.0].tolist()) <= {0.0, 1.0}


def test_what_is_logged_is_the_mean_of_its_items(fit: Fit, validate: Any) -> None:
    module = GraphWalks(vocabulary=12, d_model=16)
    data = GraphWalksData(num_nodes=4, num_nodes_larger=6, vocabulary=12, num_graphs=32)
    fit(module, data, steps=2)
    logged, items = validate(module, data, "val_pass_at_1")
    assert items.shape == (32,) and abs(float(items.mean()) - logged) < 1e-6
    (batch,) = data.val_dataloader()
    with torch.no_grad():
        walk_BSL = module.eval().sampled(batch, torch.Generator().manual_seed(0))
    correct = are_walks(batch, walk_BSL) & (walk_BSL[..., -1] == batch.walk_BL[:, None, -1])
    assert torch.allclose(pass_at_k_of(correct, 1), items)
