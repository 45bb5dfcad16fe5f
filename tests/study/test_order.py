"""A study that is there, and a spec that asks for it again: what of the spec is stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tempopt.errors import SpecError
from tempopt.store.store import Store
from tempopt.study.order import ordered

LOGGER = {"class_path": "MLFlowLogger", "init_args": {"tracking_uri": "http://host/"}}
SECRET = {"class_path": "MLFlowLogger", "init_args": {"tracking_uri": "http://bob:hunter22@host/"}}


def test_a_logger_is_changed_in_what_is_stored_and_one_with_a_password_is_not_stored(
    make_spec: Any, tmp_path: Path
) -> None:
    began, changed, secret = (
        make_spec({"trainer": {"max_steps": 10, "logger": logger}}) for logger in (True, LOGGER, SECRET)
    )
    name = began.study.name
    with Store.open(f"sqlite:///{tmp_path / 'tempopt.db'}") as store:
        store.create_study(name, began.to_json(), began.identity())
        ordered(store, changed)
        assert store.load_study(name).spec["trainer"]["logger"] == LOGGER
        with pytest.raises(SpecError, match="holds a password or a key") as caught:
            ordered(store, secret)
        assert "hunter22" not in str(caught.value)
        assert store.load_study(name).spec["trainer"]["logger"] == LOGGER
