"""Losses and samplers as other people publish them, each with the number that is its temperature.

Each case makes one anew at any temperature by the class's own arguments, which is the oracle: a class that is
attached to has to do what one does that was made so.

Shapes: N items, two views of each of N // 2; E embedding dimensions.
"""

from __future__ import annotations

import importlib
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

ITEMS, WIDTH, CLASSES = 12, 8, 3
Step = Callable[[Any, Tensor], Tensor]


@dataclass(frozen=True)
class ForeignLoss:
    """One temperature of one class.

    Args:
        package: What has to be installed.
        name: Name of the class in it, with the module where that is not the package.
        path: Where the temperature is.
        default_temperature: The temperature that the class has by default.
        step: The loss of the class on the embeddings of a batch.
        make_arguments: Return the class arguments for a temperature; None keeps the default.
        transform: How the class keeps its temperature.
        label: Label of the test case, if it differs from the name of the class.
        by_hand: Whether no argument of the class sets the temperature, so that it is written afterwards.
    """

    package: str
    name: str
    path: str
    default_temperature: float
    step: Step
    make_arguments: Callable[[float | None], dict[str, Any]]
    transform: str = "identity"
    label: str = ""
    by_hand: bool = False

    def __str__(self) -> str:
        return f"{self.package}-{self.label or self.name.rpartition('.')[2]}-{self.path}"

    def make(self, temperature: float | None = None) -> Any:
        """Return the class at a temperature, None for its own; weights are the same each time."""
        pytest.importorskip(
            self.package,
            reason=f"NOT TESTED: losses of {self.package}, which is missing.",
            exc_type=ImportError,
        )
        module, _, name = f"{self.package}.{self.name}".rpartition(".")
        torch.manual_seed(0)
        loss_module = getattr(importlib.import_module(module), name)(**self.make_arguments(temperature))
        if self.by_hand and temperature is not None:
            owner, _, name = self.path.rpartition(".")
            holder = operator.attrgetter(owner)(loss_module) if owner else loss_module
            value = getattr(holder, name)
            if isinstance(value, Tensor):
                torch.nn.init.constant_(value, -math.log(temperature))
            else:
                setattr(holder, name, temperature)
        return loss_module


def argument(name: str, inverse: bool = False, **options: Any) -> Callable[[float | None], dict[str, Any]]:
    """Return a maker of arguments, of which one is the temperature or its inverse."""

    def init_arguments(temperature: float | None) -> dict[str, Any]:
        if temperature is None:
            return options
        return {**options, name: 1 / temperature if inverse else temperature}

    return init_arguments


def views(z_NE: Tensor) -> tuple[Tensor, Tensor]:
    """Return both views of each item."""
    left_view, right_view = z_NE.chunk(2)
    return left_view, right_view


def of_views(criterion: Any, z_NE: Tensor) -> Tensor:
    loss: Tensor = criterion(*views(z_NE))
    return loss


