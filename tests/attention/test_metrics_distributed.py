"""The metrics on two processes that each see half of the data, against one that sees all."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torchmetrics import MetricCollection

from tempopt.attention.analysis import metrics
from tempopt.attention.analysis.metrics import HeadMetric, QueryKeyMagnitude, _WeightMetric
from tempopt.attention.analysis.statistics import attention_weights

RANKS, HEADS, LAYERS = 2, 3, 2
NAMES = sorted(
    name
    for name, kind in vars(metrics).items()
    if isinstance(kind, type) and issubclass(kind, HeadMetric) and kind not in (HeadMetric, _WeightMetric)
)


def collection() -> MetricCollection:
    options = {"PatternScore": {"pattern": "previous_token"}}
    return MetricCollection(
        {name: getattr(metrics, name)(HEADS, num_layers=LAYERS, **options.get(name, {})) for name in NAMES}
    )


def examples() -> tuple[Tensor, Tensor]:
    """Return queries and keys of two batches, of which the second process gets the longer sequences."""
    generator = torch.Generator().manual_seed(0)
    q, k = (3.0 * torch.randn(LAYERS, 5, HEADS, 7, 4, generator=generator) for _ in range(2))
    return q, k


def valid() -> Tensor:
    return torch.arange(7) < torch.tensor([[2], [3], [7], [6], [7]])


def update(of: MetricCollection, part: slice) -> None:
    for layer, (q, k) in enumerate(zip(*examples(), strict=True)):
        options = {"layer": layer, "is_causal": True, "valid_BQ": valid()[part]}
        for metric in of.values(copy_state=False):
            inputs = (
                (q[part], k[part])
                if isinstance(metric, QueryKeyMagnitude)
                else (attention_weights(q[part], k[part], is_causal=True),)
            )
            metric.update(*inputs, **options)


def share(rank: int, folder: str) -> None:
    """What a process does: its own examples, then the mean over those of all."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=RANKS)
    of = collection()
    update(of, slice(0, 2) if rank == 0 else slice(2, 5))
    torch.save(of.compute(), Path(folder) / f"rank{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def of_ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Tensor]]:
    folder = tmp_path_factory.mktemp("ranks")
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=share, args=(rank, str(folder))) for rank in range(RANKS)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    assert [process.exitcode for process in ranks] == [0] * RANKS
    return [torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in range(RANKS)]


@pytest.mark.parametrize("name", NAMES)
def test_two_processes_agree_with_one_that_sees_all(name: str, of_ranks: list[dict[str, Tensor]]) -> None:
    alone, half = collection(), collection()
    update(alone, slice(None))
    update(half, slice(0, 2))
    expected = alone.compute()[name]
    for rank_values in of_ranks:
        torch.testing.assert_close(rank_values[name], expected, rtol=1e-6, atol=1e-7)
    assert not torch.isclose(half.compute()[name], expected, rtol=1e-3)
