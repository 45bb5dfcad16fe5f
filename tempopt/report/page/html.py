"""The report: one self-contained HTML page with the content of sections.py.

A content security policy in its head allows only the scripts of this page. The file opens offline. On a
server the page loads plotly.js from there and reloads itself while the study runs.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import re
import shlex
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from jinja2 import Environment
from markupsafe import Markup
from plotly.offline import get_plotlyjs_version

from tempopt.files import replace
from tempopt.report import study_lines
from tempopt.report.finding import GAIN
from tempopt.report.page import sections
from tempopt.report.page.shared import (
    cell,
    colours,
    create_environment,
    drawing,
    format_inline_code,
    library,
    template,
)
from tempopt.report.recommendation_text import recommendation_text, sentence
from tempopt.report.study_result import StudyResult

PlotlyJs = Literal["inline", "cdn"]
"""Source of plotly.js: the page itself, or the network."""

_CDN = "https://cdn.plot.ly"
_UNSAFE = re.compile(r"[^\w.-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Parts that a server adds to the report.

    Args:
        home_url: Address of the list of studies.
        library_url: Address of plotly.js on the same server (:func:`tempopt.report.page.shared.library`).
        refresh_seconds: Seconds between reloads while the study runs.
        actions: Forms and links below the title; they may post to the same server.
    """

    home_url: str
    library_url: str
    refresh_seconds: int = 20
    actions: Markup | None = None


def render_report(
    result: StudyResult,
    *,
    plotlyjs: PlotlyJs = "inline",
    storage: str | None = None,
    site: Site | None = None,
) -> str:
    """Render a study as one HTML page; ``tempopt report`` and the server's study page both call this.

    Args:
        result: The study, loaded completely (``tempopt.load_study``).
        plotlyjs: ``inline`` puts plotly.js (about 5 MB) into the page, which then opens offline; with ``cdn``
            the reader's browser loads it. No effect on a page with ``site``.
        storage: URL of the study's database with its password masked, for the commands on the page;
            None: the commands have no ``--storage``.
        site: Parts that a server adds; None: the page is a file.
    """
    option = "" if storage is None else f" --storage {shlex.quote(storage)}"
    pictures = sections.pictures(result)
    script = drawing() + template("report.js")
    is_inline = site is None and plotlyjs == "inline"
    plotly = library() if is_inline else None
    answer = study_lines.outcome_label(result)
    first_line, *other_lines = study_lines.decision_lines(result, option)
    word, _, line = first_line.partition(": ")
    if not (line and answer.startswith(word)):
        line = first_line
    text: str = (
        _environment()
        .get_template("report.html.j2")
        .render(
            study=result,
            answer=answer,
            gain=GAIN,
            # without the answer, which stands above it
            verdict=line if line.startswith(result.metric) else sentence(line),
            decision=other_lines,
            todo=sentence(recommendation_text(result, option)) if result.verdict else "",
            terms=study_lines.glossary(result),
            statements=study_lines.statements(result, option),
            tiles=sections.stat_tiles(result),
            stages=sections.stages(result),
            title_of_use=sections.title_of_use(result),
            codes=list(sections.codes_to_use(result)),
            plots=[picture for picture in pictures if picture.figure],
            absent=[picture for picture in pictures if picture.absent],
            heads=list(sections.heads_facts(result)),
            costs=list(sections.cost_facts(result)),
            environment=list(sections.environment_facts(result)),
            reproduction=list(sections.codes_to_reproduce(result, option)),
            figures=Markup(sections.figures_json(pictures)),
            style=Markup(colours() + template("report.css")),
            script=Markup(script),
            library=None if plotly is None else Markup(plotly),
            library_url=f"{_CDN}/plotly-{get_plotlyjs_version()}.min.js"
            if site is None
            else site.library_url,
            library_hash=f"sha256-{_hash(library())}",
            policy=_policy(script, plotly, site),
            site=site,
            written=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        )
    )
    return text


def write_report(
    result: StudyResult, path: str | Path | None = None, *, plotlyjs: PlotlyJs = "inline"
) -> Path:
    """Write a study as one HTML page, as ``tempopt report`` does, and return the path of the file.

    Args:
        result: The study, loaded completely (:func:`tempopt.load_study`); otherwise the report has no curves.
        path: File to write, which is replaced if it exists; None: the study's name and ``.html`` in the
            current folder.
        plotlyjs: As for :func:`render_report`.

    Raises:
        UsageError: The file cannot be written.
    """
    target = Path(file_name(result.name) if path is None else path)
    replace(target, render_report(result, plotlyjs=plotlyjs))
    return target


def file_name(name: str) -> str:
    """Return the file name of a study's report: its name, made safe, and ``.html``."""
    safe = _UNSAFE.sub("_", name).strip("._")[:100]
    return f"{safe or 'study'}.html"


@functools.cache
def _environment() -> Environment:
    environment = create_environment("tempopt.report.page")
    environment.filters |= {"cell": cell, "inline_code": format_inline_code}
    return environment


def _policy(script: str, library: str | None, site: Site | None) -> str:
    sources = [f"'sha256-{_hash(text)}'" for text in (script, library) if text is not None]
    if site is not None:
        sources.append("'self'")
    elif library is None:
        sources.append(_CDN)
    same_server = "'none'" if site is None else "'self'"
    return (
        f"default-src 'none'; script-src {' '.join(sources)}; style-src 'unsafe-inline'; "
        f"img-src data: blob:; base-uri 'none'; form-action {same_server}; connect-src {same_server}"
    )


@functools.cache
def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
