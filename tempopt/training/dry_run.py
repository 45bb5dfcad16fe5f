"""Test of a study before it begins: classes and arguments, two steps, one validation, each layer.

Finds errors that appear only at run time, so that no tickets are created for a study that cannot work.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import lightning as L

from tempopt.attention.attach.attachment import Attachment
from tempopt.attention.attach.call_mode import bindings
from tempopt.attention.functional.attention import record_key_counts
from tempopt.errors import AttachError, SpecError, UsageError
from tempopt.temperature import (
    AS_FOUND,
    CONTROL,
    CONTROL_PARAMETERS,
    ENTROPY_PARAMETERS,
    GENERATION,
    LR_RATIOS,
    NEUTRAL,
    NO_CONTROL,
    PLAN_PARAMETERS,
    TEMPERATURE_PARAMETERS,
    TemperatureParameters,
    add_learned_temperatures,
    drop_unused_params,
    is_controlled,
    join_name,
    make_constant,
    to_neutral,
)
from tempopt.training.build import check_space, prepare
from tempopt.training.callbacks import seed_generators
from tempopt.training.example_step import batch_loss
from tempopt.training.gpu_memory import is_cuda_oom
from tempopt.training.messages import Channel, Evaluation, Finished, LocalChannel, RunRequest, Stage
from tempopt.training.metric_check import require_metric_depends
from tempopt.training.module import TemperedModule
from tempopt.training.named_values import NamedValues, other_temperatures
from tempopt.training.own_length_scaling import length_scaling_note
from tempopt.training.range_check import refuse_bounded, try_lowest
from tempopt.training.ranks import ALONE, Ranks
from tempopt.training.resume_check import find_resume_fault
from tempopt.training.run import LightningRun
from tempopt.training.steps import current_step

# modules that raise the errors of torch's compiler
_COMPILERS = ("torch._dynamo", "torch._inductor", "torch._functorch")

_SOFTMAX = {"normaliser": "softmax"}

_VALIDATE = Evaluation(name="validate", on="validate")

# Below this relative difference two metrics in single precision differ by rounding only.
_ROUNDED = 1e-5

# Other kernels on another device of the same kind differ by less than this.
_SAME_DATA = 1e-3

# Two steps and one validation, regardless of the numbers in the spec.
_SHORT: dict[str, Any] = {
    "max_steps": -1,
    "max_epochs": 1,
    "max_time": None,
    "min_steps": None,
    "min_epochs": None,
    "limit_train_batches": 2,
    "limit_val_batches": 1,
    "val_check_interval": 1.0,
    "check_val_every_n_epoch": 1,
    "accumulate_grad_batches": 1,
    "log_every_n_steps": 1,
}


class _Stages:
    """Reports the duration of each part of a dry run."""

    def __init__(self, request: RunRequest, channel: Channel) -> None:
        self.request, self._channel = request, channel
        self._since = time.monotonic()

    def report_stage(self, stage: str) -> None:
        """Report a stage and the time since the one before."""
        now = time.monotonic()
        seconds, self._since = now - self._since, now
        request = self.request
        self._channel.send(Stage(ticket=request.ticket, attempt=request.attempt, what=stage, seconds=seconds))


def _run_short(request: RunRequest, ranks: Ranks) -> LightningRun:
    """Train two steps and validate once, and return the detached run; its reports are dropped."""
    run = LightningRun(request, LocalChannel(), ranks, **_SHORT)
    try:
        run.fit()
    finally:
        run.detach()
    return run


def check(request: RunRequest) -> Finished:
    """Build what the program names, and check each searched name at its probe values.

    Raises:
        SpecError: Something is wrong; it lists all errors.
    """
    check_space(request.program, request.space, test_data=_tests(request))
    return Finished(
        ticket=request.ticket,
        attempt=request.attempt,
        state="complete",
        step=0,
        measurements={},
        metrics={},
        seconds=0.0,
        reports=[],
        initial_temperatures=_find_initial_temperatures(request),
    )


def _ends(request: RunRequest) -> list[dict[str, Any]]:
    """Return each searched argument of the module alone, at its first and last value."""
    return [
        {name: value}
        for name, values in request.space.items()
        if name not in TEMPERATURE_PARAMETERS and name.partition(".")[0] not in ("data", "trainer")
        for value in dict.fromkeys((values[0], values[-1]))
    ]


def _find_initial_temperatures(request: RunRequest) -> dict[str, float]:
    """Return the named temperatures of a new module, which must not depend on searched or compared arguments.

    Raises:
        SpecError: They depend on such an argument.
    """
    program = request.program
    if not program.values or (request.task == "check" and program.identity is None):
        # for an invalid spec only the classes are checked
        return {}
    prepared, first_found = prepare(program), dict[str, float]()
    for overrides in ({}, *_ends(request)):
        seed_generators(request.seed, "model")
        module = prepared.module({**request.parameters, **overrides})
        values = {
            name: {**value, AS_FOUND: first_found.get(name, value[AS_FOUND])}
            for name, value in program.values.items()
        }
        named_values = NamedValues(module, values, {}, validate_at=program.validate_at)
        named_values.detach()
        first_found = first_found or named_values.initial_temperatures
    return first_found


def dry_run(request: RunRequest, channel: Channel, ranks: Ranks = ALONE) -> Finished:
    """Check, train two steps, and validate once on each kind of data that the study needs.

    Raises:
        SpecError: The metric is never logged, there are no test data, ...
        AttachError: A layer has no temperature, or does not follow it.
    """
    stages = _Stages(request, channel)
    found_temperatures = check(request).initial_temperatures
    stages.report_stage("checked classes and arguments")
    if request.program.weights is not None:
        return _evaluate_trained_model(request, channel, ranks, stages)
    # observation would not work in compiled code
    eager_request = dataclasses.replace(request, program=dataclasses.replace(request.program, compile=None))
    run = LightningRun(eager_request, LocalChannel(), ranks, **_SHORT)
    stages.report_stage("made model and data")
    attended_layers = _record_attending_layers(run.module)
    first_batches = _test_before_training(run, stages)
    attached_names = {name for name, _, _ in bindings(run.module)}
    with record_key_counts() as num_keys:
        run.fit()
    stages.report_stage("trained two steps and validated")
    _refuse_copies(run.module, attached_names)
    metrics = _require_trained(run)
    _require_same_value(run, metrics, ranks)
    if isinstance(run.module, TemperedModule):
        _require_attention(run.module, attended_layers, request.space)
    compute_loss = _make_single_batch_loss(run, first_batches[0])
    read_names = _test_named_temperatures(run, compute_loss, stages)
    require_metric_depends(run, attended_layers)
    refuse_bounded(run, compute_loss)
    with record_key_counts() as evaluation_keys:
        for evaluation in request.evaluations:
            _require_same_value(run, run.evaluate(evaluation), ranks)
    if request.evaluations:
        stages.report_stage("evaluated as a confirming run")
    check_params_have_effect(request, run.tempered.layers, num_keys | evaluation_keys)
    refuse_unread_generation(run.module, request.space)
    finished = run.build_finished_message("complete", current_step(run.trainer), {"validate": metrics})
    finished = dataclasses.replace(
        finished,
        initial_temperatures=found_temperatures,
        evaluated=read_names,
        trained=_values_in_optimizers(run),
    )
    run.detach()
    return _try_other_trainings(finished, eager_request, channel, ranks, stages)


def _try_other_trainings(
    finished: Finished, eager_request: RunRequest, channel: Channel, ranks: Ranks, stages: _Stages
) -> Finished:
    """Train in the other ways of a study; return what they add to the message of the first training."""
    request = stages.request
    # The spec's own Trainer may not fit the data, as with a val_check_interval that is never reached.
    one_step = LocalChannel(send=channel.send, should_stop=lambda: True)
    second_run = LightningRun(eager_request, one_step, ranks)
    scalings = {*request.space.get("length_scaling", ()), second_run.tempered.plan.length_scaling.name}
    if scalings != {NEUTRAL["length_scaling"]} and (note := length_scaling_note(second_run.module)):
        second_run.note(note)
    second_run.fit()
    second_run.detach()
    stages.report_stage("trained a step with the Trainer of the spec")
    if try_lowest(eager_request, lambda request: _run_short(request, ranks)):
        stages.report_stage("trained two steps at the lowest temperatures")
    not_resumed = find_resume_fault(eager_request, ranks, _SHORT)
    finished = dataclasses.replace(finished, not_resumed=not_resumed)
    stages.report_stage("resumed a training from a checkpoint")
    if request.learns or finished.trained:
        finished = _learnable(finished, eager_request, ranks)
        stages.report_stage("learned the temperatures for two steps")
    if _control(eager_request, ranks):
        stages.report_stage("controlled the entropy for two steps")
    if request.program.compile is not None:
        with _compilable(request.program.compile):
            _run_short(request, ranks)
        stages.report_stage("compiled the steps")
    return finished


def _test_before_training(run: LightningRun, stages: _Stages) -> list[Any]:
    """Have attached temperatures tested by the first training step, while parts that start at zero still are.

    It comes behind the hooks at the beginning of a training, an epoch and a batch, which may make what a step
    needs.

    Returns:
        A list that gets the first batch.
    """
    first_batches: list[Any] = []
    attachment, step = run.tempered, run.module.training_step

    @functools.wraps(step)
    def training_step(batch: Any, *args: Any, **kwargs: Any) -> Any:
        run.module.training_step = step  # type: ignore[method-assign]
        first_batches.append(batch)
        if isinstance(attachment, Attachment):
            test(attachment, batch)
        return step(batch, *args, **kwargs)

    def test(attachment: Attachment, batch: Any) -> None:
        compute_loss = _make_single_batch_loss(run, batch)
        attachment.self_test(compute_loss)
        if (run.request.program.attach or {}).get("layers", "auto") == "auto":
            attachment.refuse_missed(compute_loss)
        stages.report_stage(f"tested the temperatures of {len(attachment.layers)} layers")

    run.module.training_step = training_step  # type: ignore[method-assign]
    return first_batches


def _test_named_temperatures(
    run: LightningRun, compute_loss: Callable[[], Any], stages: _Stages
) -> list[str]:
    """Test that each named temperature has an effect; return those that the metric reads."""
    if not run.values.attachments:
        return []
    _require_read(run, compute_loss)
    read_names = _read_by_metric(run)
    stages.report_stage(f"tested the temperatures at {', '.join(run.values.places)}")
    return read_names


def _evaluate_trained_model(request: RunRequest, channel: Channel, ranks: Ranks, stages: _Stages) -> Finished:
    """Evaluate a trained model on a batch of each of its data, without training."""
    with _compilable(request.program.compile):
        run = LightningRun(request, channel, ranks, limit_val_batches=1)
        finished = run.execute()
    refuse_unread_generation(run.module, request.space)
    stages.report_stage("evaluated the trained model on a batch of each of its data")
    return finished


@contextlib.contextmanager
def _compilable(mode: str | None) -> Iterator[None]:
    """Add advice to the error of a module that cannot be compiled.

    It is not trained uncompiled instead, which would be slower, and rounded differently from machines where
    compilation works.
    """
    try:
        yield
    except RuntimeError as error:
        if mode is None or is_cuda_oom(error) or not type(error).__module__.startswith(_COMPILERS):
            raise
        # the text after the first paragraph is for developers of the compiler
        reason = " ".join(str(error).strip().partition("\n\n")[0].split())
        raise SpecError(
            f"study.compile is {mode}, but the steps of the module cannot be compiled on this machine. "
            f"{type(error).__name__}: {reason}. Take study.compile out, or have what cannot be compiled left "
            "out by torch.compiler.disable."
        ) from error


def _learnable(finished: Finished, request: RunRequest, ranks: Ranks) -> Finished:
    """Train two steps with learned temperatures, and return the message with the result."""
    reason, unreached_names = _not_learned(request, finished.initial_temperatures, ranks)
    # an optimizer does not change parameters without a gradient
    trained_names = [name for name in finished.trained or () if name not in unreached_names]
    reason = reason if request.learns else None
    return dataclasses.replace(finished, not_learned=reason, trained=trained_names)


def _control(request: RunRequest, ranks: Ranks) -> bool:
    """Train two steps under entropy control if runs of the study may use it; return whether they may.

    Raises:
        SpecError: The attention of a layer cannot be observed, so it cannot be controlled.
    """
    targets = [target for target in request.space.get(CONTROL, []) if target != NO_CONTROL]
    if not targets or is_controlled(request.parameters):
        return False
    parameters = drop_unused_params(
        {**make_constant(request.parameters, 1.0), **_SOFTMAX, CONTROL: targets[0]}
    )
    try:
        _run_short(dataclasses.replace(request, parameters=parameters, evaluations=[]), ranks)
    except UsageError as error:
        raise SpecError(f"search.{CONTROL}: {error}") from error
    return True


def _not_learned(
    request: RunRequest, found_temperatures: Mapping[str, float], ranks: Ranks
) -> tuple[str | None, list[str]]:
    """Return why the temperatures of a module cannot be learned, and which of them no gradient reaches.

    The reason is None if two steps have moved them all.
    """
    full_parameters = request.parameters | {
        join_name(name, AS_FOUND): temperature for name, temperature in found_temperatures.items()
    }
    parameters = add_learned_temperatures(
        to_neutral(full_parameters), LR_RATIOS[0], learns=request.learns or True
    )
    learning_request = dataclasses.replace(request, parameters=parameters, evaluations=[])
    try:
        run = _run_short(learning_request, ranks)
    except Exception as error:
        if is_cuda_oom(error):
            raise
        return str(error) if isinstance(error, UsageError) else f"{type(error).__name__}: {error}", []
    assert run.learned is not None
    unreached_names = run.learned.names_without_gradient
    names = " and ".join(name or "attention" for name in unreached_names)
    return f"no gradient of the loss reaches {names}" if names else None, unreached_names


def _tests(request: RunRequest) -> bool:
    # a trained model without test data is evaluated on validation data only
    has_training = request.program.weights is None
    return has_training and any(evaluation.on == "test" for evaluation in request.evaluations)


def _record_attending_layers(module: L.LightningModule) -> set[int]:
    """Return a set that collects the layers of a TemperedModule that attend while it runs."""
    layers: set[int] = set()
    if isinstance(module, TemperedModule):
        attend = module.attend

        def recording(*args: Any, layer: int, **kwargs: Any) -> Any:
            layers.add(layer)
            return attend(*args, layer=layer, **kwargs)

        module.attend = recording  # type: ignore[method-assign]
    return layers


def _refuse_copies(module: L.LightningModule, attached_names: Collection[str]) -> None:
    """Refuse copies of tempered modules that training has created: no schedule reaches them."""
    for module_name, _, _ in bindings(module):
        if module_name not in attached_names:
            raise AttachError(
                f'"{module_name}" is a copy of a module, made after its temperature was attached, in a hook '
                "of training. It would stay at the temperature of that moment. Make the copy in __init__, so "
                "that the temperature is attached to it, too."
            )


def _require_trained(run: LightningRun) -> dict[str, float]:
    """Return what the validation logged; SpecError if there was none, or the training diverged."""
    if run.diverged_at is not None:
        raise SpecError(
            f"The training diverged in the dry run: by step {run.diverged_at} the loss or "
            f'"{run.request.program.metric}" was NaN or infinite, with {run.request.parameters}. '
            "Look at the data and at the ranges that are searched, the learning rate's first."
        )
    if run.length_fault:
        raise SpecError(f"trainer: {run.length_fault}")
    if not run.has_validated:
        raise SpecError(
            "The validation never ran. Give the data module a val_dataloader and the module a "
            f'validation_step that logs "{run.request.program.metric}".'
        )
    # a validation need not log it, as long as a later one does
    return run.logged or run.evaluate(_VALIDATE)


def _require_same_value(run: LightningRun, metrics: Mapping[str, float], ranks: Ranks) -> None:
    """Refuse a metric of which each of several devices has the value of its own data."""
    metric = run.request.program.metric
    value = metrics[metric]
    (mean,) = ranks.mean([value])
    (differs,) = ranks.any(not (math.isnan(value) or math.isclose(value, mean, rel_tol=_SAME_DATA)))
    if differs:
        raise SpecError(
            f'study.metric: the devices log different values of "{metric}", as each validates on a part of '
            "the data. Log it with sync_dist=True, or take the DistributedSampler out of the dataloaders for "
            "validation and test: each device then validates on all data."
        )


def _require_attention(module: TemperedModule, attended_layers: set[int], space: Collection[str]) -> None:
    searched_names = [
        name for name in space if name in (*PLAN_PARAMETERS, *ENTROPY_PARAMETERS, *CONTROL_PARAMETERS)
    ]
    if searched_names and not module.num_layers:
        raise SpecError(
            f"search.{searched_names[0]}: {type(module).__name__} says num_layers=0, so it has no attention "
            f"whose temperature this would be. Take {' and '.join(searched_names)} out, or say how many "
            f"layers call self.attend.{other_temperatures(module)}"
        )
    missing_layers = sorted(set(range(module.num_layers)) - attended_layers)
    if missing_layers:
        raise AttachError(
            f"{type(module).__name__} says num_layers={module.num_layers}, but layers {missing_layers} never "
            "called self.attend(..., layer=...), so they have no temperature. Call it for each layer, or "
            "correct num_layers."
        )


def _require_read(run: LightningRun, compute_loss: Callable[[], Any]) -> None:
    """Refuse named temperatures that training does not read, with a line for each."""
    faults: list[str] = []
    for name, attachment in run.values.attachments.items():
        try:
            attachment.self_test(compute_loss)
        except AttachError as error:
            is_read_elsewhere = next(_metric_moves(run, [name]), None) is not None
            metric = f' Validation reads it, for "{run.request.program.metric}" changes with it.'
            faults.append(f"temperatures.{name}.value: {error}{metric if is_read_elsewhere else ''}")
    if faults:
        raise AttachError("\n".join(faults))


def _values_in_optimizers(run: LightningRun) -> list[str]:
    """Return the named temperatures that are parameters in the module's own optimizers."""
    groups = (group for optimizer in run.trainer.optimizers for group in optimizer.param_groups)
    optimized_ids = {id(parameter) for group in groups for parameter in group["params"]}
    return [
        name
        for name, attachment in run.values.attachments.items()
        if attachment.is_learned and id(attachment.tensor) in optimized_ids
    ]


