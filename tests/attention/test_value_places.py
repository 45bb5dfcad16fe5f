"""Numbers in containers, behind properties that round, and in TorchScript."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tempopt import AttachError, attach_value


def test_an_attribute_of_a_container_is_a_number_of_it() -> None:
    class ScaledHead(nn.Sequential):
        def __init__(self) -> None:
            super().__init__(nn.Linear(2, 2))
            self.temperature = 0.5

    model = nn.ModuleDict({"head": ScaledHead()})
    attached = attach_value(model, "head.temperature", {"temperature_init": 0.25})
    assert attached.initial_temperature == 0.5 and model["head"].temperature == 0.25


def test_a_property_that_rounds_to_32_bits_is_followed() -> None:
    class RoundingModule(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("kept", torch.tensor(0.5))

        @property
        def temperature(self) -> float:
            return float(self.kept)

        @temperature.setter
        def temperature(self, value: float) -> None:
            self.kept.fill_(value)

    model = RoundingModule()
    with attach_value(model, "temperature", {"temperature_init": 0.3}) as attached:
        assert model.temperature == pytest.approx(0.3, rel=1e-6)
        attached.require_kept(as_found=True)
        model.temperature = 0.31
        with pytest.raises(AttachError, match="itself changes"):
            attached.require_kept(as_found=True)
    assert model.temperature == 0.5


def test_a_scripted_module_has_no_number_that_can_be_changed() -> None:
    class ScriptedModule(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.temperature = 0.5

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x / self.temperature

    with pytest.deprecated_call():
        model = nn.ModuleDict({"loss": torch.jit.script(ScriptedModule())})
    with pytest.raises(AttachError, match=r'"loss.temperature" is in TorchScript'):
        attach_value(model, "loss.temperature", {})
