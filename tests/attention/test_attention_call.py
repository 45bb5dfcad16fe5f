"""Temperatures on models of others, against references that share nothing with tempopt (``call_models``)."""

from __future__ import annotations

import copy
import io
import pickle
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

from tempopt import AttachError, Attachment, attach
from tempopt.attention.attach import detach
from tests.attention.call_models import (
    HOME_GROWN,
    TOKENS,
    WIDTH,
    Attention,
    BranchingAttention,
    CachedAttention,
    CallModel,
    ChunkedAttention,
    InnerCheckpointAttention,
    Nanochat,
    NormalisedAttention,
    flex,
    home_grown,
    original_name,
    random,
    recompute,
    run_ids,
    run_tokens,
    sdpa,
    sharpened,
    softmax_by_hand,
    temper_form,
    tokens_BTE,
    written,
)
from tests.attention.library_call_models import (
    MULTIHEAD,
    OTHER_LIBRARIES,
    TRANSFORMER,
    build_encoder,
)

pytestmark = pytest.mark.filterwarnings(
    "ignore:The PyTorch API of nested tensors is in prototype stage:UserWarning",
    # A library that is imported for the first time.
    "ignore:.*:DeprecationWarning:(torch_geometric|peft)",
)

HOT = {"temperature_init": 2.0}
# Whether the model is in training, whether gradients are on.
MODES = [(True, True), (False, True), (False, False), (True, False)]
IN_PROCESS = HOME_GROWN | MULTIHEAD | TRANSFORMER | OTHER_LIBRARIES


every_model = pytest.mark.parametrize("case", IN_PROCESS.values(), ids=IN_PROCESS)


def some(*names: str) -> Any:
    return pytest.mark.parametrize("case", [pytest.param(IN_PROCESS[name], id=name) for name in names])


# ---- what is compared


def result(
    case: CallModel, model: nn.Module, *, is_training: bool = True, has_gradients: bool = True
) -> dict[str, Tensor]:
    """Return the output of the model, and the gradients of a loss by parameter."""
    model.train(is_training)
    with torch.set_grad_enabled(has_gradients):
        output = case.run(model)
    return {"output": output.detach(), **(loss_gradients(model, output) if has_gradients else {})}


def loss_gradients(model: nn.Module, output: Tensor, extra: Tensor | float = 0.0) -> dict[str, Tensor]:
    """Return the gradients of a loss on the output, plus an extra term of the loss."""
    model.zero_grad()
    (((output * random(*output.shape, seed=9)).sum() / output.numel() ** 0.5) + extra).backward()
    return {
        original_name(name): torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
        for name, parameter in model.named_parameters()
    }


def assert_equal(actual: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float) -> None:
    """Assert equality up to a tolerance relative to the greatest number; 0 is bit for bit."""
    assert actual.keys() == expected.keys()
    gradient_size = max(
        [1.0, *(float(value.abs().max()) for name, value in expected.items() if name != "output")]
    )
    for name, value in expected.items():
        size = float(value.abs().max()) if name == "output" else gradient_size
        torch.testing.assert_close(
            actual[name], value, rtol=0, atol=tolerance * size, msg=lambda text, name=name: f"{name}: {text}"
        )


def assert_differs(actual: dict[str, Tensor], plain: dict[str, Tensor]) -> None:
    distance = (actual["output"] - plain["output"]).abs().max()
    assert distance > 1e-2 * plain["output"].abs().max()


def fingerprint(model: nn.Module) -> tuple[Any, ...]:
    """Return what ``detach``, and a refusal, leave as it was: classes, hooks and tensors by name."""
    classes = [(name, type(module), "forward" in vars(module)) for name, module in model.named_modules()]
    hooks = [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()]
    buffers = [name for name, _ in model.named_buffers()]
    return (
        classes,
        hooks,
        buffers,
        {name: tensor.numpy().tobytes() for name, tensor in model.state_dict().items()},
    )


def attached(case: CallModel, model: nn.Module, parameters: Any = HOT) -> Attachment:
    return attach(model, parameters, example=lambda: case.run(model))


