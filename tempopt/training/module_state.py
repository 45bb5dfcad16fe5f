"""What training sets in a module and its optimizers beside their states: modes, and what is trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import nn
from torch.optim import Optimizer

OptimizedNames = list[list[list[str]] | None]
"""Of each optimizer the names of the parameters in each group; None if one of them is not the module's."""


def read_modes(module: nn.Module) -> dict[str, list[str]]:
    """Return the names of frozen parameters, and of the parts that evaluate or keep no running statistics."""
    parts = list(module.named_modules())
    return {
        "frozen": [name for name, param in module.named_parameters() if not param.requires_grad],
        "evaluating": [name for name, part in parts if not part.training],
        "untracked": [name for name, part in parts if getattr(part, "track_running_stats", None) is False],
    }


def restore_modes(module: nn.Module, modes: Mapping[str, Sequence[str]]) -> None:
    """Put a module into the modes that :func:`read_modes` has returned."""
    for name, param in module.named_parameters():
        if param.requires_grad == (name in modes["frozen"]):
            param.requires_grad_(name not in modes["frozen"])
    for name, part in module.named_modules():
        part.training = name not in modes["evaluating"]
        if isinstance(getattr(part, "track_running_stats", None), bool):
            part.track_running_stats = name not in modes["untracked"]


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
