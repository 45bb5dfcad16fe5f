"""Baked weights: the outputs of the attached model, without the attachment and without tempopt."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tempopt import AttachError, attach, bake
from tempopt.attention.attach import detach

WIDTH = 16
MOVING = {"schedule": "linear", "temperature_init": 5.0, "temperature_final": 0.3, "layer_pattern": "linear"}
MOVING |= {"layer_ratio": 3.0}


def encoder() -> nn.TransformerEncoder:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 32, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()


def items() -> Tensor:
    return torch.randn(3, 5, WIDTH, generator=torch.Generator().manual_seed(1))


def outputs(model: nn.Module) -> Tensor:
    with torch.no_grad():
        out = model(items())
    assert isinstance(out, Tensor)
    return out


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_outputs_are_those_of_the_end_of_the_plan_up_to_rounding(dtype: torch.dtype) -> None:
    model, inputs = encoder().to(dtype), items().to(dtype)
    attachment = attach(model, MOVING)
    attachment.set_progress(1.0)
    # Without gradients PyTorch takes a fused way past the projections where it can.
    attached, final_taus = model(inputs), attachment.temperatures
    attachment.set_progress(0.2)
    assert bake(model) == dict(zip(attachment.layers, map(pytest.approx, final_taus), strict=True))
    assert not attachment.attached
    assert {type(module) for module in model.modules()} == {type(module) for module in encoder().modules()}
    tolerance = 8 * torch.finfo(dtype).eps
    torch.testing.assert_close(model(inputs), attached, rtol=tolerance, atol=tolerance)


def test_a_wrapper_and_copies_of_an_attached_model_are_baked_as_it_is() -> None:
    model = encoder()
    attach(model, MOVING).set_progress(1.0)
    attached = outputs(model)
    for attached_model in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), model):
        bake(nn.Sequential(attached_model))
        torch.testing.assert_close(outputs(attached_model), attached, rtol=1e-5, atol=1e-5)


def test_only_an_attached_model_and_only_the_whole_of_it_can_be_baked() -> None:
    model = encoder()
    with pytest.raises(AttachError, match=r"no temperature attached.*tempopt.attach.*TemperedModule"):
        bake(model)
    attach(model, MOVING)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(AttachError, match="1 of the 2 layers"):
        bake(model.layers[0])
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    bake(model)
    with pytest.raises(AttachError, match="no temperature attached"):
        bake(model)


def test_bake_warns_that_adapters_of_peft_lack_the_scaled_weights() -> None:
    adapted, model = encoder(), nn.ModuleList([encoder(), encoder()])
    adapted.peft_config = {}  # type: ignore[assignment]
    attach(adapted, MOVING)
    with pytest.warns(UserWarning, match="merge_and_unload"):
        bake(adapted)
    # an adapter elsewhere in the model loses nothing
    model[1].peft_config = {}
    attach(model, MOVING, layers=["0.*"])
    bake(model)


# ---- the mark


def baked_encoder() -> nn.TransformerEncoder:
    model = encoder()
    attach(model, {"temperature_init": 0.5})
    bake(model)
    return model


def saved_state(model: nn.Module) -> Any:
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def test_a_model_that_is_baked_is_not_attached_to_unless_that_is_asked_for() -> None:
    for model in (
        baked_encoder(),
        copy.deepcopy(baked_encoder()),
        pickle.loads(pickle.dumps(baked_encoder())),
    ):
        with pytest.raises(AttachError, match=r'"layers.0.self_attn" has the temperature 0.5.*allow_baked'):
            attach(model, {"temperature_init": 0.5})
        attach(model, {"temperature_init": 0.5}, allow_baked=True)
        bake(model)
        with pytest.raises(AttachError, match=r"has the temperature 0.25 "):
            attach(model, {})


def test_the_mark_goes_with_saved_weights_into_another_model() -> None:
    state = saved_state(baked_encoder())
    assert list(state) == list(encoder().state_dict())
    model = encoder()
    model.load_state_dict(state, strict=True)
    assert torch.equal(outputs(model), outputs(baked_encoder()))
    with pytest.raises(AttachError, match=r"has the temperature 0.5 in its weights"):
        attach(model, {})
    # and on
    loaded_model = encoder()
    loaded_model.load_state_dict(saved_state(model))
    with pytest.raises(AttachError, match=r"has the temperature 0.5 in its weights"):
        attach(loaded_model, {})
    # weights without a temperature take it away
    model.load_state_dict(saved_state(encoder()))
    attach(model, {})


def test_baked_weights_are_not_loaded_under_an_attached_temperature() -> None:
    model = encoder()
    attachment = attach(model, {"temperature_init": 0.5})
    with pytest.raises(AttachError, match="has one attached, which would come on top of it. Detach it first"):
        model.load_state_dict(saved_state(baked_encoder()))
    attachment.detach()
    model.load_state_dict(saved_state(baked_encoder()))


def test_a_state_dict_of_baked_weights_is_one_of_any_process(tmp_path: Path) -> None:
    torch.save(baked_encoder().state_dict(), tmp_path / "baked.pt")
    (tmp_path / "tempopt.py").write_text("raise ImportError")
    code = f"""