def set_temperatures(
    case: CallModel, attachment: Attachment, values: tuple[float, ...] = (2.0, 0.5, 1.5, 3.0)
) -> dict[str, float]:
    """Give layers these temperatures in turn, and return them by the names that the case has for layers."""
    values = tuple(values[index % len(values)] for index in range(len(attachment.layers)))
    attachment.set_temperatures(values)
    temperatures = {}
    for name, value in zip(attachment.layers, values, strict=True):
        # What is tempered is a layer, a projection inside of one, or has layers inside.
        around = [layer for layer in case.layers if f"{name}.".startswith(f"{layer}.")]
        layers = (
            [max(around, key=len)]
            if around
            else [layer for layer in case.layers if layer.startswith(f"{name}.")]
        )
        assert layers, f"{name} is no attention"
        assert not temperatures.keys() & set(layers), f"{layers} have two temperatures"
        temperatures.update(dict.fromkeys(layers, value))
    assert temperatures.keys() == set(case.layers)
    return temperatures


def tempered(case: CallModel, temperatures: dict[str, float]) -> nn.Module:
    model = case.build()
    case.temper(model, temperatures)
    return model


# ---- the references themselves


@every_model
def test_a_reference_is_the_model_at_one_and_another_at_two(case: CallModel) -> None:
    plain = result(case, case.build())
    assert_equal(result(case, tempered(case, dict.fromkeys(case.layers, 1.0))), plain, 1e-12)
    for layer in case.layers:
        temperatures = dict.fromkeys(case.layers, 1.0) | {layer: 2.0}
        assert_differs(result(case, tempered(case, temperatures)), plain)


# ---- outputs and gradients


@every_model
def test_a_temperature_divides_the_product_of_query_and_key_alone(case: CallModel) -> None:
    model, plain = case.build(), case.build()
    before = fingerprint(model)
    try:
        attachment = attached(case, model)
        for mode in MODES:
            check_mode(case, model, plain, attachment, *mode)
        attachment.detach()
    except AttachError:
        if not case.may_refuse:
            raise
        detach(model)
    assert fingerprint(model) == before
    for is_training, has_gradients in MODES:
        options = {"is_training": is_training, "has_gradients": has_gradients}
        assert_equal(result(case, model, **options), result(case, plain, **options), 0.0)


def check_mode(
    case: CallModel,
    model: nn.Module,
    plain: nn.Module,
    attachment: Attachment,
    is_training: bool,
    has_gradients: bool,
) -> None:
    options = {"is_training": is_training, "has_gradients": has_gradients}
    untempered = result(case, plain, **options)
    temperatures = set_temperatures(case, attachment)
    expected = result(case, tempered(case, temperatures), **options)
    assert_differs(expected, untempered)
    assert_equal(result(case, model, **options), expected, case.tolerance)
    attachment.set_temperatures([1.0] * len(attachment.layers))
    # In evaluation without gradients PyTorch may take another kernel for the plain model.
    assert_equal(result(case, model, **options), untempered, 0.0 if is_training and has_gradients else 1e-12)


@pytest.mark.parametrize("form", [sdpa, partial(written, normaliser="F.softmax")], ids=["sdpa", "written"])
def test_a_network_whose_attention_is_closed_at_initialisation_is_tempered(form: Any) -> None:
    """nanochat starts with output projections of zeros: the temperature is in gradients alone."""

    def build() -> nn.Module:
        model = sharpened(Nanochat())
        for attention in model.layers:  # type: ignore[union-attr]
            attention.form = form
            for parameter in attention.out.parameters():
                nn.init.zeros_(parameter)
        return model

    case = CallModel(build=build, run=run_ids, temper=temper_form, layers=("layers.0", "layers.1"))
    model = build()
    attachment = attached(case, model)
    expected = result(case, tempered(case, set_temperatures(case, attachment)))
    assert_equal(result(case, model), expected, case.tolerance)
    name = "layers.1.out.weight"
    assert (expected[name] - result(case, build())[name]).abs().max() > 1e-2 * expected[name].abs().max()


