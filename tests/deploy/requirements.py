"""Which packages a server needs, computed from what its modules import.

`python -m tests.deploy.requirements` prints `deploy/requirements-server.txt`. torch and Lightning are not
among them: only workers load those.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

import grimp
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
FILE = ROOT / "deploy" / "requirements-server.txt"
COMMANDS = ("serve", "token", "storage", "transfer")
"""Modules of the commands that the image of the server is for."""
EXTRAS = ("server", "postgresql", "mysql", "s3")
"""Extra of the server, and those that are loaded by name when a URL asks for them."""
_HEAD = """\
# What `tempopt serve` needs, without torch and Lightning: computed from its imports and constraints.txt by
#   python -m tests.deploy.requirements > deploy/requirements-server.txt
# Installed with --no-deps, as is tempopt then.
"""


def normal(name: str) -> str:
    """Return the one spelling of a package's name."""
    return re.sub(r"[-_.]+", "-", name).lower()


def imported_packages() -> set[str]:
    """Return the packages from which a server imports, whenever it does."""
    graph = grimp.build_graph("tempopt", include_external_packages=True, exclude_type_checking_imports=True)
    # the package itself reads the command line
    upstream_modules = set(graph.find_upstream_modules("tempopt.cli"))
    for command in COMMANDS:
        upstream_modules |= graph.find_upstream_modules(f"tempopt.cli.{command}")
    modules = {name for name in upstream_modules if not name.startswith("tempopt")}
    providers = packages_distributions()
    return {normal(provider) for name in modules for provider in providers.get(name, [])}


def roots() -> list[Requirement]:
    """Return the requirements of tempopt that a server has, those of its drivers included."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    imported_names = imported_packages()
    requirements = [
        requirement
        for requirement in map(Requirement, project["dependencies"])
        if normal(requirement.name) in imported_names
    ]
    for extra in EXTRAS:
        requirements += map(Requirement, project["optional-dependencies"][extra])
    return requirements


def closure(requirements: Iterable[Requirement]) -> set[str]:
    """Return the names of packages with all that they require in turn, on this platform."""
    names: set[str] = set()
    todo = [(normal(requirement.name), frozenset(requirement.extras)) for requirement in requirements]
    visited = set()
    while todo:
        name, extras = todo.pop()
        if (name, extras) in visited:
            continue
        visited.add((name, extras))
        names.add(name)
        todo += [
            (normal(requirement.name), frozenset(requirement.extras))
            for requirement in _requirements_of(name, extras)
        ]
    return names


def _requirements_of(name: str, extras: frozenset[str]) -> Iterator[Requirement]:
    for text in distribution(name).requires or ():
        requirement = Requirement(text)
        if requirement.marker is None or any(
            requirement.marker.evaluate({"extra": extra}) for extra in ("", *extras)
        ):
            yield requirement


def pins() -> dict[str, str]:
    """Return the versions of constraints.txt, by normal name."""
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    return {normal(name): version for name, version in re.findall(r"^([\w.-]+)==(\S+)", text, re.M)}


def file_text() -> str:
    """Return what the file has to say."""
    versions = pins()
    return _HEAD + "".join(f"{name}=={versions[name]}\n" for name in sorted(closure(roots())))


if __name__ == "__main__":
    print(file_text(), end="")
