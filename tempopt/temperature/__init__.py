"""The mathematics of temperature over progress, depth and length; torch is not needed for it.

The names in `__all__` are public; the other names are used by the packages above this one.
"""

from __future__ import annotations

from tempopt.temperature.custom_schedules import is_custom_schedule as is_custom_schedule
from tempopt.temperature.entropy import ENTROPY_PARAMETERS as ENTROPY_PARAMETERS
from tempopt.temperature.entropy import EntropyParameters
from tempopt.temperature.entropy_control import CONTROL as CONTROL
from tempopt.temperature.entropy_control import CONTROL_PARAMETERS as CONTROL_PARAMETERS
from tempopt.temperature.entropy_control import CONTROLS, ControlParameters
from tempopt.temperature.entropy_control import NO_CONTROL as NO_CONTROL
from tempopt.temperature.entropy_control import has_target as has_target
from tempopt.temperature.entropy_control import is_controlled as is_controlled
from tempopt.temperature.generation import GENERATION as GENERATION
from tempopt.temperature.generation import GenerationParameters
from tempopt.temperature.heads import HEAD_PATTERNS, HeadPattern
from tempopt.temperature.heads import ExponentialHeads as ExponentialHeads
from tempopt.temperature.heads import LocalHeads as LocalHeads
from tempopt.temperature.heads import UniformHeads as UniformHeads
from tempopt.temperature.knots import KNOTS as KNOTS
from tempopt.temperature.layers import LAYER_PATTERNS, LayerPattern
from tempopt.temperature.layers import ExponentialLayers as ExponentialLayers
from tempopt.temperature.learned import LEARNED as LEARNED
from tempopt.temperature.learned import LR_RATIOS as LR_RATIOS
from tempopt.temperature.learned import PER_HEAD as PER_HEAD
from tempopt.temperature.learned import add_learned_temperatures as add_learned_temperatures
from tempopt.temperature.learned import remove_learned_temperatures as remove_learned_temperatures
from tempopt.temperature.length import LENGTH_SCALINGS, LengthScaling
from tempopt.temperature.length import ClippedLogNScaling as ClippedLogNScaling
from tempopt.temperature.length import Llama4Scaling as Llama4Scaling
from tempopt.temperature.length import LogNPowerScaling as LogNPowerScaling
from tempopt.temperature.length import LogNScaling as LogNScaling
from tempopt.temperature.length import NoLengthScaling as NoLengthScaling
from tempopt.temperature.length import YarnScaling as YarnScaling
from tempopt.temperature.named import AS_FOUND as AS_FOUND
from tempopt.temperature.named import group_by_temperature as group_by_temperature
from tempopt.temperature.named import initial_named_temperatures as initial_named_temperatures
from tempopt.temperature.named import join_name as join_name
from tempopt.temperature.named import name_problem as name_problem
from tempopt.temperature.named import parameters_of_temperature as parameters_of_temperature
from tempopt.temperature.named import registered_path as registered_path
from tempopt.temperature.named import split_name as split_name
from tempopt.temperature.normalisers import NORMALISERS, Normaliser
from tempopt.temperature.normalisers import LinearNormaliser as LinearNormaliser
from tempopt.temperature.normalisers import SoftmaxNormaliser as SoftmaxNormaliser
from tempopt.temperature.parameters import (
    NEUTRAL,
    TEMPERATURE_PARAMETERS,
    check_parameter,
    drop_unused_params,
)
from tempopt.temperature.parameters import PLAN_PARAMETERS as PLAN_PARAMETERS
from tempopt.temperature.parameters import ParameterNames as ParameterNames
from tempopt.temperature.parameters import neutral_values as neutral_values
from tempopt.temperature.plan import TemperatureParameters, TemperaturePlan, progress
from tempopt.temperature.plan import is_custom_number as is_custom_number
from tempopt.temperature.plan_parts import CREDITED as CREDITED
from tempopt.temperature.plan_parts import GROUPS as GROUPS
from tempopt.temperature.plan_parts import NORMALISATION as NORMALISATION
from tempopt.temperature.plan_parts import active_groups as active_groups
from tempopt.temperature.plan_parts import is_neutral as is_neutral
from tempopt.temperature.plan_parts import is_scheduled as is_scheduled
from tempopt.temperature.plan_parts import list_temperatures as list_temperatures
from tempopt.temperature.plan_parts import make_constant as make_constant
from tempopt.temperature.plan_parts import mean_level as mean_level
from tempopt.temperature.plan_parts import named_schedule_params as named_schedule_params
from tempopt.temperature.plan_parts import remove_part as remove_part
from tempopt.temperature.plan_parts import to_neutral as to_neutral
from tempopt.temperature.ranges import number
from tempopt.temperature.schedules import (
    SCHEDULES,
    Constant,
    Cosine,
    Cyclic,
    Exponential,
    HoldAnneal,
    InverseLinear,
    InverseSqrt,
    Linear,
    Logarithmic,
    Piecewise,
    Polynomial,
    Schedule,
    Sigmoid,
    Step,
    Triangular,
    WarmupAnneal,
)
from tempopt.temperature.training_equivalence import hashable as hashable
from tempopt.temperature.training_equivalence import same_training, training_key

__all__ = [
    "CONTROLS",
    "HEAD_PATTERNS",
    "LAYER_PATTERNS",
    "LENGTH_SCALINGS",
    "NEUTRAL",
    "NORMALISERS",
    "SCHEDULES",
    "TEMPERATURE_PARAMETERS",
    "Constant",
    "ControlParameters",
    "Cosine",
    "Cyclic",
    "EntropyParameters",
    "Exponential",
    "GenerationParameters",
    "HeadPattern",
    "HoldAnneal",
    "InverseLinear",
    "InverseSqrt",
    "LayerPattern",
    "LengthScaling",
    "Linear",
    "Logarithmic",
    "Normaliser",
    "Piecewise",
    "Polynomial",
    "Schedule",
    "Sigmoid",
    "Step",
    "TemperatureParameters",
    "TemperaturePlan",
    "Triangular",
    "WarmupAnneal",
    "check_parameter",
    "drop_unused_params",
    "number",
    "progress",
    "same_training",
    "training_key",
]