def test_dropout_draws_what_it_draws_in_the_plain_model() -> None:
    case = replace(IN_PROCESS["encoder"], build=lambda: build_encoder(dropout=0.3))

    def seeded(model: nn.Module) -> dict[str, Tensor]:
        torch.manual_seed(3)
        return result(case, model)

    model = case.build()
    attachment = attached(case, model)
    temperatures = set_temperatures(case, attachment)
    assert_equal(seeded(model), seeded(tempered(case, temperatures)), case.tolerance)
    attachment.set_temperatures([1.0, 1.0])
    assert_equal(seeded(model), seeded(case.build()), 0.0)
    assert_differs(result(case, model), seeded(model))


@some("sdpa causal", "@, F.softmax", "nanochat", "encoder", "no weights")
def test_a_model_in_another_type_keeps_its_temperatures(case: CallModel) -> None:
    model = case.build()
    temperatures = set_temperatures(case, attached(case, model))
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-6)):
        ours, expected, plain = (
            {"output": case.run(partial(call_in, network.to(dtype).eval(), dtype)).double()}  # type: ignore[arg-type]
            for network in (model, tempered(case, temperatures), case.build())
        )
        assert_equal(ours, expected, tolerance)
        assert_differs(expected, plain)


def call_in(model: nn.Module, dtype: torch.dtype, *inputs: Any) -> Any:
    """Call the model on inputs in another type, without gradients."""
    is_real = [isinstance(tensor, Tensor) and tensor.is_floating_point() for tensor in inputs]
    with torch.no_grad():
        return model(*(x.to(dtype) if real else x for x, real in zip(inputs, is_real, strict=True)))


@some("sdpa causal", "@, F.softmax", "nanochat", "encoder", "no weights")
def test_weights_of_a_functional_call_are_tempered(case: CallModel) -> None:
    model = case.build()
    reference = tempered(case, set_temperatures(case, attached(case, model)))
    weights = {name: 1.1 * parameter for name, parameter in case.build().named_parameters()}
    scaled = {name: weights[original_name(name)] for name, _ in reference.named_parameters()}

    def output(network: nn.Module, parameters: dict[str, Tensor]) -> dict[str, Tensor]:
        tensors = {name: tensor.detach().requires_grad_() for name, tensor in parameters.items()}
        called = case.run(
            lambda *inputs, **options: torch.func.functional_call(network, tensors, inputs, options)
        )  # type: ignore[arg-type]
        (called * random(*called.shape, seed=9)).sum().backward()
        return {
            "output": called.detach(),
            **{original_name(name): tensor.grad for name, tensor in tensors.items()},
        }  # type: ignore[dict-item]

    assert_equal(output(model, weights), output(reference, scaled), case.tolerance)


@some("sdpa causal", "@, F.softmax", "nanochat", "encoder", "decoder")
def test_only_the_layers_that_are_named_are_tempered(case: CallModel) -> None:
    model = case.build()
    attachment = attach(model, HOT, layers=["layers.1*"], example=lambda: case.run(model))
    assert all(name.startswith("layers.1") for name in attachment.layers)
    hot = {layer: 2.0 for layer in case.layers if layer.startswith("layers.1")}
    for is_training, has_gradients in MODES:
        options = {"is_training": is_training, "has_gradients": has_gradients}
        assert_equal(
            result(case, model, **options), result(case, tempered(case, hot), **options), case.tolerance
        )


# ---- recomputed in the backward pass


@pytest.mark.parametrize("use_reentrant", [False, True])
@some("sdpa causal", "@, F.softmax", "QK-norm, eager", "vit_pytorch", "encoder", "encoder, norm first")
def test_blocks_are_computed_again_at_their_temperature(case: CallModel, use_reentrant: bool) -> None:
    def run_recomputed(model: nn.Module) -> Tensor:
        x_BTE = tokens_BTE().requires_grad_()
        for layer in model.layers:  # type: ignore[union-attr]
            x_BTE = recompute(layer, x_BTE, use_reentrant)
        return x_BTE

    def run(model: nn.Module) -> Tensor:
        x_BTE = tokens_BTE()
        for layer in model.layers:  # type: ignore[union-attr]
            x_BTE = layer(x_BTE)
        return x_BTE

    model = case.build()
    attachment = attached(case, model)
    temperatures = set_temperatures(case, attachment)
    expected = loss_gradients(reference := tempered(case, temperatures), run(reference))
    assert_equal(loss_gradients(model, run_recomputed(model)), expected, case.tolerance)
    # between two steps the temperatures change
    attachment.set_temperatures([1.0, 1.0])
    plain = case.build()
    assert_equal(loss_gradients(model, run_recomputed(model)), loss_gradients(plain, run(plain)), 1e-12)


