"""What training sets in a module and its optimizers beside their states: modes, and what is trained."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from torch import nn
from torch.optim import Optimizer

OptimizedNames = list[list[list[str]] | None]
"""Of each optimizer the names of the parameters in each group; None if one of them is not the module's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleModes:
    """The modes of the parts of a module.

    Args:
        frozen: Names of the parameters that require no gradient.
        evaluating: Names of the parts in the mode of evaluation.
        untracked: Names of the parts that keep no running statistics, though they may.
    """

    frozen: list[str]
    evaluating: list[str]
    untracked: list[str]

    @classmethod
    def of(cls, module: nn.Module) -> Self:
        """Return the modes that a module is in."""
        parts = list(module.named_modules())
        return cls(
            frozen=[name for name, param in module.named_parameters() if not param.requires_grad],
            evaluating=[name for name, part in parts if not part.training],
            untracked=[name for name, part in parts if getattr(part, "track_running_stats", None) is False],
        )

    def restore(self, module: nn.Module) -> None:
        """Put a module into these modes."""
        frozen, evaluating, untracked = set(self.frozen), set(self.evaluating), set(self.untracked)
        for name, param in module.named_parameters():
            if param.requires_grad == (name in frozen):
                param.requires_grad_(name not in frozen)
        for name, part in module.named_modules():
            part.training = name not in evaluating
            if isinstance(getattr(part, "track_running_stats", None), bool):
                part.track_running_stats = name not in untracked

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, from which the class makes the same again."""
        return dataclasses.asdict(self)


def optimized_names(module: nn.Module, optimizers: Sequence[Optimizer]) -> OptimizedNames:
    """Return which parameters optimizers hold."""
    names = {id(param): name for name, param in module.named_parameters()}
    groups_by_optimizer: OptimizedNames = []
    for optimizer in optimizers:
        groups = [[names.get(id(param), "") for param in group["params"]] for group in optimizer.param_groups]
        groups_by_optimizer.append(None if any("" in group for group in groups) else groups)
    return groups_by_optimizer


def regroup_parameters(
    module: nn.Module, optimizers: Sequence[Optimizer], groups_by_optimizer: OptimizedNames
) -> None:
    """Give optimizers the groups of parameters that training had given them."""
    params = dict(module.named_parameters())
    for optimizer, groups in zip(optimizers, groups_by_optimizer, strict=True):
        for index, names in enumerate(groups or ()):
            group = [params[name] for name in names]
            if index < len(optimizer.param_groups):
                optimizer.param_groups[index]["params"] = group
            else:
                optimizer.add_param_group({"params": group})
