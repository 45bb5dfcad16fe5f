"""A walk through a graph that is in the prompt: a small language model whose answers have to be sampled.

The prompt lists the edges of a graph, in which two edges leave each node, and a start. The model continues
with a walk. The right answer ends at a goal, which the prompt does not say: as with programs that are run
against hidden tests, several answers are plausible, and more samples find the right one more often. Sampling
that is too cold repeats one walk; sampling that is too hot walks along edges that are not there. Graphs are
larger than in training, where attention that is too soft confuses edges, so both temperatures matter.

Shapes: B graphs, E edges, L steps of a walk, S samples of each graph, N tokens, V nodes that have a name,
M model dimension, H heads, D head dimension.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import lightning as L
import torch
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from lightning_modules.batches import Drawn, Stored, batches
from lightning_modules.optimisation import adamw_with_cosine
from lightning_modules.transformer import Attend, TransformerLayer
from tempopt import TemperedModule
from tempopt.attention.generation import pass_at_k_of, sample

DEGREE = 2
_SEED = 0


class Walks(NamedTuple):
    """A batch of graphs, each with a walk in it.

    ``from_BE`` and ``to_BE`` are the ends of the edges, in random order; ``walk_BL`` a random walk, its start
    first, which makes L = steps + 1.
    """

    from_BE: Tensor
    to_BE: Tensor
    walk_BL: Tensor


def draw_walks(
    num_graphs: int,
    num_nodes: int,
    *,
    num_steps: int,
    vocabulary: int,
    generator: torch.Generator | None = None,
) -> Walks:
    """Draw graphs whose nodes are some of the vocabulary, and a walk that takes each edge of a node as often.

    Args:
        num_graphs: Graphs in the batch, >= 1.
        num_nodes: Nodes of a graph, 3 <= num_nodes <= vocabulary.
        num_steps: Edges of the walk, >= 1.
        vocabulary: Number of names of nodes.
        generator: What to draw from; None for torch's global generator.
    """
    rand, randint = partial(torch.rand, generator=generator), partial(torch.randint, generator=generator)
    names_BK = rand(num_graphs, vocabulary).argsort(1)[:, :num_nodes]
    # two different nodes, and not the node itself
    place_BKK = rand(num_graphs, num_nodes, num_nodes) + torch.eye(num_nodes)
    next_BKD = place_BKK.argsort(-1)[..., :DEGREE]
    node_B = randint(num_nodes, (num_graphs,))
    rows_B, walk = torch.arange(num_graphs), [node_B]
    for _ in range(num_steps):
        node_B = next_BKD[rows_B, node_B, randint(DEGREE, (num_graphs,))]
        walk.append(node_B)
    order_BE = rand(num_graphs, num_nodes * DEGREE).argsort(1)
    from_BE = names_BK.repeat_interleave(DEGREE, dim=1)
    to_BE = names_BK.gather(1, next_BKD.flatten(1))
    return Walks(
        from_BE.gather(1, order_BE),
        to_BE.gather(1, order_BE),
        names_BK.gather(1, torch.stack(walk, dim=1)),
    )


def are_walks(walks: Walks, walk_BSL: Tensor) -> Tensor:
    """Return whether each step of sampled walks is an edge of the graph, of shape (B, S).

    Args:
        walks: The graphs.
        walk_BSL: Sampled walks, their start first.
    """
    here_BSL1, there_BSL1 = walk_BSL[..., :-1, None], walk_BSL[..., 1:, None]
    is_edge = (walks.from_BE[:, None, None] == here_BSL1) & (walks.to_BE[:, None, None] == there_BSL1)
    return is_edge.any(-1).all(-1)


class _Cache:
    """Keys and values of the tokens so far, by layer."""

    def __init__(self) -> None:
        self.by_layer: dict[int, tuple[Tensor, Tensor]] = {}

    def joined(self, layer: int, k_BHND: Tensor, v_BHND: Tensor) -> tuple[Tensor, Tensor]:
        """Return those of all tokens of a layer, the new ones last."""
        new = (k_BHND, v_BHND)
        if layer in self.by_layer:
            before = self.by_layer[layer]
            new = (torch.cat([before[0], k_BHND], dim=2), torch.cat([before[1], v_BHND], dim=2))
        self.by_layer[layer] = new
        return new

    def repeat(self, times: int) -> None:
        """Have each graph as often, one after the other."""
        self.by_layer = {
            layer: (k_BHND.repeat_interleave(times, 0), v_BHND.repeat_interleave(times, 0))
            for layer, (k_BHND, v_BHND) in self.by_layer.items()
        }


class GraphWalks(TemperedModule):
    """A causal transformer that continues a start with a walk along the edges of its prompt.

    An edge is one token, made of both of its ends, and so is a step of the walk; there are no positions, so
    that graphs may be larger than in training. Logs ``val_pass_at_4``, ``val_pass_at_1`` and ``val_valid``:
    the chance that one of four sampled walks, or one, ends at the goal, and the share of sampled walks that
    are walks. Samples are drawn by ``self.generation`` with the same noise in each evaluation.

    Args:
        vocabulary: Number of names of nodes, as in the data.
        d_model: Width, >= 1.
        num_layers: Layers, >= 1.
        num_heads: Heads per layer; divides ``d_model``.
        num_samples: Walks that are sampled for each graph, >= 4.
        lr: Peak learning rate of AdamW, > 0.
        weight_decay: Decoupled weight decay, >= 0.
        **temperature: The temperature of the attention and the parameters of generation, see
            :class:`tempopt.TemperedModule`.
    """

    def __init__(
        self,
        vocabulary: int = 32,
        d_model: int = 64,
        num_layers: int = 1,
        num_heads: int = 2,
        num_samples: int = 16,
        lr: float = 8e-3,
        weight_decay: float = 0.05,
        **temperature: Any,
    ) -> None:
        super().__init__(num_layers=num_layers, **temperature)
        self.lr = lr
        self.weight_decay = weight_decay
        self.num_samples = num_samples
        self.nowhere = vocabulary
        self.embed = nn.Embedding(vocabulary + 1, d_model)
        nn.init.normal_(self.embed.weight, std=0.02)
        self.embed_previous = nn.Linear(d_model, d_model)
        self.body = nn.ModuleList(
            TransformerLayer(d_model, num_heads, rotary=False) for _ in range(num_layers)
        )
        self.read = nn.Sequential(nn.LayerNorm(d_model), nn.Linear(d_model, vocabulary))

    def forward(self, previous_BN: Tensor, token_BN: Tensor, cache: _Cache | None = None) -> Tensor:
        """Return logits of the next node after each token, of shape (graphs, tokens, vocabulary).

        Args:
            previous_BN: Where each edge or step begins.
            token_BN: Where it ends.
            cache: Keys and values of the tokens before; those of these are added.
        """
        x_BNM = self.embed(token_BN) + self.embed_previous(self.embed(previous_BN))
        for number, layer in enumerate(self.body):
            x_BNM = layer(x_BNM, self._attention(number, _Cache() if cache is None else cache))
        logits_BNV: Tensor = self.read(x_BNM)
        return logits_BNV

    def _attention(self, layer: int, cache: _Cache) -> Attend:
        def attend(q_BHND: Tensor, k_BHND: Tensor, v_BHND: Tensor) -> Tensor:
            k_BHKD, v_BHKD = cache.joined(layer, k_BHND, v_BHND)
            # one token sees all before it
            return self.attend(q_BHND, k_BHKD, v_BHKD, layer=layer, is_causal=q_BHND.shape[2] > 1)

        return attend

    def _prompt(self, walks: Walks) -> tuple[Tensor, Tensor]:
        """Return the edges and the start, as what each token is made of."""
        nowhere_B1 = torch.full_like(walks.walk_BL[:, :1], self.nowhere)
        previous_BN = torch.cat([walks.from_BE, nowhere_B1], dim=1)
        return previous_BN, torch.cat([walks.to_BE, walks.walk_BL[:, :1]], dim=1)

    def training_step(self, batch: Walks, batch_idx: int) -> Tensor:
        previous_BN, token_BN = self._prompt(batch)
        step_BL = batch.walk_BL[:, 1:]
        previous_BN = torch.cat([previous_BN, batch.walk_BL[:, :-2]], dim=1)
        logits_BNV = self(previous_BN, torch.cat([token_BN, step_BL[:, :-1]], dim=1))
        return F.cross_entropy(logits_BNV[:, -step_BL.shape[1] :].flatten(0, 1), step_BL.flatten())

    def sampled(self, walks: Walks, generator: torch.Generator) -> Tensor:
        """Return walks that are sampled by ``self.generation``, of shape (B, S, L), their start first.

        Args:
            walks: The graphs, with walks of the length to sample.
            generator: What they are drawn from.
        """
        cache, num_samples = _Cache(), self.num_samples
        logits_BV: Tensor = self(*self._prompt(walks), cache)[:, -1]
        cache.repeat(num_samples)
        logits_RV = logits_BV.repeat_interleave(num_samples, 0)
        steps = [walks.walk_BL[:, 0].repeat_interleave(num_samples)]
        while True:
            steps.append(sample(logits_RV, self.generation, generator=generator))
            if len(steps) == walks.walk_BL.shape[1]:
                walk_BSL: Tensor = torch.stack(steps, dim=1).unflatten(0, (-1, num_samples))
                return walk_BSL
            logits_RV = self(steps[-2][:, None], steps[-1][:, None], cache)[:, -1]

    def validation_step(self, batch: Walks, batch_idx: int, dataloader_idx: int = 0) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(_SEED + batch_idx)
        walk_BSL = self.sampled(batch, generator)
        valid_BS = are_walks(batch, walk_BSL)
        correct_BS = valid_BS & (walk_BSL[..., -1] == batch.walk_BL[:, None, -1])
        values = {
            "pass_at_4": pass_at_k_of(correct_BS, 4),
            "pass_at_1": pass_at_k_of(correct_BS, 1),
            "valid": valid_BS.float().mean(1),
        }
        means = {f"val_{name}": value_B.mean() for name, value_B in values.items()}
        self.log_dict(means, batch_size=len(walk_BSL), sync_dist=True)
        return {f"val_{name}": value_B for name, value_B in values.items()}

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        return adamw_with_cosine(self, lr=self.lr, weight_decay=self.weight_decay)


class GraphWalksData(L.LightningDataModule):
    """Graphs drawn as they are needed: small ones to train on, larger ones to validate and test on.

    Training graphs follow torch's global generator. Validation graphs follow ``seed`` and are the same in all
    runs. Test graphs follow the seed that the global generator was last given: new for every seed of a run.

    Args:
        num_nodes: Nodes of a training graph, >= 3.
        num_nodes_larger: Nodes of a graph to validate and test on, at most the vocabulary.
        num_steps: Edges of a walk, >= 2.
        vocabulary: Number of names of nodes; as in the module.
        batch_size: Graphs in a training batch, >= 1.
        epoch_batches: Training batches that are counted as an epoch, >= 1.
        num_graphs: Graphs to validate on, and to test on, >= 1.
        seed: Seed of the validation graphs.
        num_workers: Processes that draw training graphs.
    """

    def __init__(
        self,
        num_nodes: int = 6,
        num_nodes_larger: int = 24,
        num_steps: int = 3,
        vocabulary: int = 32,
        batch_size: int = 32,
        epoch_batches: int = 150,
        num_graphs: int = 64,
        seed: int = 0,
        num_workers: int = 0,
    ) -> None:
        super().__init__()
        self.num_nodes, self.num_nodes_larger = num_nodes, num_nodes_larger
        self.draw = partial(draw_walks, num_steps=num_steps, vocabulary=vocabulary)
        self.batch_size = batch_size
        self.epoch_batches = epoch_batches
        self.num_graphs = num_graphs
        self.seed = seed
        self.num_workers = num_workers

    def _evaluation(self, seed: int) -> DataLoader[Walks]:
        generator = torch.Generator().manual_seed(seed)
        stored = Stored(self.draw(self.num_graphs, self.num_nodes_larger, generator=generator))
        return batches(stored, min(self.num_graphs, 64))

    def train_dataloader(self) -> DataLoader[Walks]:
        draw = partial(self.draw, num_nodes=self.num_nodes)
        epoch = Drawn(draw, self.batch_size * self.epoch_batches)
        return batches(epoch, self.batch_size, num_workers=self.num_workers)

    def val_dataloader(self) -> DataLoader[Walks]:
        return self._evaluation(self.seed)

    def test_dataloader(self) -> DataLoader[Walks]:
        return self._evaluation(torch.initial_seed())