@pytest.mark.parametrize("form", [sdpa, partial(written, normaliser="F.softmax")], ids=["sdpa", "written"])
@pytest.mark.parametrize("use_reentrant", [False, True])
# The example runs without gradients, too.
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad:UserWarning")
def test_attention_that_is_computed_again_inside_a_layer_is_refused_or_exact(
    use_reentrant: bool, form: Any
) -> None:
    case = home_grown(InnerCheckpointAttention, form, use_reentrant=use_reentrant)
    model = case.build()
    try:
        attachment = attached(case, model)
        temperatures = set_temperatures(case, attachment)
        output = case.run(model)
        expected = result(case, tempered(case, temperatures))
        torch.testing.assert_close(output, expected["output"], rtol=0, atol=1e-8)
        actual = loss_gradients(model, output)
    # PyTorch itself raises if a second pass saves other tensors than the first.
    except (AttachError, torch.utils.checkpoint.CheckpointError):
        return
    del expected["output"]
    assert_equal(actual, expected, case.tolerance)


# ---- calls that are not the ones that were counted


@pytest.mark.parametrize("kind", [ChunkedAttention, BranchingAttention])
@pytest.mark.parametrize("form", [sdpa, partial(written, normaliser="F.softmax")], ids=["sdpa", "written"])
def test_another_number_of_calls_than_on_the_example_is_refused_or_exact(kind: Any, form: Any) -> None:
    case = home_grown(kind, form)
    model = case.build()
    attachment = attached(case, model)
    reference = tempered(case, set_temperatures(case, attachment))
    longer_BTE = random(2, TOKENS + 4, WIDTH)
    for has_gradients in (True, False):
        with torch.set_grad_enabled(has_gradients):
            try:
                output = model(longer_BTE)
            except AttachError:
                pass
            else:
                torch.testing.assert_close(output, reference(longer_BTE), rtol=0, atol=1e-8)
    # What was refused leaves nothing behind.
    assert_equal(result(case, model), result(case, reference), case.tolerance)


class Interrupted(Attention):
    """Attention that fails after its call, if it is asked to."""

    is_failing = False

    def forward(self, x_BTE: Tensor) -> Tensor:
        output = super().forward(x_BTE)
        if self.is_failing:
            raise RuntimeError("out of memory")
        return output


@pytest.mark.parametrize("form", [sdpa, partial(written, normaliser="F.softmax")], ids=["sdpa", "written"])
def test_a_forward_that_fails_leaves_no_temperature_behind(form: Any) -> None:
    case = home_grown(Interrupted, form)
    model, plain = case.build(), case.build()
    attachment = attached(case, model)
    reference = tempered(case, set_temperatures(case, attachment))
    for _ in range(2):
        Interrupted.is_failing = True
        try:
            with pytest.raises(RuntimeError, match="out of memory"):
                case.run(model)
        finally:
            Interrupted.is_failing = False
        assert_equal(result(case, plain), result(case, case.build()), 0.0)
        logits = random(1, 4, TOKENS, 8)
        torch.testing.assert_close(torch.softmax(logits, -1), softmax_by_hand(logits), rtol=1e-12, atol=0)
    assert_equal(result(case, model), result(case, reference), case.tolerance)


