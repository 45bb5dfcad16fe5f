"""compose.yaml and its secrets. No engine starts it here: what is asserted is its structure."""

from __future__ import annotations

import re
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tempopt import cli
from tempopt.spec.resources import Resources
from tempopt.storage.urls import parse_database_url

DEPLOY = Path(__file__).parents[2] / "deploy"


@pytest.fixture
def compose() -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
    return data


def test_all_that_services_name_is_defined(compose: dict[str, Any]) -> None:
    services = compose["services"]
    references: dict[str, set[str]] = {"secrets": set(), "volumes": set()}
    for service in services.values():
        assert set(service.get("depends_on", {})) <= set(services)
        references["secrets"] |= set(service.get("secrets", ()))
        references["volumes"] |= {volume.split(":")[0] for volume in service.get("volumes", ())}
        for service_name, dependency in service.get("depends_on", {}).items():
            if dependency["condition"] == "service_healthy":
                assert "healthcheck" in services[service_name]
            else:
                assert services[service_name]["restart"] == "no"
    assert references == {kind: set(compose[kind]) for kind in references}


def test_services_of_tempopt_have_a_root_that_is_read_only(compose: dict[str, Any]) -> None:
    tempopt_services = [e for e in compose["services"].values() if e.get("image", "").startswith("tempopt-")]
    assert len(tempopt_services) == 4
    for service in tempopt_services:
        assert service["read_only"] and service["cap_drop"] == ["ALL"] and "/tmp" in service["tmpfs"]


def test_the_commands_are_commands_of_tempopt(compose: dict[str, Any]) -> None:
    services = compose["services"]
    for name in ("server", "agent"):
        cli.build_parsers()[0].parse_args(services[name]["command"])
    (line,) = re.findall(r"tempopt (token create .*) > ", services["first-token"]["command"][0])
    cli.build_parsers()[0].parse_args(line.split())


def test_an_agent_has_longer_to_end_than_its_runs_to_write_checkpoints(compose: dict[str, Any]) -> None:
    period = compose["services"]["agent"]["stop_grace_period"]
    assert int(period.removesuffix("s")) > Resources().grace


def test_the_token_is_made_once_for_its_owner_alone(compose: dict[str, Any], tmp_path: Path) -> None:
    (script,) = compose["services"]["first-token"]["command"]
    folder, program = tmp_path / "tokens", tmp_path / "tempopt"
    folder.mkdir()
    program.write_text("#!/bin/sh\necho made\necho once >> calls\n")
    program.chmod(0o755)
    local_script = script.replace("/tokens", str(folder)).replace("$$", "$")
    for _ in range(2):
        process = subprocess.run(
            ["/bin/sh", "-ec", local_script],
            cwd=tmp_path,
            env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
            check=False,
        )
        assert process.returncode == 0
    token = folder / "agent.token"
    assert token.read_text() == "made\n" and stat.S_IMODE(token.stat().st_mode) == 0o600
    assert (tmp_path / "calls").read_text() == "once\n"


def test_the_secrets_are_made_once_and_fit_together(compose: dict[str, Any], tmp_path: Path) -> None:
    script = tmp_path / "secrets.sh"
    script.write_text((DEPLOY / "secrets.sh").read_text(encoding="utf-8"))
    subprocess.run(["/bin/sh", script], check=True)
    secrets = {path.name: path.read_text() for path in (tmp_path / "secrets").iterdir()}
    assert set(secrets) == {Path(secret["file"]).name for secret in compose["secrets"].values()}
    assert stat.S_IMODE((tmp_path / "secrets").stat().st_mode) == 0o700
    assert re.fullmatch(r"[0-9a-f]{48}", secrets["postgres-password"])
    address = parse_database_url(secrets["storage-url"].strip())
    assert address.url.password == secrets["postgres-password"]
    assert address.url.host in compose["services"]
    assert secrets["minio-password"] in secrets["s3-credentials"]
    assert secrets["minio-password"] != secrets["postgres-password"]
    second_process = subprocess.run(["/bin/sh", script], check=False, capture_output=True)
    assert second_process.returncode == 1
    assert secrets == {path.name: path.read_text() for path in (tmp_path / "secrets").iterdir()}