import torch
from torch import nn
layer = nn.TransformerEncoderLayer({WIDTH}, 4, 32, dropout=0.0, batch_first=True)
model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
model.load_state_dict(torch.load("baked.pt"))
items = torch.randn(3, 5, {WIDTH}, generator=torch.Generator().manual_seed(1))
with torch.no_grad():
    torch.save(model(items), "out.pt")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert torch.equal(torch.load(tmp_path / "out.pt"), outputs(baked_encoder()))


# ---- models of transformers

SIZES: dict[str, Any] = dict(
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=16,
    vocab_size=20,
    max_position_embeddings=32,
    pad_token_id=0,
    bos_token_id=None,
    eos_token_id=None,
)


def make_model(family: str, **options: Any) -> Any:
    transformers = pytest.importorskip(
        "transformers", reason="NOT TESTED: models of transformers. Install tempopt[transformers]."
    )
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**SIZES | options)
    model = getattr(transformers, f"{family}Model")(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape))
    return model.eval()


def first_output(model: Any) -> Tensor:
    tokens = torch.randint(1, 20, (2, 7), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        out: Tensor = model(tokens)[0]
    return out


FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": {},
    "Qwen3": {"head_dim": 4, "num_key_value_heads": 2},  # a norm behind the query
    "Gemma3Text": {"head_dim": 4, "num_key_value_heads": 2},  # that adds 1 to its weight
    "Phi3": {"num_key_value_heads": 2},  # query, key and value in one, the query first
    "GPTNeoX": {},  # head by head
}


@pytest.mark.parametrize("family", FAMILIES)
def test_powers_of_two_are_kept_to_the_bit_and_others_up_to_rounding(family: str) -> None:
    for temperature in (0.25, 3.0):
        model = make_model(family, **FAMILIES[family])
        plain = first_output(model)
        hot = {"temperature_init": temperature}
        attachment = attach(model, hot, example=None)
        attached = first_output(model)
        baked_taus = bake(model, example=lambda model=model: model(torch.arange(1, 8)[None])[0])
        assert list(baked_taus) == attachment.layers and set(baked_taus.values()) == {temperature}
        moved = (attached - plain).abs().max()
        assert (first_output(model) - attached).abs().max() < 1e-4 * moved
        # what adds 1 to its weight rounds it before
        if temperature == 0.25 and family != "Gemma3Text":
            assert torch.equal(first_output(model), attached)


def test_what_makes_the_query_is_told_by_an_example() -> None:
    model = make_model("GPTNeoX")
    attach(model, {"temperature_init": 0.5}, example=None)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(AttachError, match=r"is told by a forward.*example=lambda: model\(batch\)"):
        bake(model, example=None)
    # one token sees nothing but itself, whatever the temperature
    with pytest.raises(AttachError, match="is told by a forward over more than one token"):
        bake(model, example=lambda: model(torch.ones(1, 1, dtype=torch.long))[0])
    # the query's weights are found by gradients
    with pytest.raises(AttachError, match="give an example without torch.no_grad"):
        bake(model, example=torch.no_grad()(lambda: model(torch.arange(1, 8)[None])[0]))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert bake(model, example=lambda: model(torch.arange(1, 8)[None])[0])