# flex_attention outside of torch.compile warns that it is slow.
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
@pytest.mark.parametrize("kind", [Attention, NormalisedAttention])
def test_a_kernel_that_is_not_seen_is_refused_or_exact(kind: Any) -> None:
    # The kernel has no backward pass on a CPU.
    case = replace(home_grown(kind, flex), run=torch.no_grad()(run_tokens))
    model = case.build()
    try:
        attachment = attached(case, model)
    except AttachError:
        detach(model)
        assert fingerprint(model) == fingerprint(case.build())
    else:
        reference = tempered(case, set_temperatures(case, attachment))
        options = {"is_training": False, "has_gradients": False}
        assert_equal(result(case, model, **options), result(case, reference, **options), 1e-6)


# ---- copies, files, weights

copied_models = some(
    "sdpa causal",
    "@, F.softmax",
    "QK-norm, eager",
    "projections of each head",
    "encoder",
    "decoder",
    "weights",
)


@copied_models
@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))], ids=["copy", "pickle"]
)
def test_a_copy_has_temperatures_of_its_own(case: CallModel, copied: Callable[[Any], Any]) -> None:
    model = case.build()
    attachment = attached(case, model)
    temperatures = set_temperatures(case, attachment)
    expected = result(case, tempered(case, temperatures))
    twin, twin_attachment = copied((model, attachment))
    lonely = copied(model)
    twin_attachment.set_temperatures([1.0] * len(attachment.layers))
    assert_equal(result(case, model), expected, case.tolerance)
    assert_equal(result(case, twin), result(case, case.build()), 0.0)
    assert_equal(result(case, lonely), expected, case.tolerance)
    # A twin outlives the model.
    attachment.detach()
    assert_equal(result(case, lonely), expected, case.tolerance)
    assert_equal(result(case, model), result(case, case.build()), 0.0)
    twin_attachment.set_temperatures(list(map(float, range(1, 1 + len(attachment.layers)))))
    assert_differs(result(case, twin), result(case, case.build()))
    for copied_model in (twin, lonely):
        detach(copied_model)
        assert fingerprint(copied_model) == fingerprint(case.build())
        assert_equal(result(case, copied_model), result(case, case.build()), 0.0)


@copied_models
def test_the_state_dict_is_that_of_the_plain_model(case: CallModel) -> None:
    model, plain = case.build(), case.build()
    set_temperatures(case, attached(case, model), (0.5,))
    expected = copy.deepcopy(plain.state_dict())
    assert list(model.state_dict()) == list(expected)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, expected[name])
    assert [name for name, _ in model.named_parameters()] == [name for name, _ in plain.named_parameters()]
    hot = result(case, model)
    # Weights come in and go out, at a temperature or without.
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    scaled_up = {name: 1.1 * tensor for name, tensor in torch.load(file, weights_only=True).items()}
    plain.load_state_dict(scaled_up)
    model.load_state_dict(scaled_up)
    detach(model)
    assert_equal(result(case, model), result(case, plain), 0.0)
    set_temperatures(case, attached(case, model), (0.5,))
    model.load_state_dict(expected)
    assert_equal(result(case, model), hot, 1e-12)


def test_a_trained_model_is_the_reference_that_was_trained() -> None:
    """Ten steps of an optimizer, the temperature another one at each."""
    case = IN_PROCESS["encoder, padding"]
    model = case.build()
    attachment = attached(case, model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    reference = case.build()
    reference_optimizer = torch.optim.SGD(reference.parameters(), lr=0.01, momentum=0.9)
    for step in range(10):
        temperatures = set_temperatures(case, attachment, (2.0 - step / 10, 0.5 + step / 10))
        gradients = result(case, model)
        optimizer.step()
        # The reference is made anew at each step, out of the weights so far.
        hot = case.build()
        hot.load_state_dict(reference.state_dict())
        case.temper(hot, temperatures)
        expected = result(case, hot)
        assert_equal(gradients, expected, 1e-8)
        for name, parameter in reference.named_parameters():
            parameter.grad = expected[name]
        reference_optimizer.step()
    weights = reference.state_dict()
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, weights[name], rtol=1e-7, atol=1e-9)


# ---- threads


