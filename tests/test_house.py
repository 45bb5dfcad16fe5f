"""The habits of the house, held to by machine: floors, sizes, words, README and what is built from it."""

from __future__ import annotations

import ast
import functools
import re
import shlex
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import tempopt
from tempopt import cli

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PACKAGES = ("tempopt", "lightning_modules")
MAX_FILE = 1000
MAX_FUNCTION = 50


def _repository_files() -> list[Path]:
    """Return every file that is committed or would be, relative to the root."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    process = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=False)
    if process.returncode != 0:
        pytest.skip("This is no git clone, so it cannot be told what belongs to it.")
    return sorted({Path(name) for name in process.stdout.split("\0") if name and (ROOT / name).is_file()})


def _sources() -> list[Path]:
    return sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


@functools.cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _tool(*command: str) -> str:
    """Run ``python -m`` with the words of a command and return what it printed; it has to end well."""
    words = [sys.executable, "-m", *command]
    process = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert process.returncode == 0, f"{shlex.join(command)}\n{process.stdout}{process.stderr}"
    return process.stdout


@pytest.mark.static
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("command", ["ruff check", "ruff format --check", "mypy"])
def test_style_and_types_hold(command: str) -> None:
    _tool(*command.split())


@pytest.mark.static
def test_imports_go_down_only() -> None:
    script = Path(sys.executable).with_name("lint-imports")
    process = subprocess.run([script, "--no-logo"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout + process.stderr
    assert "0 broken" in process.stdout


def test_public_names_are_sorted_and_there() -> None:
    assert tempopt.__all__ == sorted(tempopt.__all__)
    assert set(tempopt.__all__) <= set(dir(tempopt))
    for name in tempopt.__all__:
        assert getattr(tempopt, name).__name__ == name


def test_a_public_name_that_is_not_there_is_told_what_is() -> None:
    with pytest.raises(AttributeError, match=r"serch.*StudyResult"):
        tempopt.serch  # noqa: B018


def test_the_version_is_said_once_more_only() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == tempopt.__version__


def test_every_module_begins_with_what_it_owns() -> None:
    assert not [path for path in _sources() if not ast.get_docstring(_tree(path))]


def test_files_are_short_enough_to_read() -> None:
    paths = [ROOT / path for path in _repository_files() if path.suffix == ".py"]
    long = {
        str(path): n for path in paths if (n := len(path.read_text(encoding="utf-8").splitlines())) > MAX_FILE
    }
    assert not long


def _functions(path: Path) -> Iterator[tuple[str, int]]:
    """Yield name and number of lines of every function's body, its docstring not counted."""
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            # a signature is one line for each argument, however many a class has to have
            body = node.body[1:] if ast.get_docstring(node) is not None else node.body
            length = (node.end_lineno or 0) - body[0].lineno + 1 if body else 0
            yield f"{path.relative_to(ROOT)}:{node.name}", length


def test_functions_are_short_enough_to_read() -> None:
    lengths = [function_length for path in _sources() for function_length in _functions(path)]
    assert not {name: length for name, length in lengths if length > MAX_FUNCTION}


def test_committed_files_name_no_local_paths() -> None:
    machine_path = re.compile(r"(?<![\w.-])/(?:work|farm|root|opt|Users|tmp/venv)/")
    offending_lines = []
    for path in _repository_files():
        if path.suffix not in (".md", ".py", ".toml", ".yaml", ".txt", ".mako", "") or path.name == "LICENSE":
            continue
        for number, line in enumerate((ROOT / path).read_text(encoding="utf-8").splitlines(), start=1):
            offending_lines += [f"{path}:{number}: {line}"] if machine_path.search(line) else []
    assert not offending_lines


def test_every_command_is_in_the_readmes_table() -> None:
    commands = re.findall(r"^\| `tempopt ([a-z]+)", README, flags=re.MULTILINE)
    assert commands == list(cli.COMMANDS)


def test_messages_and_documents_name_only_commands_that_there_are() -> None:
    command_pattern = re.compile(r"[`(]tempopt ([a-z]+)\b")
    documents = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
    missing_commands = {
        f"{path.relative_to(ROOT)}: tempopt {word}"
        for path in [*_sources(), *documents, *(ROOT / "studies").glob("*.yaml")]
        for word in command_pattern.findall(path.read_text(encoding="utf-8"))
        if word not in cli.COMMANDS
    }
    assert not missing_commands


