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


def imported() -> set[str]:
    """Return the packages from which a server imports, whenever it does."""
    graph = grimp.build_graph("tempopt", include_external_packages=True, exclude_type_checking_imports=True)
    reached: set[str] = set()
    for command in COMMANDS:
        reached |= graph.find_upstream_modules(f"tempopt.cli.{command}")
    modules = {name for name in reached if not name.startswith("tempopt")}
    providers = packages_distributions()
    return {normal(each) for name in modules for each in providers.get(name, [])}


def roots() -> list[Requirement]:
    """Return the requirements of tempopt that a server has, those of its drivers included."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = imported()
    asked = [each for each in map(Requirement, project["dependencies"]) if normal(each.name) in needed]
    for extra in EXTRAS:
        asked += map(Requirement, project["optional-dependencies"][extra])
    return asked


def closure(asked: Iterable[Requirement]) -> set[str]:
    """Return the names of packages with all that they require in turn, on this platform."""
    found: set[str] = set()
    todo = [(normal(each.name), frozenset(each.extras)) for each in asked]
    seen = set()
    while todo:
        name, extras = todo.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        found.add(name)
        todo += [(normal(each.name), frozenset(each.extras)) for each in _required(name, extras)]
    return found


def _required(name: str, extras: frozenset[str]) -> Iterator[Requirement]:
    for text in distribution(name).requires or ():
        each = Requirement(text)
        if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield each


def pins() -> dict[str, str]:
    """Return the versions of constraints.txt, by normal name."""
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    return {normal(name): version for name, version in re.findall(r"^([\w.-]+)==(\S+)", text, re.M)}


def written() -> str:
    """Return what the file has to say."""
    pinned = pins()
    return _HEAD + "".join(f"{name}=={pinned[name]}\n" for name in sorted(closure(roots())))


if __name__ == "__main__":
    print(written(), end="")
