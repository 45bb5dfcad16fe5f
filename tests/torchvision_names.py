"""Lets a torchvision that was built for CUDA be imported beside a torch for the CPU: a pytest plugin.

It declares two operators whose code such a torchvision cannot load. timm imports torchvision for its images,
and no test here calls them.
"""

from __future__ import annotations

import torch

LIBRARY = torch.library.Library("torchvision", "DEF")
for name in ("nms", "qnms"):
    LIBRARY.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
