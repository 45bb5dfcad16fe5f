"""The report: one HTML page that needs nothing else, made of what sections.py says.

The page runs the scripts that are written here and no others, and asks the network for nothing but, if it was
asked to, plotly.js: a content security policy in its head holds it to that, whatever a study's names hold.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import re
import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs_version

from tempopt.files import replace
from tempopt.report import headline
from tempopt.report.page import sections
from tempopt.report.page.shared import cell, coded, colours, drawing, library, template
from tempopt.results.study_result import StudyResult
from tempopt.results.verdict_text import GAIN

PlotlyJs = Literal["inline", "cdn"]
"""Where the page has plotly.js from: itself, or the network."""

_CDN = "https://cdn.plot.ly"
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
    script = drawing() + template("report.js")
    plotly = library() if plotlyjs == "inline" else None
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
            style=Markup(colours() + template("report.css")),
            script=Markup(script),
            library=None if plotly is None else Markup(plotly),
            library_url=f"{_CDN}/plotly-{get_plotlyjs_version()}.min.js",
            library_hash=f"sha256-{_hash(library())}",
            policy=_policy(script, plotly),
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
    made.filters["cell"] = cell
    made.filters["coded"] = coded
    return made


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
