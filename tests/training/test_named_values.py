"""Runs with named temperatures: numbers of the module that follow schedules, while nothing else changes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tempopt.errors import AttachError, SpecError
from tempopt.training.dry_run import check, rehearse
from tempopt.training.ranks import ALONE
from tempopt.training.run import Run
from tempopt.training.worker import _answer
from tempopt.workers.messages import Evaluation, Finished, RunRequest, Stage, Started

STEPS = 24
WAYS = [
    ("temperature", "identity"),
    ("scale", "inverse"),
    ("tau", "identity"),
    ("logit_scale", "log_inverse"),
]
"""What the loss reads, and how that keeps the temperature."""

TEST = [Evaluation(name="test", on="test")]
LINEAR = {"contrast.as_found": 0.5, "contrast.schedule": "linear", "contrast.temperature_final": 0.1}
Named = Callable[..., RunRequest]


def linear(first: float = 0.5, last: float = 0.1, count: int = STEPS) -> list[float]:
    return [first + (last - first) * step / (STEPS - 1) for step in range(count)]


@pytest.fixture
def named(request_for: Any) -> Named:
    """Return a maker of requests for contrastive modules, whose loss has the temperature ``contrast``."""

    def make(
        values: dict[str, Any] | None = None,
        *,
        module: str = "Contrast",
        init: dict[str, Any] | None = None,
        metric: str = "val_gap",
        reads_temperature: bool = False,
        **given: Any,
    ) -> RunRequest:
        request: RunRequest = request_for(metric=metric, **given)
        contrast = {"contrast": {"value": "criterion.temperature"}}
        program = dataclasses.replace(
            request.program,
            model={"class_path": f"contrast_modules.{module}", "init_args": init or {}},
            values={
                name: {"transform": "identity", "as_found": None, **each}
                for name, each in (contrast if values is None else values).items()
            },
            metric_reads_temperature=reads_temperature,
        )
        return dataclasses.replace(request, program=program)

    return make


def at(reads: str, transform: str, **more: Any) -> dict[str, Any]:
    """Return the section of a temperature that the loss reads at a place of the criterion."""
    return {"contrast": {"value": f"criterion.{reads}", "transform": transform, **more}}


def seen(run: Run, which: int = 0) -> list[float]:
    """Return the temperature of each training step: that of the contrast, or the other one."""
    module: Any = run.module
    return [each[which] for each in module.seen]


def validated(run: Run) -> list[tuple[float, float]]:
    """Return both temperatures of each batch that was evaluated."""
    module: Any = run.module
    found: list[tuple[float, float]] = module.validated
    return found


def assert_same(one: Run, other: Run) -> None:
    theirs = other.module.state_dict()
    assert all(torch.equal(value, theirs[name]) for name, value in one.module.state_dict().items())
    assert one.module.state_dict().keys() == theirs.keys()


@pytest.mark.parametrize(("reads", "transform"), WAYS)
def test_at_the_temperature_as_found_a_run_is_bit_for_bit_that_without_it(
    named: Named, listener: Any, reads: str, transform: str
) -> None:
    plain = Run(named({}, init={"reads": reads}, compared=True, evaluations=TEST), listener())
    expected = plain.execute()
    found = plain_found(named, listener, reads, transform)
    assert found == pytest.approx(0.5, rel=1e-6)
    # 0.5 is what a person writes of a logarithm in single precision
    for written, parameters in (
        (None, {}),
        (found, {"contrast.as_found": found, "contrast.temperature_init": found}),
        (0.5, {"contrast.as_found": 0.5, "contrast.temperature_init": 0.5, "contrast.schedule": "constant"}),
        (0.5, {"contrast.as_found": 0.5, "contrast.schedule": "cosine", "contrast.temperature_final": 0.5}),
    ):
        values = at(reads, transform, as_found=written)
        request = named(values, init={"reads": reads}, parameters=parameters, evaluations=TEST)
        run = Run(request, listener())
        finished = run.execute()
        assert finished.reports == expected.reports
        assert finished.measurements == expected.measurements
        assert_same(run, plain)
    # a learned temperature was learned
    scale = run.module.state_dict()["criterion.logit_scale"].item()
    learned = scale != pytest.approx(math.log(2), rel=1e-6)
    assert learned == (reads == "logit_scale")


def plain_found(named: Named, listener: Any, reads: str, transform: str) -> float:
    return Run(named(at(reads, transform), init={"reads": reads}), listener()).values.found["contrast"]


@pytest.mark.parametrize(("reads", "transform"), WAYS)
def test_each_step_is_trained_at_the_temperature_of_its_schedule(
    named: Named, listener: Any, reads: str, transform: str
) -> None:
    channel = listener()
    run = Run(named(at(reads, transform), init={"reads": reads}, parameters=LINEAR), channel)
    assert run.execute().state == "complete"
    assert seen(run) == pytest.approx(linear(), rel=1e-6)
    assert set(seen(run, 1)) == {2.0}
    assert channel.of(Started)[0].layers == [f"criterion.{reads}"]


def test_a_schedule_of_another_kind_follows_its_formula(named: Named, listener: Any) -> None:
    parameters = {
        "contrast.schedule": "exponential",
        "contrast.temperature_init": 2.0,
        "contrast.temperature_final": 0.05,
    }
    run = Run(named(parameters=parameters), listener())
    run.execute()
    expected = [2.0 * (0.05 / 2.0) ** (step / (STEPS - 1)) for step in range(STEPS)]
    assert seen(run) == pytest.approx(expected, rel=1e-9)
    # and where nothing is said of its beginning, a warmup begins at the temperature as found
    warmup = {
        "contrast.schedule": "warmup_anneal",
        "contrast.warmup_fraction": 0.5,
        "contrast.temperature_init": 0.9,
        "contrast.temperature_final": 0.2,
    }
    run = Run(named(parameters=warmup), listener())
    run.execute()
    reached = seen(run)
    assert reached[0] == 0.5 and reached[-1] == pytest.approx(0.2)
    assert max(reached) <= 0.9 and reached.index(max(reached)) in (11, 12)


def test_two_temperatures_follow_schedules_of_their_own(named: Named, listener: Any) -> None:
    values = {
        "contrast": {"value": "criterion.temperature"},
        "gate": {"value": "gate.temperature", "as_found": 2.0},
    }
    parameters = LINEAR | {"gate.as_found": 2.0, "gate.temperature_final": 4.0, "gate.schedule": "linear"}
    run = Run(named(values, parameters=parameters), listener())
    run.execute()
    assert seen(run) == pytest.approx(linear())
    assert seen(run, 1) == pytest.approx(linear(2.0, 4.0))


@pytest.mark.parametrize("attention", [{}, {"temperature_init": 4.0, "schedule": "linear"}])
def test_a_tempered_module_has_named_temperatures_beside_its_own(
    named: Named, listener: Any, attention: dict[str, Any]
) -> None:
    given = attention | ({"temperature_final": 1.0} if attention else {})
    run = Run(named(module="Attending", parameters=LINEAR | given), listener())
    run.execute()
    assert seen(run) == pytest.approx(linear())
    expected = linear(4.0, 1.0) if attention else [1.0] * STEPS
    assert seen(run, 1) == pytest.approx(expected)
    assert set(validated(run)) == {(0.1, 1.0)}


def test_an_attached_module_has_named_temperatures_beside_its_attention(named: Named, listener: Any) -> None:
    given = {"module": "Stock", "attach": {"layers": "auto"}}
    run = Run(named(parameters=LINEAR | {"temperature_init": 2.0}, **given), listener())
    run.execute()
    assert seen(run) == pytest.approx(linear())
    assert run.tempered.temperatures == (2.0,)
    assert run.values.attachments["contrast"].temperatures == pytest.approx((0.1,))


def test_validation_is_at_the_last_temperature_or_at_the_current_one(named: Named, listener: Any) -> None:
    run = Run(named(parameters=LINEAR, evaluations=TEST), listener())
    run.execute()
    assert {each[0] for each in validated(run)} == {0.1}
    run = Run(named(parameters=LINEAR, validate_at="current"), listener())
    run.execute()
    # validations are after steps 4, 8, ...; the temperature is that of the last step
    expected = linear()[3::4]
    reached = [each[0] for each in validated(run)][: len(expected)]
    assert reached == pytest.approx(expected)
    assert seen(run) == pytest.approx(linear())


@pytest.mark.parametrize("ends_early", [False, True])
def test_an_evaluation_says_at_which_temperature_it_is(named: Named, listener: Any, ends_early: bool) -> None:
    asked = [Evaluation(name="final", on="validate"), Evaluation(name="current", on="validate", at="current")]
    stop = {
        "class_path": "lightning.pytorch.callbacks.EarlyStopping",
        "init_args": {"monitor": "val_gap", "mode": "min", "patience": 1, "min_delta": 10.0},
    }
    trainer = {"callbacks": [stop]} if ends_early else {}
    run = Run(named(parameters=LINEAR, evaluations=asked, metric="val_loss", trainer=trainer), listener())
    finished = run.execute()
    assert (finished.step < STEPS) == ends_early
    assert finished.measurements["final"] == finished.measurements["validate"]
    # at the end of a schedule the current temperature is the final one
    differ = finished.measurements["current"] != finished.measurements["final"]
    assert differ == ends_early
    assert validated(run)[-1][0] == pytest.approx(linear()[finished.step - 1]) or not ends_early


@pytest.mark.parametrize(("reads", "transform"), WAYS)
def test_a_run_that_was_interrupted_in_mid_schedule_trains_to_the_same_bits(
    named: Named, listener: Any, tmp_path: Path, reads: str, transform: str
) -> None:
    def run(channel: Any, **given: Any) -> Run:
        request = named(
            at(reads, transform),
            init={"reads": reads},
            parameters=LINEAR,
            checkpoints=str(tmp_path),
            evaluations=TEST,
            **given,
        )
        return Run(request, channel)

    whole = run(listener())
    finished = whole.execute()
    killed, again = listener(die_at=10), listener()
    with pytest.raises(SystemExit):
        run(killed).execute()
    resumed = run(again, attempt=2, resume=killed.saved)
    last = resumed.execute()
    assert again.of(Started)[0].step == 8
    assert seen(resumed) == pytest.approx(linear()[8:], rel=1e-6)
    assert last.reports == finished.reports
    assert last.measurements == finished.measurements
    assert_same(resumed, whole)


def test_a_learned_temperature_that_stays_as_found_is_learned_on_after_a_resume(
    named: Named, listener: Any, tmp_path: Path
) -> None:
    def run(channel: Any, **given: Any) -> Run:
        values = at("logit_scale", "log_inverse")
        init = {"reads": "logit_scale"}
        return Run(named(values, init=init, checkpoints=str(tmp_path), **given), channel)

    whole, killed = run(listener()), listener(die_at=10)
    finished = whole.execute()
    with pytest.raises(SystemExit):
        run(killed).execute()
    resumed = run(listener(), attempt=2, resume=killed.saved)
    assert resumed.execute().reports == finished.reports
    assert_same(resumed, whole)


def test_a_temperature_that_is_not_the_one_expected_is_refused(named: Named, listener: Any) -> None:
    with pytest.raises(SpecError) as caught:
        Run(named(at("temperature", "identity", as_found=0.7)), listener())
    message = str(caught.value)
    assert 'temperatures.contrast: the module has the temperature 0.5 at "criterion.temperature"' in message
    assert "0.7 as found" in message and "temperatures.contrast.as_found" in message
    # an argument that is searched and changes it, too
    request = named(at("temperature", "identity", as_found=0.5), parameters={"temperature": 0.3})
    with pytest.raises(SpecError, match=r"the module has the temperature 0\.3"):
        Run(request, listener())
    # a single-precision buffer holds what is nearest to it
    Run(named(at("tau", "identity", as_found=0.3), init={"temperature": 0.3}), listener())


@pytest.mark.parametrize(("reads", "transform"), WAYS)
def test_a_check_finds_the_temperature_that_the_module_has(
    named: Named, listener: Any, reads: str, transform: str
) -> None:
    given = named(at(reads, transform), init={"reads": reads, "temperature": 0.07}, evaluations=TEST)
    program = dataclasses.replace(given.program, identity="right")
    found = check(dataclasses.replace(given, task="check", program=program)).found
    assert found == {"contrast": pytest.approx(0.07, rel=1e-6)}
    channel = listener()
    moving = {"contrast.schedule": "linear", "contrast.temperature_final": 0.01}
    rehearsed = rehearse(dataclasses.replace(given, task="rehearse", parameters=moving), channel)
    assert rehearsed.found == found
    assert f"tested the temperatures at criterion.{reads}" in [each.what for each in channel.of(Stage)]


def test_without_named_temperatures_nothing_is_found(named: Named) -> None:
    assert check(named({}, compared=True, task="check")).found == {}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"contrast": {"value": "criterion.temprature"}}, "temprature"),
        ({"contrast": {"value": "loss_function.temperature"}}, "loss_function"),
        ({"contrast": {"value": "criterion..temperature"}}, '"criterion..temperature" is no path'),
        ({"contrast": {"value": "criterion.label"}}, '"criterion.label" is .*not one real number'),
        ({"contrast": {"value": "one.0.weight"}}, '"one.0.weight" is .*not one real number'),
        ({"contrast": {"value": "criterion"}}, '"criterion" is .*not one real number'),
        # nothing in training reads it
        ({"contrast": {"value": "criterion.tau"}}, 'nothing reads "criterion.tau" in training'),
        ({"contrast": {"value": "lr"}}, 'nothing reads "lr" in training'),
        (
            {
                "contrast": {"value": "criterion.temperature"},
                "same": {"value": "criterion.temperature"},
            },
            "criterion.temperature",
        ),
    ],
)
def test_a_place_that_is_no_temperature_is_refused_before_the_study(
    named: Named, listener: Any, values: dict[str, Any], message: str
) -> None:
    with pytest.raises((AttachError, SpecError), match=message):
        rehearse(named(values, task="rehearse", evaluations=TEST), listener())


def test_a_transform_that_gives_no_temperature_is_refused(named: Named, listener: Any) -> None:
    values = at("logit_scale", "identity")
    with pytest.raises(AttachError, match=r"log_inverse"):
        rehearse(
            named(values, init={"temperature": 2.0, "reads": "logit_scale"}, task="rehearse"), listener()
        )


def test_a_metric_that_reads_the_temperature_is_refused_unless_that_is_meant(
    named: Named, listener: Any
) -> None:
    with pytest.raises(SpecError) as caught:
        rehearse(named(metric="val_loss", task="rehearse", evaluations=TEST), listener())
    message = str(caught.value)
    assert message.startswith('study.metric: "val_loss" changes with the temperature contrast alone')
    assert "metric_reads_temperature: true" in message
    meant = named(metric="val_loss", reads_temperature=True, task="rehearse", evaluations=TEST)
    assert rehearse(meant, listener()).evaluated == ["contrast"]
    assert rehearse(named(task="rehearse", evaluations=TEST), listener()).evaluated == []


def test_a_trained_model_is_evaluated_at_another_temperature_and_is_afterwards_at_its_own(
    named: Named, listener: Any
) -> None:
    values = {"gate": {"value": "gate.temperature"}, "contrast": {"value": "criterion.temperature"}}
    own = {name: value for name, value in LINEAR.items() if name != "contrast.as_found"}
    plans = {
        "own": None,
        "gate": {"gate.temperature_init": 0.3},
        "winner": {**own, "contrast.temperature_final": 0.7, "gate.temperature_init": 0.4},
    }
    asked = [Evaluation(name=name, on="test", temperature=plan) for name, plan in plans.items()]
    given = named(values, metric="val_loss", reads_temperature=True, parameters=LINEAR, evaluations=asked)
    run = Run(given, listener())
    seen_NN: list[torch.Tensor] = []
    similarity = run.module.similarity
    run.module.similarity = lambda batch: seen_NN.append(similarity(batch)) or seen_NN[-1]
    measured = run.execute().measurements
    at = [(0.1, 2.0), (0.1, 0.3), (0.7, 0.4)]
    assert validated(run)[-3:] == [pytest.approx(each) for each in at]
    for name, taus, each in zip(plans, at, seen_NN[-3:], strict=True):
        label = torch.arange(len(each))
        losses = [torch.nn.functional.cross_entropy(each / tau, label) for tau in taus]
        assert measured[name] == pytest.approx(float(losses[0] + 0.1 * losses[1]))
    assert run.evaluate(asked[0])["val_loss"] == measured["own"]


def test_the_second_temperature_is_named_where_the_metric_reads_that(named: Named, listener: Any) -> None:
    values = {"gate": {"value": "gate.temperature"}, "contrast": {"value": "criterion.temperature"}}
    with pytest.raises(SpecError, match="changes with the temperature gate alone"):
        rehearse(named(values, metric="val_loss", task="rehearse", evaluations=TEST), listener())


def test_temperatures_at_the_ends_of_what_is_allowed_are_tested_too(named: Named, listener: Any) -> None:
    # a sixteenth of it is no temperature any more
    request = named(init={"temperature": 2e-6}, task="rehearse", evaluations=TEST)
    assert rehearse(request, listener()).found == {"contrast": 2e-6}


@pytest.mark.parametrize("module", ["Manual", "Backward"])
def test_a_module_that_optimizes_by_itself_is_rehearsed_and_follows_its_schedule(
    named: Named, listener: Any, module: str
) -> None:
    rehearse(named(module=module, task="rehearse", parameters=LINEAR, evaluations=TEST), listener())
    run = Run(named(module=module, parameters=LINEAR), listener())
    assert run.execute().state == "complete"
    followed = seen(run) if module == "Manual" else [run.module.criterion.temperature]  # type: ignore[union-attr]
    # a batch takes two steps
    assert followed[-1] == pytest.approx(linear()[-2])
    with pytest.raises(AttachError, match='nothing reads "criterion.tau" in training'):
        rehearse(named(at("tau", "identity"), module=module, task="rehearse"), listener())


def test_runs_that_share_a_loss_leave_it_as_it_was(named: Named, listener: Any) -> None:
    for _ in range(2):
        answer = _answer(named(module="Shared", parameters=LINEAR), listener(), ALONE)
        assert isinstance(answer, Finished) and answer.state == "complete"


def test_what_was_learned_is_kept_while_another_temperature_is_evaluated(named: Named, listener: Any) -> None:
    values = at("logit_scale", "log_inverse") | {"gate": {"value": "gate.temperature"}}
    elsewhere = Evaluation(name="gate", on="validate", temperature={"gate.temperature_init": 0.7})
    request = named(values, init={"reads": "logit_scale"}, evaluations=[elsewhere], reads_temperature=True)
    run = Run(request, listener())
    assert run.execute().state == "complete"
    learned = 1 / run.module.state_dict()["criterion.logit_scale"].exp().item()
    assert learned != pytest.approx(0.5, rel=1e-3)
    assert validated(run)[-1] == pytest.approx((learned, 0.7), rel=1e-6)


@pytest.mark.parametrize(("reads", "transform"), WAYS)
def test_a_dry_run_finds_which_temperature_the_module_trains_itself(
    named: Named, listener: Any, reads: str, transform: str
) -> None:
    values = at(reads, transform) | {"gate": {"value": "gate.temperature"}}
    request = named(values, init={"reads": reads}, parameters=LINEAR, task="rehearse")
    assert rehearse(request, listener()).trained == (["contrast"] if reads == "logit_scale" else [])


@pytest.mark.parametrize("learns", [True, False])
def test_a_parameter_that_no_gradient_reaches_is_not_trained_by_the_module(
    named: Named, listener: Any, learns: bool
) -> None:
    values = at("logit_scale", "log_inverse") | {"gate": {"value": "gate.temperature"}}
    init = {"reads": "logit_scale", "detached": True}
    request = named(values, init=init, parameters=LINEAR, task="rehearse", learns=learns)
    found = rehearse(request, listener())
    assert found.trained == []
    assert (found.not_learned is not None) == learns
