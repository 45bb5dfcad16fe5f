"""tempopt finds the attention temperature schedule a model should have been trained with, and proves it.

Owns the public names and nothing else; each is imported from its room when it is first used, so that
``import tempopt`` loads neither torch nor Optuna.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tempopt.version import __version__ as __version__

if TYPE_CHECKING:
    from tempopt.api.calls import compare as compare
    from tempopt.api.calls import evaluate as evaluate
    from tempopt.api.calls import plan as plan
    from tempopt.api.calls import resume as resume
    from tempopt.api.calls import search as search
    from tempopt.api.handle import StudyHandle as StudyHandle
    from tempopt.api.server import Server as Server
    from tempopt.api.server import connect as connect
    from tempopt.attention.attach.attachment import Attachment as Attachment
    from tempopt.attention.attach.attachment import attach as attach
    from tempopt.attention.attach.checkpoints import load_checkpoint as load_checkpoint
    from tempopt.attention.attach.scalings import bake as bake
    from tempopt.attention.attach.values import ValueAttachment as ValueAttachment
    from tempopt.attention.attach.values import attach_value as attach_value
    from tempopt.errors import AccessDenied as AccessDenied
    from tempopt.errors import AttachError as AttachError
    from tempopt.errors import SpecError as SpecError
    from tempopt.errors import StorageError as StorageError
    from tempopt.errors import StudyChanged as StudyChanged
    from tempopt.errors import StudyFailed as StudyFailed
    from tempopt.errors import StudyNotFound as StudyNotFound
    from tempopt.errors import TempoptError as TempoptError
    from tempopt.errors import UsageError as UsageError
    from tempopt.report.judgement import Judgement as Judgement
    from tempopt.report.page.html import write_report as write_report
    from tempopt.report.study_result import StudyResult as StudyResult
    from tempopt.run_handle import Run as Run
    from tempopt.run_handle import current_run as current_run
    from tempopt.service.evaluation.result import EvaluationResult as EvaluationResult
    from tempopt.service.forecast import StudyForecast as StudyForecast
    from tempopt.service.judge import judge as judge
    from tempopt.service.studies import load_study as load_study
    from tempopt.temperature.plan import TemperatureParameters as TemperatureParameters
    from tempopt.temperature.plan import TemperaturePlan as TemperaturePlan
    from tempopt.training.attach_callback import AttachCallback as AttachCallback
    from tempopt.training.attach_callback import LoadCallback as LoadCallback
    from tempopt.training.entropy_control import EntropyControl as EntropyControl
    from tempopt.training.module import TemperedModule as TemperedModule
    from tempopt.training.value_callback import ValueCallback as ValueCallback

_NAMES_BY_MODULE = {
    "tempopt.api.calls": ("compare", "evaluate", "plan", "resume", "search"),
    "tempopt.api.handle": ("StudyHandle",),
    "tempopt.api.server": ("Server", "connect"),
    "tempopt.attention.attach.attachment": ("Attachment", "attach"),
    "tempopt.attention.attach.checkpoints": ("load_checkpoint",),
    "tempopt.attention.attach.scalings": ("bake",),
    "tempopt.attention.attach.values": ("ValueAttachment", "attach_value"),
    "tempopt.errors": (
        "AccessDenied",
        "AttachError",
        "SpecError",
        "StorageError",
        "StudyChanged",
        "StudyFailed",
        "StudyNotFound",
        "TempoptError",
        "UsageError",
    ),
    "tempopt.report.judgement": ("Judgement",),
    "tempopt.report.page.html": ("write_report",),
    "tempopt.report.study_result": ("StudyResult",),
    "tempopt.run_handle": ("Run", "current_run"),
    "tempopt.service.evaluation.result": ("EvaluationResult",),
    "tempopt.service.forecast": ("StudyForecast",),
    "tempopt.service.judge": ("judge",),
    "tempopt.service.studies": ("load_study",),
    "tempopt.temperature.plan": ("TemperatureParameters", "TemperaturePlan"),
    "tempopt.training.attach_callback": ("AttachCallback", "LoadCallback"),
    "tempopt.training.entropy_control": ("EntropyControl",),
    "tempopt.training.module": ("TemperedModule",),
    "tempopt.training.value_callback": ("ValueCallback",),
}
_HOME = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f'module "tempopt" has no attribute "{name}"; it has {", ".join(__all__)}')
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
