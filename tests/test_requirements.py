"""What may be installed with tempopt: no version with a known hole, and what constraints.txt pins."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
# The last version with the hole (or each, where single ones were tampered with), and what it was.
HOLES = {
    "filelock": ("3.20.2", "CVE-2025-68146, CVE-2026-22701: a link in place of the lock file is followed"),
    "fsspec": ("2026.5.0", "CVE-2026-104851: a reference file system runs what its file says"),
    "s3fs": ("2026.5.0", "goes with the fsspec of the same version"),
    "torch": ("2.9.1", "CVE-2026-24747: weights_only loads more than data"),
    "lightning": ("2.6.2 2.6.3", "published by strangers on 2026-04-30"),
    "jinja2": ("3.1.5", "CVE-2025-27516: a template leaves its sandbox"),
    "pymysql": ("1.1.0", "CVE-2024-36039: SQL in the keys of a dict"),
    "scikit-learn": ("1.4.2", "CVE-2024-5206: keeps the tokens that it was trained on"),
    "ray": ("2.51.2", "CVE-2025-62593: a web page runs code on a Ray of its reader's machine"),
    "flask-cors": ("5.0.1", "CVE-2024-6844 and others: origins are matched wrongly"),
}


def _requirements() -> Iterator[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for group in (project["dependencies"], *project["optional-dependencies"].values()):
        yield from map(Requirement, group)


@pytest.mark.parametrize("name", HOLES)
def test_no_version_with_a_known_hole_is_let_in(name: str) -> None:
    versions, reason = HOLES[name]
    requirements = [requirement for requirement in _requirements() if requirement.name == name]
    assert requirements
    for version in versions.split():
        assert not [requirement for requirement in requirements if requirement.specifier.contains(version)], (
            reason
        )


def test_what_is_pinned_is_let_in() -> None:
    pins = dict(
        re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.M)
    )
    pinned_versions = {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in pins.items()}
    requirements = [
        requirement for requirement in _requirements() if requirement.name.lower() in pinned_versions
    ]
    assert len(requirements) > 40
    assert [
        str(requirement)
        for requirement in requirements
        if not requirement.specifier.contains(pinned_versions[requirement.name.lower()])
    ] == []