@pytest.mark.parametrize(
    "names",
    [("sdpa causal", "@, F.softmax"), ("QK-norm, eager", "encoder"), ("vit_pytorch", "no weights")],
    ids=" and ".join,
)
def test_models_in_threads_do_not_see_the_temperatures_of_others(names: tuple[str, str]) -> None:
    models = []
    for case, temperature in zip(
        (IN_PROCESS[names[0]], IN_PROCESS[names[1]]) * 2, (2.0, 0.5, 3.0, None), strict=True
    ):
        model = case.build().eval()
        if temperature is not None:
            set_temperatures(case, attached(case, model), (temperature,))
        with torch.no_grad():
            models.append((case, model, case.run(model)))
    wrong: list[int] = []
    start = threading.Barrier(len(models))

    def work(number: int) -> None:
        case, model, expected = models[number]
        start.wait()
        with torch.no_grad():
            wrong.extend(number for _ in range(60) if not torch.equal(case.run(model), expected))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(len(models))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert wrong == []
    assert not torch.equal(models[0][2], models[2][2])


# ---- one token at a time


@pytest.mark.parametrize("kind", ["sdpa", "written"])
@pytest.mark.parametrize(
    "parameters", [HOT, {"length_scaling": "log_n", "n0": 4.0}], ids=["temperature", "length"]
)
def test_tokens_one_at_a_time_are_tempered_as_all_at_once(kind: str, parameters: dict[str, Any]) -> None:
    form = sdpa if kind == "sdpa" else partial(written, normaliser="F.softmax")
    case = home_grown(CachedAttention, form, is_causal=True)
    model = case.build().eval()
    try:
        attached(case, model, parameters)
    except AttachError:
        # The number of keys is in a mask that was filled in before the softmax.
        assert (kind, parameters) == ("written", {"length_scaling": "log_n", "n0": 4.0})
        return
    x_BTE = tokens_BTE()
    with torch.no_grad():
        expected_BTE = model.layers[1](model.layers[0](x_BTE))  # type: ignore[index, operator]
        plain = case.build()
        assert not torch.allclose(expected_BTE, plain.layers[1](plain.layers[0](x_BTE)), atol=1e-2)  # type: ignore[index, operator]
        for block in model.layers:  # type: ignore[union-attr]
            block.attn.cache = [torch.zeros(2, 4, 0, 8, dtype=torch.float64)] * 2
            # The only query sees all keys; PyTorch aligns its causal mask with the first key.
            block.attn.is_causal = False
        outputs = [model.layers[1](model.layers[0](token)) for token in x_BTE.split(1, dim=1)]  # type: ignore[index, operator]
    torch.testing.assert_close(torch.cat(outputs, dim=1), expected_BTE, rtol=0, atol=1e-9)


# ---- torch.compile


# The compiler instantiates torch.autograd.Function while it traces one.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.long
@some(
    "sdpa causal",
    "sdpa with enable_gqa",
    "@, F.softmax",
    "matmul, torch.softmax",
    "bmm, nn.Softmax",
    "nanochat",
    "vit_pytorch",
    "projections of each head",
    "encoder",
    "encoder, causal",
    "decoder, sequence first",
    "weights",
    "no weights",
    "bias_kv",
    "padding",
)
def test_a_compiled_model_follows_its_temperatures_without_another_graph(case: CallModel) -> None:
    model = case.build()
    attachment = attached(case, model)
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled: Any = torch.compile(model, backend=counter)
    num_graphs = {}
    for is_training, has_gradients in ((True, True), (False, False)):
        options = {"is_training": is_training, "has_gradients": has_gradients}
        for values in ((2.0, 0.5), (1.0, 3.0), (1.0, 1.0)):
            reference = tempered(case, set_temperatures(case, attachment, values))
            model.train(is_training)
            with torch.set_grad_enabled(has_gradients):
                output = case.run(compiled)
            actual = {"output": output.detach(), **(loss_gradients(model, output) if has_gradients else {})}
            assert_equal(actual, result(case, reference, **options), 1e-8)
            num_graphs.setdefault(is_training, counter.frame_count)
        assert counter.frame_count == num_graphs[is_training], "another graph for another temperature"
    attachment.detach()
    torch._dynamo.reset()
