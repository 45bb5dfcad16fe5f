"""The report: one HTML page that needs nothing else, made of what sections.py says.

The page runs the scripts that are written here and no others, and asks the network for nothing but, if it was
asked to, plotly.js: a content security policy in its head holds it to that, whatever a study's names hold.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import re
import shlex
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Literal

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from plotly.offline import get_plotlyjs, get_plotlyjs_version

from tempopt.files import replace
from tempopt.report import headline
from tempopt.report.page import sections
from tempopt.report.plots.style import DARK, number
from tempopt.results.study_result import StudyResult
from tempopt.results.verdict_text import GAIN

PlotlyJs = Literal["inline", "cdn"]
"""Where the page has plotly.js from: itself, or the network."""

_CDN = "https://cdn.plot.ly"
_CODE = re.compile("`([^`]*)`")
_UNSAFE = re.compile(r"[^\w.-]+")


def render(result: StudyResult, *, plotlyjs: PlotlyJs = "inline", storage: str | None = None) -> str:
    """Return a study as one HTML page.

    Args:
        result: The study, loaded as a whole (``tempopt.load_study``).
        plotlyjs: ``inline`` puts plotly.js (about 5 MB) into the page, which then opens offline; ``cdn`` has
            the reader's browser fetch it.
        storage: URL of the study's database with its password masked, for the commands that the page shows;
            None: they name none.
    """
    option = "" if storage is None else f" --storage {shlex.quote(storage)}"
    found = sections.sections(result, option)
    script = _script()
    library = get_plotlyjs() if plotlyjs == "inline" else None
    first, rest = headline.verdict(result, option)
    text: str = (
        _environment()
        .get_template("report.html.j2")
        .render(
            study=result,
            answer=headline.answer(result),
            gain=GAIN,
            verdict=first,
            todo=headline.what_to_do(result, option),
            terms=headline.terms(result),
            statements=rest,
            tiles=sections.tiles(result),
            sections=found,
            figures=Markup(sections.figures_json(found)),
            style=Markup(_template("report.css")),
            script=Markup(script),
            library=None if library is None else Markup(library),
            library_url=f"{_CDN}/plotly-{get_plotlyjs_version()}.min.js",
            library_hash=f"sha256-{_hash(get_plotlyjs())}",
            policy=_policy(script, library),
            written=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        )
    )
    return text


def write_report(
    result: StudyResult, path: str | Path | None = None, *, plotlyjs: PlotlyJs = "inline"
) -> Path:
    """Write a study as one HTML page, as ``tempopt report`` does, and return the path of the file.

    Args:
        result: The study, loaded as a whole (:func:`tempopt.load_study`); the curves of one that is not are
            left out.
        path: File to write, in place of one that is there; None: the study's name and ``.html`` in the
            current folder.
        plotlyjs: As for :func:`render`.

    Raises:
        UsageError: The file cannot be written.
    """
    target = Path(file_name(result.name) if path is None else path)
    replace(target, render(result, plotlyjs=plotlyjs))
    return target


def file_name(name: str) -> str:
    """Return the name of the file that a study's report is written to: its own, made safe, and ``.html``."""
    safe = _UNSAFE.sub("_", name).strip("._")[:100]
    return f"{safe or 'study'}.html"


@functools.cache
def _environment() -> Environment:
    loader = PackageLoader("tempopt.report.page")
    made = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    made.lstrip_blocks = True
    made.filters["cell"] = _cell
    made.filters["coded"] = _coded
    return made


def _cell(value: object) -> str:
    """Return what stands in a cell of a table."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return number(value)
    text = str(value)
    return text if len(text) <= 200 else f"{text[:199]}…"


def _coded(text: str) -> Markup:
    """Return a sentence with what stands between backticks as code."""
    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(text))))


def _script() -> str:
    text = _template("report.js")
    return text.replace("DARK_COLOURS", json.dumps(dict(DARK)))


def _policy(script: str, library: str | None) -> str:
    allowed = [f"'sha256-{_hash(each)}'" for each in (script, library) if each is not None]
    if library is None:
        allowed.append(_CDN)
    return (
        f"default-src 'none'; script-src {' '.join(allowed)}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


@functools.cache
def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _template(name: str) -> str:
    return (files("tempopt.report.page") / "templates" / name).read_text(encoding="utf-8")