def _read_by_metric(run: LightningRun) -> list[str]:
    """Return the named temperatures on which the metric depends directly.

    Raises:
        SpecError: There is one, and the study does not allow it: the metric would compare temperatures
            instead of models.
    """
    metric, names = run.request.program.metric, dict[str, None]()
    for name, plain_metric, changed_metric in _metric_moves(run, list(run.values.attachments)):
        if run.request.program.metric_reads_temperature:
            names[name] = None
            continue
        raise SpecError(
            f'study.metric: "{metric}" changes with the temperature {name} alone: the same weights have '
            f"{plain_metric:.6g} and {changed_metric:.6g}. It cannot compare trainings at different "
            "temperatures. Give a metric that does not read the temperature, as the accuracy or the rank of "
            "the match, or, if the temperature is part of what is deployed, write study: "
            "{metric_reads_temperature: true}."
        )
    return list(names)


def _metric_moves(run: LightningRun, names: Sequence[str]) -> Iterator[tuple[str, float, float]]:
    """Yield each temperature that changes the metric, and the metric without and with the change."""
    metric = run.request.program.metric
    plain_metric = run.evaluate(_VALIDATE)[metric] if names else 0.0
    for name in run.values.perturb_each(names):
        changed_metric = run.evaluate(_VALIDATE)[metric]
        # a different order of a sum, or a product that cancels, changes the rounding only
        if not math.isclose(changed_metric, plain_metric, rel_tol=_ROUNDED):
            yield name, plain_metric, changed_metric


