"""The mathematics of temperature over progress, depth and length; torch is not needed for it."""

from __future__ import annotations

from tempopt.temperature.layers import (
    LAYER_PATTERNS,
    ExponentialLayers,
    LayerPattern,
    LinearLayers,
    ULayers,
    UniformLayers,
)
from tempopt.temperature.length import LENGTH_SCALINGS, LengthScaling, LogNScaling, NoLengthScaling
from tempopt.temperature.plan import (
    NEUTRAL,
    TEMPERATURE_PARAMETERS,
    TemperatureParameters,
    TemperaturePlan,
    check_parameter,
    effective,
    progress,
)
from tempopt.temperature.schedules import (
    SCHEDULES,
    Constant,
    Cosine,
    Cyclic,
    Exponential,
    Linear,
    Polynomial,
    Schedule,
    Step,
    WarmupAnneal,
)

__all__ = [
    "LAYER_PATTERNS",
    "LENGTH_SCALINGS",
    "NEUTRAL",
    "SCHEDULES",
    "TEMPERATURE_PARAMETERS",
    "Constant",
    "Cosine",
    "Cyclic",
    "Exponential",
    "ExponentialLayers",
    "LayerPattern",
    "LengthScaling",
    "Linear",
    "LinearLayers",
    "LogNScaling",
    "NoLengthScaling",
    "Polynomial",
    "Schedule",
    "Step",
    "TemperatureParameters",
    "TemperaturePlan",
    "ULayers",
    "UniformLayers",
    "WarmupAnneal",
    "check_parameter",
    "effective",
    "progress",
]
