"""The documents keep their word: what they show runs, what they list is complete, and their site builds.

Every fenced block of README and docs is taken by its language. Python is executed, page by page in one
namespace and in a folder of the page's own, and what it prints is the ``output`` block behind it; yaml is a
spec, or parts of one; whatever line begins with ``tempopt`` is read by the parser of the command line. A
block with a title is a file of that name, too. ``<!-- not run: why -->`` before a block says that no test
carries it out here.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from markdown_it import MarkdownIt

import tempopt
from tempopt import cli
from tempopt.spec import sections as settings
from tempopt.spec import study_spec as spec
from tempopt.spec import yaml_source
from tempopt.spec.lightning_config import GOVERNED
from tempopt.spec.program_section import ProgramSection
from tempopt.spec.resources import Resources
from tempopt.spec.sections import COMPILE_MODES, StudySection
from tempopt.temperature import NEUTRAL, TEMPERATURE_PARAMETERS
from tempopt.training.build import build

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
# A newcomer's way: their commands are carried out, in order.
FOLLOWED = ("quickstart.md", "own-model.md")
# A bundled study trains for minutes.
SHORTER = ["--trials", "6", "--set", "study.seeds.confirm=2"]
_TITLE = re.compile(r'title="([^"]+)"')
_NOT_RUN = re.compile(r"<!-- not run: .+ -->\s*")
# What a part of a spec is laid over.
_BASE_SPEC = {
    "study": {"name": "a_study", "metric": "val_accuracy", "direction": "maximize"},
    "model": {"class_path": "lightning_modules.DigitsViT"},
    "data": {"class_path": "lightning_modules.DigitsData"},
    "trainer": {"max_steps": 300},
    "search": {
        "temperature_init": {"low": 0.25, "high": 4},
        "temperature_final": {"low": 0.25, "high": 4},
        "schedule": ["constant", "cosine"],
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeBlock:
    """One fenced block: where it begins, its language, the file that it is, if any, and its text."""

    page: Path
    line: int
    language: str
    title: str | None
    text: str
    run: bool

    @property
    def location(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    def write(self, folder: Path) -> None:
        """Write the block to the file that it is, if any."""
        if self.title is not None:
            (folder / self.title).write_text(self.text, encoding="utf-8")


def _blocks(page: Path) -> list[CodeBlock]:
    blocks: list[CodeBlock] = []
    comment = ""
    for token in MarkdownIt().parse(page.read_text(encoding="utf-8")):
        if token.type == "fence":
            title = _TITLE.search(token.info)
            blocks.append(
                CodeBlock(
                    page=page,
                    line=(token.map or [0])[0] + 1,
                    language=token.info.split(" ")[0],
                    title=title and title[1],
                    text=token.content,
                    run=not _NOT_RUN.fullmatch(comment),
                )
            )
        comment = token.content if token.type == "html_block" else ""
    return blocks


BLOCKS = {page: _blocks(page) for page in PAGES}
ALL = [block for blocks in BLOCKS.values() for block in blocks]


def _blocks_in(*languages: str) -> list[Any]:
    return [pytest.param(block, id=block.location) for block in ALL if block.language in languages]


def test_every_block_says_what_it_is_in_a_language_that_is_tested() -> None:
    # README's marked blocks have none: .ci/run takes them by their markers
    # sql is carried out in tests/cli/test_roles.py
    languages = {"python", "output", "yaml", "console", "sql", "text", ""}
    assert not [f"{block.location}: {block.language}" for block in ALL if block.language not in languages]
    assert not [block.location for block in ALL if not block.language and block.page.name != "README.md"]


# ---- python


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a folder that is current and importable; what is imported from it is forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    modules_before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - modules_before:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]
    importlib.invalidate_caches()


@pytest.mark.parametrize(
    "page", [page for page in PAGES if any(block.language == "python" for block in BLOCKS[page])], ids=str
)
def test_python_runs_and_prints_what_is_shown(page: Path, folder: Path) -> None:
    namespace: dict[str, Any] = {"__name__": "a_page"}
    stdout = io.StringIO()
    for block in BLOCKS[page]:
        block.write(folder)
        if block.language == "output":
            assert stdout.getvalue() == block.text, block.location
        if block.language == "python" and block.run:
            stdout = io.StringIO()
            # so that a traceback names the line of the page
            code = compile("\n" * block.line + block.text, str(page), "exec", dont_inherit=True)
            with contextlib.redirect_stdout(stdout):
                exec(code, namespace)


def test_what_python_imports_from_tempopt_is_public() -> None:
    for block in ALL:
        names = re.findall(r"^from tempopt import (.+)$", block.text, flags=re.MULTILINE)
        assert {name.strip() for line in names for name in line.split(",")} <= set(tempopt.__all__), (
            block.location
        )


# ---- specs


@pytest.mark.parametrize("block", _blocks_in("yaml"))
def test_yaml_is_a_spec_or_a_part_of_one(block: CodeBlock, tmp_path: Path) -> None:
    spec_data = yaml_source.parse(block.text, source=block.location).data
    if "program" not in spec_data:
        if not {"study", "model", "search"} <= set(spec_data):
            spec_data = _laid_over(_BASE_SPEC, spec_data)
        spec_data.setdefault("trainer", _BASE_SPEC["trainer"])
    spec.StudySpec.parse(spec_data, source=block.location)


def _laid_over(defaults: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    study = {**defaults["study"], **overrides.get("study", {})}
    trainer = {**defaults["trainer"], **overrides.get("trainer", {})}
    return {**defaults, **overrides, "study": study, "trainer": trainer}


def _keys(section: type[settings.SpecSection], path: str) -> Iterator[str]:
    for name, field in section.model_fields.items():
        yield f"{path}{name}"
        inner = field.annotation
        if (
            isinstance(inner, type)
            and issubclass(inner, settings.SpecSection)
            and inner is not settings.SamplerOrPrunerConfig
        ):
            yield from _keys(inner, f"{path}{name}.")


SPECS = (DOCS / "specs.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| `([\w.]+)` \| (.*) \|$", SPECS, flags=re.MULTILINE))


@pytest.mark.parametrize(
    ("section", "path"),
    [
        (StudySection, "study."),
        (settings.AttachSection, "attach."),
        (ProgramSection, "program."),
        (Resources, "resources."),
    ],
)
def test_every_key_of_a_section_is_on_the_page(section: type[settings.SpecSection], path: str) -> None:
    assert set(_keys(section, path)) == {name for name in ROWS if name.startswith(path)}


def test_every_section_and_every_temperature_parameter_is_on_the_page() -> None:
    for name in spec.StudySpec.model_fields:
        assert re.search(rf"^## .*\b{name}:", SPECS, flags=re.MULTILINE), name
    assert set(TEMPERATURE_PARAMETERS) == {name for name in ROWS if "." not in name}
    assert all(f"`{name}`" in SPECS for name in GOVERNED)


def _default_text(default: object) -> str:
    if isinstance(default, bool):  # as in YAML
        return f"{str(default).lower()} |"
    return f"{default:g} |" if isinstance(default, float) else f"{default} |"


def test_defaults_on_the_page_are_those_in_force() -> None:
    for name, default in NEUTRAL.items():
        if default is not None:
            assert ROWS[name].startswith(_default_text(default)), name
    for section, path in ((StudySection, "study."), (settings.Seeds, "study.seeds.")):
        for name, field in section.model_fields.items():
            if isinstance(field.default, int | float | str):
                assert ROWS[f"{path}{name}"].startswith(_default_text(field.default)), name
            if isinstance(field.default, settings.SamplerOrPrunerConfig):
                assert ROWS[f"{path}{name}"].startswith(f"{field.default.name} |"), name


def test_the_module_that_is_fine_tuned_starts_from_its_weights(folder: Path) -> None:
    page = BLOCKS[DOCS / "own-model.md"]
    for block in page:
        block.write(folder)
    (text,) = [block.text for block in page if block.language == "yaml" and "weights:" in block.text]
    spec_data = _laid_over(_BASE_SPEC, yaml_source.parse(text, source="own-model.md").data)
    state = importlib.import_module("finder").Finder().state_dict()
    torch.save({"state_dict": state}, folder / "pretrained.ckpt")
    spec_data["attach"] = {"layers": "auto"}
    program = spec.StudySpec.parse(spec_data, source="own-model.md").lightning_program()
    state_dict = build(program, {"temperature_init": 0.5}).module.state_dict()
    assert state_dict.keys() == state.keys()
    assert all(torch.equal(state_dict[name], tensor) for name, tensor in state.items())


def test_every_name_that_may_be_chosen_is_on_the_page() -> None:
    from tempopt.temperature import HEAD_PATTERNS, LAYER_PATTERNS, LENGTH_SCALINGS, NORMALISERS, SCHEDULES

    for row, names in {
        "schedule": SCHEDULES,
        "layer_pattern": LAYER_PATTERNS,
        "head_pattern": HEAD_PATTERNS,
        "length_scaling": LENGTH_SCALINGS,
        "normaliser": NORMALISERS,
        "study.sampler": spec.SAMPLERS,
        "study.pruner": spec.PRUNERS,
        "study.compile": COMPILE_MODES,
    }.items():
        assert set(names) <= set(re.findall(r"`([\w-]+)`", ROWS[row])), row


# ---- the command line


def _commands(block: CodeBlock) -> list[list[str]]:
    """Return the words of each line that a person is to type."""
    if block.language not in ("console", ""):
        return []
    lines = re.findall(r"^(?:\$ )?((?:tempopt|python|pip) .*)$", block.text, flags=re.MULTILINE)
    return [shlex.split(line, comments=True) for line in lines]


TYPED = [
    pytest.param(words, id=f"{block.location}: {shlex.join(words)}")
    for block in ALL
    for words in _commands(block)
    if words[0] == "tempopt"
]


@pytest.mark.parametrize("words", TYPED)
def test_what_is_to_be_typed_can_be(words: list[str]) -> None:
    _, commands = cli.build_parsers()
    commands[words[1]].parse_intermixed_args(words[2:])


def test_every_command_has_a_section() -> None:
    page = (DOCS / "commands.md").read_text(encoding="utf-8")
    sections = re.findall(r"^## (\S+)$", page, flags=re.MULTILINE)
    assert sections == list(cli.COMMANDS)


@pytest.mark.long
@pytest.mark.parametrize("name", FOLLOWED)
def test_a_newcomer_who_follows_the_page_gets_through(name: str, tmp_path: Path) -> None:
    for block in BLOCKS[DOCS / name]:
        block.write(tmp_path)
        for words in _commands(block) if block.run else []:
            program = {"tempopt": [sys.executable, "-m", "tempopt"], "python": [sys.executable]}[words[0]]
            if words[1:] == ["search", "recall"]:
                words += SHORTER
            process = subprocess.run(
                [*program, *words[1:]], cwd=tmp_path, capture_output=True, text=True, check=False
            )
            assert process.returncode == 0, f"{shlex.join(words)}\n{process.stdout}{process.stderr}"


# ---- the site


class _ResourceParser(HTMLParser):
    """Collects what a page has the browser fetch from the network."""

    def __init__(self) -> None:
        super().__init__()
        self.remote_urls: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        address = attributes.get("src") or (attributes.get("href") if tag == "link" else None) or ""
        # nothing is fetched for the one that says what the page is called
        if re.match(r"(https?:)?//", address) and attributes.get("rel") != "canonical":
            self.remote_urls.append(address)


@pytest.mark.static
def test_the_site_builds_strictly_opens_offline_and_has_every_public_name(tmp_path: Path) -> None:
    # in one test, for it takes a while to build
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    process = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout + process.stderr
    pages = {path.stem: path.read_text(encoding="utf-8") for path in tmp_path.rglob("*.html")}
    assert {page.stem for page in PAGES} - {"README"} <= set(pages)
    _opens_offline_and_names_no_machine(pages)
    _has_every_public_name(pages["api"])
    assert not re.findall(
        r":(?:class|func|meth|data|mod|attr):|\.\. code-block|``\w|<code>python\s", pages["api"]
    )
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for page, anchor in re.findall(r"\]\(docs/([\w-]+)\.md#([\w-]+)\)", readme):
        assert f'id="{anchor}"' in pages[page], f"{page}#{anchor}"


def _opens_offline_and_names_no_machine(pages: Mapping[str, str]) -> None:
    for name, text in pages.items():
        parser = _ResourceParser()
        parser.feed(text)
        assert not parser.remote_urls, name
        assert str(ROOT) not in text and str(Path.home()) not in text, name


def _has_every_public_name(reference: str) -> None:
    anchors = set(re.findall(r'id="(tempopt[\w.]*)"', reference))
    rooms = ("tempopt", "tempopt.attention", "tempopt.temperature", "tempopt.report.plots", "tempopt.testing")
    for room in rooms:
        names = importlib.import_module(room).__all__
        # errors are shown where they are
        public_names = {name for name in names if {f"{room}.{name}", f"tempopt.errors.{name}"} & anchors}
        assert public_names == set(names), room
