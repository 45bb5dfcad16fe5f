"""Temperatures that a TemperedModule registers and reads by name: searched without a path to them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tempopt import TemperedModule
from tempopt.errors import AttachError, SpecError
from tempopt.training.dry_run import dry_run
from tempopt.training.messages import RunRequest
from tempopt.training.run import LightningRun

STEPS = 24
LINEAR = {"contrast.as_found": 0.5, "contrast.schedule": "linear", "contrast.temperature_final": 0.1}
RequestMaker = Callable[..., RunRequest]


class Plain(TemperedModule):
    """No attention, and what a test registers."""

    def __init__(self, **registered: float) -> None:
        super().__init__(num_layers=0)
        for name, tau in registered.items():
            self.register_temperature(name, tau)


@pytest.fixture
def make_request(request_for: Any) -> RequestMaker:
    """Return a maker of requests for a module that registers the temperature ``contrast``."""

    def make(*names: str, module: str = "Registered", **options: Any) -> RunRequest:
        values: dict[str, Any] = {name: {} for name in names or ("contrast",)}
        request: RunRequest = request_for(
            f"contrast_modules.{module}", **{"metric": "val_gap", "values": values, **options}
        )
        return request

    return make


def linear(count: int = STEPS) -> list[float]:
    return [0.5 - 0.4 * step / (STEPS - 1) for step in range(count)]


def step_taus(run: LightningRun) -> list[float]:
    module: Any = run.module
    return [tau for (tau,) in module.trained]


def test_it_is_read_by_its_name_and_has_the_temperature_as_found() -> None:
    module = Plain(contrast=0.07, gate=2.0)
    assert module.registered_temperatures == ("contrast", "gate")
    assert module.temperature("contrast").shape == () and module.temperature("gate") == 2.0
    assert float(module.temperature("contrast")) == pytest.approx(0.07, rel=1e-7)
    assert module.state_dict().keys() == {"contrast_temperature", "gate_temperature"}
    assert module.temperatures == () and list(module.layers) == []


@pytest.mark.parametrize(
    ("registered", "message"),
    [
        ({"Contrast": 0.5}, '"Contrast" is not a name of a temperature. Give lower-case letters, digits'),
        ({"schedule": 0.5}, '"schedule" is not a name of a temperature.'),
        ({"contrast": 0.0}, r"temperature.*0\.0.*1e-06 to 1e\+06"),
        ({"inverse": 0.5}, '"inverse" is kept at self.inverse_temperature, and Plain has that already'),
    ],
)
def test_what_cannot_be_registered_is_refused(registered: dict[str, float], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        Plain(**registered)


def test_a_name_is_registered_once() -> None:
    with pytest.raises(SpecError, match="Plain has that already. Register each temperature once"):
        Plain(contrast=0.5).register_temperature("contrast", 0.5)


def test_a_name_that_was_not_registered_is_refused_where_it_is_read() -> None:
    with pytest.raises(SpecError) as excinfo:
        Plain(contrast=0.5).temperature("contrst")
    message = str(excinfo.value)
    assert message.startswith('Unknown temperature of Plain "contrst". Did you mean "contrast"?')
    assert 'self.register_temperature("contrst", 0.5)' in message


@pytest.mark.parametrize(
    ("module", "name", "reason"),
    [
        ("Registered", "gate", "Registered registers contrast only."),
        ("Attending", "contrast", "Attending registers no temperature."),
        ("Contrast", "contrast", "Contrast registers no temperature."),
    ],
)
def test_a_name_that_was_not_registered_is_refused_where_it_is_searched(
    make_request: RequestMaker, listener: Any, module: str, name: str, reason: str
) -> None:
    with pytest.raises(AttachError) as excinfo:
        LightningRun(make_request(name, module=module), listener())
    message = str(excinfo.value)
    assert message.startswith(
        f"temperatures.{name}.value: no value is given, and {reason} Give the path of a"
    )
    assert f'self.register_temperature("{name}", 0.5)' in message and message.count("temperatures.") == 1


@pytest.mark.parametrize(
    ("change", "dtype"),
    [
        (lambda module: module.bfloat16(), torch.float32),
        (lambda module: module.half(), torch.float32),
        (lambda module: module.double(), torch.float64),
        (lambda module: module.to("meta").to_empty(device="cpu"), torch.float32),
    ],
    ids=["bfloat16", "half", "double", "meta"],
)
def test_another_type_of_the_weights_is_no_other_temperature(
    change: Callable[[TemperedModule], TemperedModule], dtype: torch.dtype
) -> None:
    module = change(Plain(contrast=0.07))
    assert module.temperature("contrast").dtype == dtype
    assert float(module.temperature("contrast")) == pytest.approx(0.07, rel=1e-7)


def test_each_step_is_trained_at_its_schedule_and_a_checkpoint_has_the_last_one(
    make_request: RequestMaker, listener: Any, tmp_path: Path
) -> None:
    run = LightningRun(make_request(parameters=LINEAR), listener())
    assert run.execute().state == "complete"
    assert step_taus(run) == pytest.approx(linear(), rel=1e-6)
    module: Any = run.module
    assert {round(tau, 7) for (tau,) in module.validated} == {0.1}
    assert list(run.tempered.layers) == [] and run.values.places == ["contrast_temperature"]
    saved = tmp_path / "trained.ckpt"
    run.trainer.save_checkpoint(saved)
    loaded_module: Any = type(run.module).load_from_checkpoint(saved, weights_only=True)
    assert float(loaded_module.temperature("contrast")) == pytest.approx(0.1)


def test_attention_that_a_module_does_not_have_is_not_searched(
    make_request: RequestMaker, listener: Any
) -> None:
    space = {"contrast.temperature_init": [0.02, 1.0], "temperature_init": [0.25, 4.0]}
    message = r"^search.temperature_init: Registered says num_layers=0.*temperatures: \{contrast: \{\}\}\.$"
    with pytest.raises(SpecError, match=message):
        dry_run(make_request(task="dry_run", space=space), listener())
