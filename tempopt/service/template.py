"""``tempopt init``: a commented spec for a user's LightningModule, to be edited and run.

``inspect_module`` imports the module, so call it in a separate process; ``render_spec_template`` imports
nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from tempopt.errors import UsageError, unknown
from tempopt.service.scenarios import SCENARIOS, UNSPECIFIED, Scenario
from tempopt.spec.sections import guess_direction
from tempopt.spec.yaml_source import BLANK
from tempopt.temperature.generation import GENERATION
from tempopt.training.describe import ModuleArgument, ModuleInfo, inspect_module

__all__ = ["ModuleArgument", "ModuleInfo", "inspect_module", "render_spec_template"]

_MARK = "<-- fill in"

_TEMPLATE = """\
# Which temperature should {short} have been trained with?
#
# {blanks}
#   tempopt check THIS_FILE     looks for mistakes; with --dry-run it trains two steps
#   tempopt search THIS_FILE    searches, and proves on fresh seeds whether it was worth it

study:
  name: {name}
  metric: {metric}
  direction: {direction}
  # trials: 12  # runs of the whole space after the first design; else 12, or 16 with ordinary parameters
  # arms: {{baseline: 6, constant: 4}}  # runs of that design; else 2 or 6 at the baseline, 4 constants
  seeds: {{choose: 2, confirm: {{min: 4, max: 16}}}}  # fresh seeds to choose on, others to measure the gain
  confirm_on: {confirm_on}
  # failure: 0.5  # a run that ends worse than this counts as failed
  # min_gain: 0.5 sd  # smallest gain worth a change: of the metric, 1%, or sd between seeds; else 0.2 sd
  # explain: true  # also trains what explains the winner, as tempopt explain does later
  # guards: {{another_metric: "<= +2%"}}  # logged metrics that the winner may not make worse
  # pruner: none        # trains every run to its end
{enqueue}
  # warm_start: [an_earlier_study]  # whose runs the search learns from, of the same database
  # limits: {{hours: 8}}  # stop searching by then, and confirm what was found; gpu_hours counts training
  # compile: true  # the training steps, with torch.compile; or reduce-overhead, max-autotune
  # checkpoint_every: 60  # seconds; else at every validation, and at least every 300 seconds

# A bare name is an init argument of the model or a temperature parameter; data.x and trainer.x are the
# others. A range is {{low, high, log, step}}, a list is one of several.
search:
{search}
{temperatures}
model:
  class_path: {class_path}
  init_args:
{arguments}
{data}
trainer:
  max_steps: 1000  # or max_epochs; long enough that a run shows what it is worth
  # val_check_interval: 100  # every validation is a chance to end a hopeless run early
  # accelerator: auto

{attach}# resources:  # this machine's; no part of the study
#   workers: auto  # runs at a time
#   gpus: 0.25  # GPUs of a run: a share of one, or as many as trainer.devices
#   cpus: 1  # CPU cores of a run
#   grace: 20  # seconds to write checkpoints and leave after a stop request
"""

_TEMPERATURES = """\
# temperatures:  # those that are not attention's, each with a name to search it by
#   contrast: {value: criterion.temperature}  # path of a number; with transform: inverse it is a scale
#   # or NAME: {}, a temperature that a TemperedModule registers by that name
#   # Usual ranges: 0.02 to 1 for a contrastive loss, 0.02 to 0.1 for the teacher of a self-distillation,
#   # 1 to 20 for distillation, 0.1 to 2 for Gumbel-softmax, 0.01 to 1 for a classifier on cosines.
"""

_ATTENTION = """\
  # layer_pattern: [uniform, linear, u]  # temperature over depth
  # layer_ratio: {low: 0.5, high: 2}  # ... and how much of it
  # contrast.temperature_init: {low: 0.02, high: 1}  # of a named temperature, see temperatures:
"""

_TEMPERED = """\
  # head_pattern: [uniform, exp]  # temperature over the heads of a layer
  # head_ratio: {low: 1, high: 4}  # ... and how much of it
  # length_scaling: [none, log_n]  # temperature over the number of keys
  # normaliser: [softmax, top_k]  # what makes weights of the logits
  # top_k: {low: 2, high: 32}  # ... and how many keys it keeps
  # local_share: [0.0, 0.25, 0.5]  # share of the heads that see near keys only
  # window: {low: 4, high: 64, log: true}  # ... and how near
  # entropy_lambda: {low: -0.01, high: 0.01}  # weight of the attention entropy in the loss
  # entropy_control: [none, curriculum, contrast]  # a target that the entropy is held at; not with compile
  # control_level: {low: 0.2, high: 0.9}  # ... and its level, as a share of ln(number of keys)
"""

_MISSING_ARGUMENT = (
    f"  # {_MARK}: an init argument of this name in the module, or take it out here and in enqueue"
)

_ATTACH = """\
# The module is not a tempopt.TemperedModule: the temperature of its attention layers is set from outside.
# tempopt check THIS_FILE --dry-run lists them, and refuses a module without any.
# For a temperature that is not attention's, take this section and temperature_* and schedule of search: out,
# and give temperatures:.
attach:
  layers: auto  # or patterns of the attention layers' names, as in [encoder.layers.*.self_attn]