class LowRank(nn.Linear):
    """A projection with a part of low rank beside its weight, as LoRA has."""

    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH)
        self.down, self.up = (nn.Parameter(0.3 * torch.randn(shape)) for shape in ((2, WIDTH), (WIDTH, 2)))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 2 * nn.functional.linear(nn.functional.linear(x, self.down), self.up)


class AttentionOfParts(nn.Module):
    """Attention whose queries are one part of what a function makes, with a bias of their own."""

    def __init__(self, project: Any, *modules: nn.Module) -> None:
        super().__init__()
        self.project, self.modules_used = project, nn.ModuleList(modules)
        self.query_bias = nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.project(x, *self.modules_used)
        return (
            nn.functional.scaled_dot_product_attention(q + self.query_bias, k, v).transpose(1, 2).flatten(2)
        )


def head_major(x: Tensor, projection: nn.Module) -> list[Tensor]:
    return [
        part.squeeze(3) for part in projection(x).unflatten(-1, (4, 3, 4)).transpose(1, 2).split(1, dim=3)
    ]


def separate(x: Tensor, *projections: nn.Module) -> list[Tensor]:
    return [projection(x).unflatten(-1, (4, 4)).transpose(1, 2) for projection in projections]


@pytest.mark.parametrize("form", ["head-major", "low rank", "frozen", "input features of zeros"])
def test_the_query_is_found_in_any_layout_of_weights(form: str) -> None:
    torch.manual_seed(0)
    model = AttentionOfParts(separate, *(nn.Linear(WIDTH, WIDTH) for _ in range(3))).double()
    if form == "head-major":
        model = AttentionOfParts(head_major, nn.Linear(WIDTH, 3 * WIDTH)).double()
    elif form == "low rank":
        model = AttentionOfParts(separate, LowRank(), nn.Linear(WIDTH, WIDTH), LowRank()).double()
    elif form == "frozen":
        model.requires_grad_(False)
    is_trained = [parameter.requires_grad for parameter in model.parameters()]
    example = items().double()
    if form == "input features of zeros":
        example[..., ::2] = 0.0
    attach(model, {"temperature_init": 3.0}, example=lambda: model(example))
    expected = model(items().double())
    bake(model, example=lambda: model(example))
    torch.testing.assert_close(model(items().double()), expected, rtol=0, atol=1e-6)
    assert [parameter.requires_grad for parameter in model.parameters()] == is_trained
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("beside", "reason"),
    [
        ({"length_scaling": "log_n"}, "length_scaling="),
        ({"normaliser": "sparsemax"}, "normaliser="),
        ({"head_pattern": "exp", "head_ratio": 5.0}, 'head_pattern="exp"'),
        ({"local_share": 0.5, "window": 3}, r"local_share=0\.5"),
    ],
)
def test_what_is_decided_where_keys_are_seen_is_refused_with_what_works(beside: Any, reason: str) -> None:
    model = make_model("Llama")
    attach(model, {"temperature_init": 0.5, **beside}, example=None)
    with pytest.raises(AttachError, match=rf"{reason}.*tempopt.AttachCallback.*tempopt.load_checkpoint"):
        bake(model)
    detach(model)
    # the entropy term is one of training
    attach(model, {"temperature_init": 0.5, "entropy_lambda": 0.1}, example=None)
    assert set(bake(model).values()) == {0.5}


def test_parameters_that_cannot_hold_a_temperature_are_refused() -> None:
    tied = make_model("Llama")
    tied.layers[1].self_attn.q_proj.weight = tied.layers[0].self_attn.q_proj.weight
    unscaled = make_model("Qwen3", **FAMILIES["Qwen3"])
    for layer in unscaled.layers:
        layer.self_attn.q_norm = nn.RMSNorm(4, elementwise_affine=False)
    for model, reason in ((tied, "is shared by"), (unscaled, "norm without a weight")):
        attach(model, {"temperature_init": 0.5}, example=None)
        with pytest.raises(AttachError, match=rf"{reason}.*tempopt.load_checkpoint"):
            bake(model)
