"""Walks through graphs: the task, sampling beside a loop without a cache, splits and learning."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import lightning as L
import torch
from torch import Tensor

from lightning_modules.graph_walks import GraphWalks, GraphWalksData, Walks, are_walks, draw_walks
from tempopt.attention.generation import pass_at_k_of, sample
from tempopt.temperature import GenerationParameters, TemperatureParameters

Fit = Callable[..., L.Trainer]


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


def test_test_graphs_are_new_for_each_run_and_never_those_of_validation() -> None:
    data = GraphWalksData(num_graphs=8)
    (validation_batch,) = data.val_dataloader()
    test_edges: list[Tensor] = []
    for run_seed in (1, 1, 2):
        torch.manual_seed(run_seed)
        (batch,) = data.test_dataloader()
        test_edges.append(batch.to_BE)
    assert torch.equal(test_edges[0], test_edges[1]) and not torch.equal(test_edges[0], test_edges[2])
    assert not torch.equal(test_edges[0], validation_batch.to_BE)


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