def of_labels(criterion: Any, z_NE: Tensor) -> Tensor:
    loss: Tensor = criterion(z_NE, torch.arange(ITEMS) // (ITEMS // CLASSES))
    return loss


def of_teacher(criterion: Any, z_NE: Tensor) -> Tensor:
    left_view, right_view = views(z_NE)
    loss: Tensor = criterion([left_view.detach(), right_view.detach()], [left_view, right_view])
    return loss


def of_patches(criterion: Any, z_NE: Tensor) -> Tensor:
    mask = torch.zeros(2, 3, 2, dtype=torch.bool)
    mask[:, 0], mask[:, 1, 0] = True, True
    left_view, right_view = views(z_NE)
    loss: Tensor = criterion(left_view.detach(), right_view, mask)
    return loss


def of_clusters(criterion: Any, z_NE: Tensor) -> Tensor:
    left_view, right_view = (view.reshape(3, 2, WIDTH) for view in views(z_NE))
    loss: Tensor = criterion(left_view.detach(), right_view)
    return loss


def of_crops(criterion: Any, z_NE: Tensor) -> Tensor:
    left_view, right_view = (F.normalize(view) for view in views(z_NE))
    loss: Tensor = criterion([left_view, right_view], [right_view])
    return loss


def of_prototypes(criterion: Any, z_NE: Tensor) -> Tensor:
    left_view, right_view = views(z_NE)
    loss: Tensor = criterion(left_view, right_view.detach(), torch.eye(4, WIDTH))
    return loss


def of_regions(criterion: Any, z_NE: Tensor) -> Tensor:
    one_BME, other_BME = (view.reshape(2, 3, WIDTH) for view in views(z_NE))
    masks_BM = torch.tensor([[0, 1, 2], [2, 1, 0]])
    loss: Tensor = criterion(one_BME, other_BME, masks_BM, masks_BM)
    return loss


def of_codes(quantizer: Any, z_NE: Tensor) -> Tensor:
    torch.manual_seed(1)
    codes_NE, _, loss = quantizer(z_NE[None])
    return F.mse_loss(codes_NE[0], torch.ones(ITEMS, WIDTH)) + loss.sum()


def pixels(z_NE: Tensor) -> Tensor:
    """Return the embeddings as two small images."""
    return z_NE.reshape(2, 3, 4, 4)


TOKENS = torch.tensor([[1, 3, 4, 2], [1, 5, 6, 2]])


def of_pairs(model: Any, z_NE: Tensor) -> Tensor:
    loss: Tensor = model(input_ids=TOKENS, pixel_values=pixels(z_NE), return_loss=True).loss
    return loss


def of_sound(model: Any, z_NE: Tensor) -> Tensor:
    torch.manual_seed(1)
    time_mask = torch.tensor([[True, True, False] * 4, [False, True, True] * 4])
    negatives = torch.randint(0, 8, (2, 12, 3))
    # it is marked as an input by its own code, which takes no result of another layer
    sound = z_NE.detach().reshape(2, 48).repeat(1, 2)[:, :49]
    loss: Tensor = model(sound, mask_time_indices=time_mask, sampled_negative_indices=negatives).loss
    return loss


def of_open_clip(name: str) -> Step:
    """Return the step of a loss of open_clip."""

    def step(model: Any, z_NE: Tensor) -> Tensor:
        criterion = getattr(importlib.import_module("open_clip.loss"), name)()
        loss: Tensor = criterion(*model(pixels(z_NE), TOKENS))
        return loss

    return step


TOWER = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
TEXT = TOWER | {"vocab_size": 9, "max_position_embeddings": 4}
VISION = TOWER | {"image_size": 4, "patch_size": 2}


def clip(temperature: float | None) -> dict[str, Any]:
    """Return the arguments of a small CLIPModel."""
    from transformers import CLIPConfig

    scale = {} if temperature is None else {"logit_scale_init_value": -math.log(temperature)}
    text = TEXT | {"eos_token_id": 2, "bos_token_id": 1}
    return {"config": CLIPConfig(text_config=text, vision_config=VISION, projection_dim=8, **scale)}


def siglip(temperature: float | None) -> dict[str, Any]:
    """Return the arguments of a small SiglipModel."""
    from transformers import SiglipConfig

    return {"config": SiglipConfig(text_config=TEXT, vision_config=VISION)}


def wav2vec2(temperature: float | None) -> dict[str, Any]:
    """Return the arguments of a small Wav2Vec2ForPreTraining."""
    from transformers import Wav2Vec2Config

    convolution = {"conv_dim": (8,), "conv_stride": (4,), "conv_kernel": (5,), "num_feat_extract_layers": 1}
    codes = {"codevector_dim": 8, "proj_codevector_dim": 8, "num_codevectors_per_group": 6}
    positions = {"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2}
    static_options = {"layerdrop": 0.0, "hidden_dropout": 0.0, "feat_extract_norm": "layer"}
    return {"config": Wav2Vec2Config(**TOWER, **convolution, **codes, **positions, **static_options)}


def open_clip(**options: Any) -> Callable[[float | None], dict[str, Any]]:
    """Return a maker of the arguments of a small CLIP of open_clip."""

    def init_arguments(temperature: float | None) -> dict[str, Any]:
        from open_clip.model import CLIPTextCfg, CLIPVisionCfg

        scale = {} if temperature is None else {"init_logit_scale": -math.log(temperature)}
        return {
            "embed_dim": 8,
            "vision_cfg": CLIPVisionCfg(layers=1, width=8, head_width=4, patch_size=2, image_size=4),
            "text_cfg": CLIPTextCfg(context_length=4, vocab_size=9, width=8, heads=2, layers=1),
            **options,
            **scale,
        }

    return init_arguments


def lightly(
    name: str, step: Step, default_tau: float, path: str = "temperature", **options: Any
) -> ForeignLoss:
    label = options.pop("label", "")
    make_arguments = argument(path.rpartition(".")[2], **options)
    return ForeignLoss("lightly", f"loss.{name}", path, default_tau, step, make_arguments, label=label)


def metric(name: str, default_tau: float, path: str = "temperature", **options: Any) -> ForeignLoss:
    inverse = path != "temperature"
    if name in ("ArcFaceLoss", "CosFaceLoss", "SubCenterArcFaceLoss", "LargeMarginSoftmaxLoss") or (
        name.startswith(("Proxy", "SoftTriple", "Normalized", "SphereFace"))
    ):
        options = {"num_classes": CLASSES, "embedding_size": WIDTH, **options}
    # the only one that is given as a temperature and kept as its inverse
    is_given_as_kept = (name, path) != ("SoftTripleLoss", "gamma")
    make_arguments = argument(path, inverse=inverse and is_given_as_kept, **options)
    return ForeignLoss(
        "pytorch_metric_learning",
        f"losses.{name}",
        path,
        default_tau,
        of_labels,
        make_arguments,
        transform="inverse" if inverse else "identity",
    )


def quantizer(path: str, default_tau: float, label: str, **options: Any) -> ForeignLoss:
    inverse = path == "codebook_diversity_temperature"
    make_arguments = argument(path.rpartition(".")[2], inverse=inverse, dim=WIDTH, codebook_size=5, **options)
    return ForeignLoss(
        "vector_quantize_pytorch",
        "VectorQuantize",
        path,
        default_tau,
        of_codes,
        make_arguments,
        transform="inverse" if inverse else "identity",
        label=label,
    )


def logit_scale(package: str, name: str, default_tau: float, *how: Any, **options: Any) -> ForeignLoss:
    """Return the case of a model that keeps ln(1/τ), as CLIP has it."""
    return ForeignLoss(package, name, "logit_scale", default_tau, *how, transform="log_inverse", **options)


SAMPLED = "_codebook.sample_codebook_temp"
DINO = {"output_dim": WIDTH, "warmup_teacher_temp_epochs": 0}
FOREIGN = [
    lightly("NTXentLoss", of_views, 0.5),
    lightly("NTXentLoss", of_views, 0.5, memory_bank_size=(16, WIDTH), label="NTXentLoss with a memory bank"),
    lightly("DCLLoss", of_views, 0.1),
    lightly("DCLWLoss", of_views, 0.1),
    lightly("MACLLoss", of_views, 0.1),
    lightly("SwaVLoss", of_crops, 0.1),
    lightly("SwaVLoss", of_crops, 0.05, "sinkhorn_epsilon"),
    lightly("DINOLoss", of_teacher, 0.04, "teacher_temp", **DINO),
    lightly("DINOLoss", of_teacher, 0.1, "student_temp", **DINO),
    lightly("IBOTPatchLoss", of_patches, 0.04, "teacher_temp", output_dim=WIDTH),
    lightly("IBOTPatchLoss", of_patches, 0.1, "student_temp", output_dim=WIDTH),
    lightly("CAPILoss", of_clusters, 0.06, "teacher_temperature"),
    lightly("CAPILoss", of_clusters, 0.12, "student_temperature"),
    lightly("MSNLoss", of_prototypes, 0.1),
    lightly("PMSNLoss", of_prototypes, 0.1),
    lightly("DetConSLoss", of_regions, 0.1, "detconbloss.temperature", gather_distributed=False),
    metric("NTXentLoss", 0.07),
    metric("SupConLoss", 0.1),
    metric("NormalizedSoftmaxLoss", 0.05),
    metric("SmoothAPLoss", 0.01),
    metric("NCALoss", 1.0, "softmax_scale"),
    metric("ProxyNCALoss", 1.0, "softmax_scale"),
    metric("TupletMarginLoss", 1 / 64, "scale"),
    metric("ArcFaceLoss", 1 / 64, "scale"),
    metric("SubCenterArcFaceLoss", 1 / 64, "scale"),
    metric("CosFaceLoss", 1 / 64, "scale"),
    metric("LargeMarginSoftmaxLoss", 1.0, "scale"),
    metric("SphereFaceLoss", 1.0, "scale"),
    metric("ProxyAnchorLoss", 1 / 32, "alpha"),
    metric("SoftTripleLoss", 0.05, "la"),
    metric("SoftTripleLoss", 0.1, "gamma"),
    metric("CircleLoss", 1 / 80, "gamma"),
    ForeignLoss("info_nce", "InfoNCE", "temperature", 0.1, of_views, argument("temperature")),
    quantizer(SAMPLED, 1.0, "Euclidean codes", stochastic_sample_codes=True),
    quantizer(SAMPLED, 1.0, "cosine codes", stochastic_sample_codes=True, use_cosine_sim=True),
    quantizer(
        "codebook_diversity_temperature",
        0.01,
        "codes with a diversity loss",
        codebook_diversity_loss_weight=0.1,
    ),
    logit_scale("open_clip", "model.CLIP", 0.07, of_open_clip("ClipLoss"), open_clip()),
    logit_scale(
        "open_clip",
        "model.CLIP",
        0.1,
        of_open_clip("SigLipLoss"),
        open_clip(init_logit_scale=math.log(10), init_logit_bias=-10.0),
        label="CLIP with the loss of SigLIP",
    ),
    logit_scale("transformers", "CLIPModel", 0.07, of_pairs, clip),
    logit_scale("transformers", "SiglipModel", 1.0, of_pairs, siglip, by_hand=True),
    *(
        ForeignLoss(
            "transformers", "Wav2Vec2ForPreTraining", path, default_tau, of_sound, wav2vec2, by_hand=True
        )
        for path, default_tau in (
            ("quantizer.temperature", 2.0),
            ("config.contrastive_logits_temperature", 0.1),
        )
    ),
]
