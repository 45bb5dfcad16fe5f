"""The Helm chart: rendered by Helm's own engine, and checked against the schemas of Kubernetes."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tempopt import cli
from tempopt.launch import kubernetes_options
from tempopt.spec.resources import Resources

kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="This needs kubernetes-validate.")
helm = pytest.importorskip("helm_python", reason="This needs helm-python-sdk, which has Helm's engine.")

CHART = Path(__file__).parents[2] / "deploy" / "chart"
VERSIONS = ("1.29", "1.32", "1.37")
EVERYTHING: dict[str, Any] = {
    "ingress": {"enabled": True, "className": "nginx", "tlsSecret": "cert"},
    "networkPolicy": {"enabled": True},
    "serviceMonitor": {"enabled": True},
    "kueue": {"localQueue": "team"},
    "service": {"annotations": {"a": "b"}},
    "image": {"pullSecrets": ["registry"]},
    "server": {
        "replicas": 3,
        "env": [{"name": "AWS_ENDPOINT_URL", "value": "https://s3.example.com"}],
        "webhooksSecret": "tempopt-webhooks",
        "arguments": ["--trust-proxy=10.0.0.5"],
    },
    "launcher": {
        "enabled": True,
        "listNodes": True,
        "subjects": [{"kind": "Group", "name": "ml", "apiGroup": "rbac.authorization.k8s.io"}],
    },
    "scalers": [
        {
            "name": "cards",
            "agents": 8,
            "gpus": 1,
            "cpus": 4,
            "memory": "16GB",
            "queues": ["vision"],
            "labels": ["h200"],
            "idle": 60,
            "options": {"node_selector": "pool=gpu,disk=fast", "retries": 3, "image": "other:1"},
        },
        {"name": "cpu", "agents": 2, "gpus": 0},
    ],
    "agents": [
        {
            "name": "cards",
            "kind": "Job",
            "replicas": 4,
            "gpus": 2,
            "queues": ["vision"],
            "labels": ["h200"],
            "idle": 60,
            "graceSeconds": 300,
            "resources": {"limits": {"memory": "64Gi"}},
            "nodeSelector": {"pool": "gpu"},
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        },
        {"name": "cpu", "kind": "Job", "replicas": 1, "gpus": 0, "graceSeconds": 0},
    ],
}
SMALLEST: dict[str, Any] = {"server": {"replicas": 1, "bucketSecret": ""}, "agents": []}
CASES = pytest.mark.parametrize(
    "values", [{}, EVERYTHING, SMALLEST], ids=["default", "everything", "smallest"]
)


def rendered(values: dict[str, Any]) -> list[dict[str, Any]]:
    """Return every manifest that Helm makes of the chart with these values."""
    with helm.Chart.load(CHART) as chart:
        texts = chart.render(values=values, name="demo", namespace="ml")
    found = [each for text in texts.values() for each in yaml.safe_load_all(text) if each]
    assert found
    return found


def pods(manifests: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield each manifest that starts pods, with what a pod of it is."""
    for each in manifests:
        if each["kind"] in ("Deployment", "Job"):
            yield each, each["spec"]["template"]["spec"]


@CASES
def test_helm_finds_nothing_wrong(values: dict[str, Any]) -> None:
    told = helm.chart.lint(CHART, values, strict=True)
    assert told["errors"] == [] and [m for m in told["messages"] if m["severity"] > 1] == []


@pytest.mark.parametrize("version", VERSIONS)
@CASES
def test_kubernetes_knows_every_field(values: dict[str, Any], version: str) -> None:
    # a ServiceMonitor is of Prometheus' operator, whose schema is not at hand
    manifests = [each for each in rendered(values) if each["kind"] != "ServiceMonitor"]
    for each in manifests:
        kubernetes_validate.validate(each, version, strict=True)


def test_a_field_that_kubernetes_does_not_know_is_found() -> None:
    (server,) = (
        e for e in rendered({}) if e["metadata"]["name"] == "demo-server" and e["kind"] == "Deployment"
    )
    server["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError, match="readynessProbe"):
        kubernetes_validate.validate(server, VERSIONS[-1], strict=True)


@CASES
def test_no_pod_is_root_or_writes_to_its_image(values: dict[str, Any]) -> None:
    for manifest, pod in pods(rendered(values)):
        scales = "-scaler-" in manifest["metadata"]["name"]
        assert pod["automountServiceAccountToken"] == scales
        assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] == 10001
        for container in pod["containers"]:
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"] and not context["allowPrivilegeEscalation"]
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert {"name": "tmp", "mountPath": "/tmp"} in container["volumeMounts"]