def _make_single_batch_loss(run: LightningRun, batch: Any) -> Callable[[], Any]:
    """Return a function that computes the loss of one batch, with the same random numbers each time."""
    compute_loss = batch_loss(run.trainer, run.module, batch)

    def forward() -> Any:
        seed_generators(run.request.seed, "self-test")
        return compute_loss()

    return forward


def check_params_have_effect(request: RunRequest, layers: Sequence[str], num_keys: Collection[int]) -> None:
    """Refuse a search space that contains parameters without effect on this model.

    Args:
        request: The dry run, with probe values of all searched names.
        layers: Names of the tempered layers.
        num_keys: The different numbers of keys that queries see; empty if they were not counted.

    Raises:
        SpecError: A parameter has no effect; there is a line for each.
    """
    init_args = request.program.model.get("init_args") or {}
    temperature_args = {name: value for name, value in init_args.items() if name in TEMPERATURE_PARAMETERS}
    fixed = {**NEUTRAL, **temperature_args, **request.parameters}
    values = {name: request.space.get(name, [fixed[name]]) for name in NEUTRAL}
    faults = [*_flat_patterns(values, layers), *_without_length(values, num_keys)]
    lines = []
    for names, reason in faults:
        # parameters that are set and not searched add no dimension to the search
        searched_names = [name for name in names if name in request.space]
        lines += [f"search.{searched_names[0]}: {reason}."] if searched_names else []
    if lines:
        raise SpecError("\n".join(lines))


