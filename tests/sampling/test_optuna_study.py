"""Optuna's study beside ours: made once, by however many agents begin at one moment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import optuna
import pytest

from tempopt.errors import UsageError
from tempopt.sampling.optuna_study import make_study


def test_agents_that_begin_at_one_moment_make_one_study(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/tempopt.db"
    program = (
        "import sys\n"
        "from tempopt.sampling.optuna_study import make_study\n"
        "print('ready', flush=True)\n"
        "input()\n"
        f"make_study({url!r}, name='toy', direction='minimize', metric='val_loss')\n"
    )
    options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    agents = [subprocess.Popen([sys.executable, "-c", program], **options) for _ in range(4)]  # type: ignore[call-overload]
    for agent in agents:
        assert agent.stdout.readline() == "ready\n"
    for agent in agents:
        agent.stdin.write("\n")
        agent.stdin.flush()
    for agent in agents:
        _, told = agent.communicate(timeout=60)
        assert agent.returncode == 0, told
    assert optuna.get_all_study_names(url) == ["toy"]


def test_a_study_of_another_program_is_not_taken(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/tempopt.db"
    optuna.create_study(study_name="toy", storage=url).add_trial(optuna.trial.create_trial(value=1.0))
    with pytest.raises(UsageError, match="tempopt did not make"):
        make_study(url, name="toy", direction="minimize", metric="val_loss")