@CASES
def test_the_commands_of_pods_are_commands_of_tempopt(values: dict[str, Any]) -> None:
    for _, pod in pods(rendered(values)):
        for container in pod["containers"]:
            cli.build_parsers()[0].parse_args(container["args"])


def test_a_scaler_starts_agents_with_the_options_that_the_launcher_has() -> None:
    given = {}
    for manifest, pod in pods(rendered(EVERYTHING)):
        if "-scaler-" in manifest["metadata"]["name"]:
            arguments = cli.build_parsers()[0].parse_args(pod["containers"][0]["args"])
            assert dict(arguments.launch).keys() <= kubernetes_options.OPTIONS.keys()
            kubernetes_options.read(dict(arguments.launch))
            given[manifest["metadata"]["name"]] = arguments
            assert arguments.launcher == "kubernetes" and arguments.detach
            assert pod["serviceAccountName"] == "demo-launcher" and manifest["spec"]["replicas"] == 1
    cards, cpu = given["demo-scaler-cards"], given["demo-scaler-cpu"]
    assert (cards.agents, cards.gpus_per_agent, cards.cpus_per_agent, cards.idle) == (8, 1, 4, 60)
    ours = {
        "namespace": "ml",
        "token_secret": "tempopt-agent-token",
        "queue": "team",
        "pull_secrets": "registry",
    }
    assert dict(cpu.launch) == {**ours, "image": "tempopt-agent:0.1.0"}
    # what a person gives comes first
    theirs = {"node_selector": "pool=gpu,disk=fast", "retries": "3", "image": "other:1"}
    assert dict(cards.launch) == {**ours, **theirs}


def test_agents_that_have_to_make_room_are_replaced_however_often() -> None:
    made = [each for each, _ in pods(rendered(EVERYTHING)) if each["spec"].get("completionMode") == "Indexed"]
    assert len(made) == 2
    for each in made:
        (rule,) = each["spec"]["podFailurePolicy"]["rules"]
        assert rule["action"] == "Ignore" and rule["onPodConditions"][0]["type"] == "DisruptionTarget"
        assert each["spec"]["template"]["spec"]["restartPolicy"] == "Never"


def test_a_scaler_without_the_rights_to_start_agents_is_refused() -> None:
    with pytest.raises(helm.HelmError, match="launcher.enabled: true"):
        rendered({"scalers": EVERYTHING["scalers"]})


def test_agents_have_longer_to_end_than_their_runs_to_write_checkpoints() -> None:
    graces = {"gpu": Resources().grace, "cards": 300, "cpu": 0}
    seen = set()
    for manifest, pod in [*pods(rendered({})), *pods(rendered(EVERYTHING))]:
        name = manifest["metadata"]["name"].removeprefix("demo-agent-")
        if name in graces:
            seen.add(name)
            assert pod["terminationGracePeriodSeconds"] >= graces[name] + 30
    assert seen == set(graces)


def test_the_database_is_migrated_before_servers_are_replaced() -> None:
    (job,) = (e for e in rendered({}) if "helm.sh/hook" in e["metadata"].get("annotations", {}))
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-upgrade"
    assert job["spec"]["template"]["spec"]["containers"][0]["args"][:2] == ["storage", "upgrade"]


def test_a_service_leads_to_servers_alone() -> None:
    manifests = rendered(EVERYTHING)
    (service,) = (each for each in manifests if each["kind"] == "Service")
    reached = [
        each["metadata"]["name"]
        for each, _ in pods(manifests)
        if service["spec"]["selector"].items()
        <= each["spec"]["template"].get("metadata", {}).get("labels", {}).items()
    ]
    assert reached == ["demo-server"]


def test_the_values_are_what_their_schema_says() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    jsonschema.validate(values, schema)
    for path, wrong in ((("server", "replicas"), 0), (("agents", 0, "kind"), "DaemonSet"), (("sever",), {})):
        bad = copy.deepcopy(values)
        place: Any = bad
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = wrong
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(bad, schema)


def test_helm_refuses_values_that_cannot_be() -> None:
    with pytest.raises(helm.HelmError, match="replicas"):
        rendered({"server": {"replicas": 0}})
    with pytest.raises(helm.HelmError, match="kind: Job"):
        rendered({"kueue": {"localQueue": "team"}})