def refuse_unread_generation(module: object, space: Collection[str]) -> None:
    """Refuse to search parameters of generation that the evaluations of a TemperedModule have not read.

    Args:
        module: The module, evaluated.
        space: The searched names.

    Raises:
        SpecError: The module has read none of them.
    """
    searched_names = [name for name in GENERATION if name in space]
    if searched_names and isinstance(module, TemperedModule) and not module.reads_generation:
        class_name = type(module).__name__
        raise SpecError(
            f"search.{searched_names[0]}: {class_name} never reads self.generation in its evaluation, so "
            "that it changes nothing. Draw tokens by "
            "tempopt.attention.generation.sample(logits, self.generation) in "
            f"validation_step, or take {' and '.join(searched_names)} out."
        )


_Faults = Iterator[tuple[Sequence[str], str]]
"""Names, the first searched one of which is at fault, and the reason."""


def _flat_patterns(values: Mapping[str, Sequence[Any]], layers: Sequence[str]) -> _Faults:
    if not layers:
        return
    names = ("layer_pattern", "layer_ratio")
    patterns = [pattern for pattern in values["layer_pattern"] if pattern != "uniform"]
    flat_patterns = [
        pattern
        for pattern in patterns
        if all(
            len(set(parameters.plan(layers).temperatures(0.0))) == 1
            for parameters in (
                TemperatureParameters(layer_pattern=pattern, layer_ratio=ratio)
                for ratio in values["layer_ratio"]
            )
        )
    ]
    number = f"{len(layers)} tempered layers" if len(layers) > 1 else f'one tempered layer, "{layers[0]}"'
    reason = (
        "they all get the same temperature" if len(layers) > 1 else "a module that is used again counts once"
    )
    for pattern in flat_patterns:
        ratio_remedy = " and layer_ratio" if len(flat_patterns) == len(patterns) else ""
        yield (
            names,
            f'"{pattern}" changes nothing on this model, which has {number} ({reason}). '
            f'Take "{pattern}"{ratio_remedy} out',
        )