def test_links_between_documents_lead_somewhere() -> None:
    for path in [ROOT / path for path in _repository_files() if path.suffix == ".md"]:
        # what looks like a link in code is none
        text = re.sub(r"```.*?```|`[^`\n]*`", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        links = re.findall(r"\]\(([^)#]+)\)", text)
        assert not [link for link in links if "://" not in link and not (path.parent / link).exists()], path


def test_names_that_agents_are_pointed_to_are_defined_in_their_files() -> None:
    text = (ROOT / "AGENTS.md").read_text(encoding="utf-8")
    pointers = re.findall(r"((?:`[\w.]+`(?:, and |, | and )?)+) in `([\w/]+\.py)`", text)
    assert pointers
    for names, file in pointers:
        path = ROOT / file if file.startswith("tests/") else ROOT / "tempopt" / file
        for name in re.findall(r"(\w+)`", names):
            definition = rf"(class|def) {name}\b|\b{name}(: .+)? = "
            assert re.search(definition, path.read_text(encoding="utf-8")), f"{name} in {file}"


def test_sections_of_docstrings_are_indented_once() -> None:
    heading = re.compile(r"^( *)(?:Args|Attributes|Returns|Yields|Raises):\n( *)", flags=re.MULTILINE)
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = [
        (f"{path.relative_to(ROOT)}:{node.name}", ast.get_docstring(node) or "")
        for path in _sources()
        for node in ast.walk(_tree(path))
        if isinstance(node, kinds)
    ]
    assert not [name for name, text in docstrings if set(heading.findall(text)) - {("", " " * 4)}]


def _block(marker: str, text: str = README) -> list[str]:
    """Return the lines of the fenced block after a marker in the README, or in another text."""
    _, marker_text, tail = text.partition(f"<!-- {marker} -->\n```\n")
    assert marker_text, marker
    return tail.partition("\n```")[0].splitlines()


@pytest.mark.parametrize("marker", ["main-command", "test-command"])
def test_a_command_of_the_readme_is_one_line(marker: str) -> None:
    assert len(_block(marker)) == 1


def test_ci_runs_the_line_of_the_readme() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    (extract,) = re.findall(r"^command=\$\((.*)\)$", script, flags=re.MULTILINE)
    process = subprocess.run(["bash", "-c", extract], cwd=ROOT, capture_output=True, text=True, check=True)
    assert process.stdout.splitlines() == _block("test-command")


def _drawn_tree() -> dict[Path, str]:
    """Return the tree in CONTRIBUTING: path and what is said of it."""
    comments: dict[Path, str] = {}
    ancestors: list[str] = []
    for line in _block("tree", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")):
        depth = (len(line) - len(line.lstrip())) // 2
        name, _, comment = line.strip().partition(" ")
        ancestors[depth:] = [name.rstrip("/")]
        comments[Path(*ancestors)] = comment.strip()
    return comments


def test_the_tree_that_is_drawn_is_the_real_tree() -> None:
    drawn_tree = _drawn_tree()
    folders = {path.parent for path in drawn_tree}
    real = {
        part
        for path in _repository_files()
        if path.name not in ("__init__.py", "py.typed") and path.parts[0][0] != "."
        for part in (path, *path.parents)
        if part != Path() and part.parent in folders
    }
    assert {str(path) for path in drawn_tree} == {str(path) for path in real}
    assert all(drawn_tree.values())


@pytest.mark.static
def test_the_wheel_holds_everything_that_a_search_needs(tmp_path: Path) -> None:
    _tool("build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT))
    (wheel,) = tmp_path.glob("*.whl")
    wheel_names = set(zipfile.ZipFile(wheel).namelist())
    expected_names = {str(path.relative_to(ROOT)) for path in _sources()}
    expected_names |= {f"tempopt/_studies/{path.name}" for path in (ROOT / "studies").glob("*.yaml")}
    templates = ROOT / "tempopt" / "report" / "page" / "templates"
    expected_names |= {str(path.relative_to(ROOT)) for path in templates.iterdir()}
    assert expected_names <= wheel_names
    assert not [name for name in wheel_names if name.startswith("tests")]


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


def _requirements() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = (project["dependencies"], *project["optional-dependencies"].values())
    # an extra may name another one of the package itself
    return [
        requirement
        for group in groups
        for requirement in map(Requirement, group)
        if requirement.name != project["name"]
    ]


@pytest.mark.parametrize("name", HOLES)
def test_no_version_with_a_known_hole_is_let_in(name: str) -> None:
    versions, reason = HOLES[name]
    requirements = [requirement for requirement in _requirements() if requirement.name == name]
    assert requirements
    for version in versions.split():
        assert not any(requirement.specifier.contains(version) for requirement in requirements), reason


def test_the_constraints_pin_a_version_of_every_requirement_that_it_allows() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line[0] != "#"]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", pin) for pin in pins)
    versions = {
        canonicalize_name(name): version for name, _, version in (pin.partition("==") for pin in pins)
    }
    for requirement in _requirements():
        assert requirement.specifier.contains(versions[canonicalize_name(requirement.name)]), requirement
