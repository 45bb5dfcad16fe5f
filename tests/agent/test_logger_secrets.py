"""Passwords and keys among the arguments of a logger: found wherever they are, and not repeated."""

from __future__ import annotations

from typing import Any

import pytest

from tempopt.errors import SpecError
from tempopt.spec.logger_secrets import check_no_secrets
from tempopt.training.loggers import parse_loggers

SECRET = "hunter22"
URL = f"http://bob:{SECRET}@host:5000/mlflow"


@pytest.mark.parametrize(
    ("logger", "remedy"),
    [
        ({"class_path": "MLFlowLogger", "init_args": {"tracking_uri": URL}}, "init_args.tracking_uri"),
        ({"class_path": "WandbLogger", "dict_kwargs": {"settings": {"api_key": SECRET}}}, "settings.api_key"),
        ({"class_path": "CSVLogger", "init_args": {"save_dir": f"s3://k:{SECRET}@b/runs"}}, "save_dir"),
        ({"class_path": "CSVLogger", "init_args": {"save_dir": f"s3://b/runs?token={SECRET}"}}, "save_dir"),
        ({"class_path": "CSVLogger", "save_dri": URL}, "save_dri"),
        ({"tags": ["a", URL]}, "tags.1"),
        (URL, ""),
    ],
)
def test_a_secret_in_a_logger_is_refused_with_where_it_belongs(logger: Any, remedy: str) -> None:
    for loggers, path in ((logger, "trainer.logger"), ([logger], "trainer.logger.0")):
        accepted_loggers, (fault,) = parse_loggers(loggers)
        assert not accepted_loggers
        assert fault.startswith(path) and f"{remedy}: holds a password or a key" in fault
        assert "MLFLOW_TRACKING_URI" in fault and "WANDB_API_KEY" in fault
        assert SECRET not in fault
        with pytest.raises(SpecError, match="holds a password or a key"):
            check_no_secrets(loggers)


@pytest.mark.parametrize(
    "arguments",
    [
        {"tracking_uri": "http://host:5000/a@b"},
        {"tracking_uri": "sqlite:////home/me/mlflow.db"},
        {"save_dir": "s3://bucket/a:b@c"},
        {"name": "key: value@home"},
        {"token": None, "tokens": 3, "log_tokens": "all"},
    ],
)
def test_what_is_no_secret_is_left_alone(arguments: dict[str, Any]) -> None:
    check_no_secrets({"class_path": "MLFlowLogger", "init_args": arguments})