def _without_length(values: Mapping[str, Sequence[Any]], num_keys: Collection[int]) -> _Faults:
    if not num_keys:
        return
    key_counts = sorted(num_keys)
    keys_text = (
        f"{key_counts[0]} to {key_counts[-1]} keys" if len(key_counts) > 1 else f"{key_counts[0]} keys"
    )
    observation = f"in the batches of the dry run each query sees {keys_text}"
    numbers = ("n0", "length_power", "length_slope")
    for scaling in values["length_scaling"]:
        combinations = itertools.product(*(values[name] for name in numbers))
        length_scalings = [
            TemperatureParameters(length_scaling=scaling, **dict(zip(numbers, combination, strict=True)))
            .plan(1)
            .length_scaling
            for combination in combinations
        ]
        if scaling != "none" and all(
            _is_one(length_scaling.factor(n)) for length_scaling in length_scalings for n in key_counts
        ):
            n0 = " to ".join(f"{value:g}" for value in values["n0"])
            yield (
                ("length_scaling", *numbers),
                f'"{scaling}" with n0={n0} changes nothing here: {observation}, and there its factor is 1. '
                f'Choose n0 below {key_counts[-1]}, or take "{scaling}" out',
            )
    if "top_k" in values["normaliser"] and min(values["top_k"]) >= key_counts[-1]:
        yield (
            ("normaliser", "top_k"),
            f'"top_k" with top_k={min(values["top_k"])} or more is the same as softmax here: {observation}. '
            f'Choose top_k below {key_counts[-1]}, or take "top_k" out',
        )
    if max(values["local_share"]) > 0 and min(values["window"]) > key_counts[-1]:
        yield (
            ("window", "local_share"),
            f"with window={min(values['window'])} or more local heads see what the others see: "
            f"{observation}. Choose window below {key_counts[-1]}, or take local_share out",
        )


def _is_one(factor: float) -> bool:
    return math.isclose(factor, 1.0, rel_tol=1e-12)