"""


def render_spec_template(info: ModuleInfo, scenario: str | None = None) -> str:
    """Return a study spec for a module, in YAML with comments.

    Values that only the user can know are ``???``, marked "<-- fill in"; :func:`tempopt.spec.load.load_spec`
    lists those that are still missing.

    Args:
        info: The module.
        scenario: A name in SCENARIOS, whose ranges and first parameter set are written.

    Raises:
        UsageError: There is no such scenario.
    """
    if scenario is not None and scenario not in SCENARIOS:
        raise UsageError(unknown("scenario", scenario, SCENARIOS))
    advice = UNSPECIFIED if scenario is None else SCENARIOS[scenario]
    class_name = info.class_path.rpartition(".")[2]
    metric = _choose_metric(info.metrics)
    direction = guess_direction(metric) if metric else None
    text = _TEMPLATE.format(
        short=class_name,
        blanks="{blanks}",
        name=re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", class_name).lower(),
        metric=_format_value(metric, "the name under which validation logs it, with self.log", info.metrics),
        direction=_format_value(direction, "maximize or minimize", ()),
        confirm_on=_format_confirm_on(info),
        enqueue=_format_enqueue(info, scenario, advice),
        search=_format_search(info, advice),
        temperatures=_format_temperatures(scenario)
        if scenario is not None and advice.named
        else _TEMPERATURES,
        class_path=info.class_path,
        arguments=_format_arguments(info.arguments, indent=4),
        data=_format_data(info),
        attach="" if info.tempered or advice.named else _ATTACH,
    )
    instruction = f'Fill in what is marked "{_MARK}". Then:' if _MARK in text else "It can be run as it is:"
    return text.replace("{blanks}", instruction)


def _choose_metric(metrics: Iterable[str]) -> str | None:
    """Return the first metric of known direction, else the first metric."""
    names = list(metrics)
    return next((name for name in names if guess_direction(name)), names[0] if names else None)


def _format_value(value: str | None, meaning: str, logged_names: Iterable[str]) -> str:
    if value is None:
        return f"{BLANK}  # <-- fill in: {meaning}"
    other_names = [name for name in logged_names if name != value]
    return f"{value}  # also logged: {', '.join(other_names)}" if other_names else value


def _format_confirm_on(info: ModuleInfo) -> str:
    if "test" in info.loaders or not info.loaders:
        return "test  # the test_dataloader, which no run of the search sees"
    return "validate  # there is no test_dataloader; with one, say test, and the verdict weighs more"


def _format_enqueue(info: ModuleInfo, scenario: str | None, advice: Scenario) -> str:
    if scenario is None:
        return "  # enqueue: [{temperature_init: 0.5}]  # parameters to try first"
    parameters = ", ".join(f"{name}: {value}" for name, value in advice.enqueue.items())
    return (
        f"  # Scenario {scenario}: {advice.about}.\n"
        "  # The ranges and this set follow published advice (docs/search.md has the sources), which may be\n"
        "  # wrong here: the verdict says what it is worth.\n"
        f"  enqueue: [{{{parameters}}}]  # parameters to try first"
    )


def _format_temperatures(scenario: str) -> str:
    return (
        "temperatures:\n"
        f"  {scenario}:\n"
        f"    value: {BLANK}  # {_MARK}: path of the number, as in criterion.temperature\n"
        "    # transform: inverse  # where the number is a scale\n"
    )


def _format_search(info: ModuleInfo, advice: Scenario) -> str:
    domains = advice.ranges
    lines = ""
    for name, domain in domains.items():
        is_missing = name in GENERATION and not info.tempered and name not in info.temperature_arguments
        lines += f"  {name}: {domain}{_MISSING_ARGUMENT if is_missing else ''}\n"
    if not advice.named:
        suggestions = _ATTENTION + _TEMPERED
        lines += "".join(
            line
            for line in suggestions.splitlines(keepends=True)
            if line.removeprefix("  # ").partition(":")[0] not in domains
        )
    for argument in info.arguments:
        rate = "lr" in argument.name.split("_") or "learning_rate" in argument.name
        if rate and isinstance(argument.default, float) and argument.default > 0:
            low, high = (json.dumps(float(f"{argument.default * factor:.6g}")) for factor in (0.1, 10))
            lines += (
                f"  # {argument.name}: {{low: {low}, high: {high}, log: true}}  # every arm then tunes it\n"
            )
    return lines


def _format_arguments(arguments: Iterable[ModuleArgument], *, indent: int) -> str:
    required, optional = [], []
    for argument in arguments:
        meaning = f": {argument.annotation}" if argument.annotation else ""
        if argument.required:
            required.append(f"{argument.name}: {BLANK}  # <-- fill in{meaning}")
        else:
            optional.append(f"# {argument.name}: {json.dumps(argument.default)}")
    return "".join(f"{' ' * indent}{line}\n" for line in [*required, *optional])


def _format_data(info: ModuleInfo) -> str:
    if info.data is not None:
        arguments = _format_arguments(info.data_arguments, indent=4)
        others_text = f"  # or: {', '.join(info.other_data)}" if info.other_data else ""
        return f"data:\n  class_path: {info.data}{others_text}\n  init_args:\n{arguments}"
    if info.loaders:
        return "# data: is left out, for the module has dataloaders of its own.\n"
    return (
        f"data:\n  class_path: {BLANK}  # <-- fill in: your LightningDataModule, as in package.module.Class\n"
    )
