"""The manifest for agents on Kubernetes: valid by its schemas, and its command is one of tempopt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tempopt import cli
from tempopt.spec.resources import Resources

kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="This needs kubernetes-validate.")
MANIFEST = Path(__file__).parents[2] / "deploy" / "kubernetes" / "agents.yaml"


@pytest.fixture
def job() -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load(MANIFEST.read_text(encoding="utf-8"))
    return data


@pytest.mark.parametrize("version", ["1.29", "1.32", "1.37"])
def test_kubernetes_knows_every_field(job: dict[str, Any], version: str) -> None:
    kubernetes_validate.validate(job, version, strict=True)
    job["spec"]["podFailurPolicy"] = {}
    with pytest.raises(kubernetes_validate.ValidationError, match="podFailurPolicy"):
        kubernetes_validate.validate(job, version, strict=True)


def test_the_label_for_kueue_is_one_comment_away(job: dict[str, Any]) -> None:
    text = MANIFEST.read_text(encoding="utf-8").replace("# kueue.x-k8s.io", "kueue.x-k8s.io")
    assert yaml.safe_load(text)["metadata"]["labels"].items() > job["metadata"]["labels"].items()


def test_a_pod_runs_a_command_of_tempopt_with_what_it_mounts(job: dict[str, Any]) -> None:
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    arguments = cli.build_parsers()[0].parse_args(container["args"])
    assert arguments.any and arguments.until_idle
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert set(mounts) == {volume["name"] for volume in pod["volumes"]}
    assert arguments.storage_file == f"{mounts['storage']}/url"
    assert pod["terminationGracePeriodSeconds"] > Resources().grace
    assert pod["securityContext"]["runAsUser"] == 10001
    assert container["securityContext"]["readOnlyRootFilesystem"]


def test_an_agent_that_makes_room_is_replaced_and_one_that_cannot_serve_is_not(
    job: dict[str, Any],
) -> None:
    disrupted, failure_rule = job["spec"]["podFailurePolicy"]["rules"]
    assert (disrupted["action"], failure_rule["action"]) == ("Ignore", "FailIndex")
    exit_codes = failure_rule["onExitCodes"]
    assert exit_codes["values"] == [cli.EXIT_FAILED, cli.USAGE_EXIT_CODE]
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert exit_codes["containerName"] == container["name"]
