"""A real Ray of two nodes that ask for a token, which Ray's own variables have."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster import ray_cluster

_MISSING = ray_cluster.why_not()
pytestmark = [pytest.mark.service, pytest.mark.skipif(bool(_MISSING), reason=_MISSING), ray_cluster.PATIENTLY]

_AT_WORK = """
import json, os, subprocess, sys, time
from tempopt.launch.launcher import Task
from tempopt.launch.ray import RayLauncher
from tests.cluster import ray_cluster

with ray_cluster.run_cluster(with_clients=True) as cluster:
    address = getattr(cluster, sys.argv[1])
    launcher = RayLauncher({"address": address})
    ids = launcher.start([Task(**json.loads(sys.argv[2]))])
    while (job := launcher.jobs(ids)[0]).state in ("waiting", "running"):
        time.sleep(0.1)
    launcher.close()
    print(job.state, job.message, flush=True)
    without_token = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    code = f"from tempopt.launch.ray import RayLauncher; RayLauncher({{'address': {address!r}}})"
    subprocess.run([sys.executable, "-c", code], env=without_token, stderr=sys.stdout)
"""


@pytest.mark.parametrize("address_kind", ["address", pytest.param("client_address", marks=pytest.mark.long)])
def test_agents_run_with_the_token_and_who_has_none_is_told_the_variables(
    address_kind: str, tmp_path: Path
) -> None:
    token_path = tmp_path / "token"
    token_path.touch(mode=0o600)
    token = secrets.token_hex(32)
    token_path.write_text(f"{token}\n")
    task = {"study": "nowhere", "storage": f"sqlite:///{tmp_path}/empty.db"}
    process = subprocess.run(
        [sys.executable, "-c", _AT_WORK, address_kind, json.dumps(task)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token_path)},
    )
    agent_output, _, refusal = process.stdout.partition("Traceback")
    assert "failed" in agent_output and "There is no file" in agent_output, process.stdout
    assert "RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH=FILE" in refusal
    assert token not in process.stdout
