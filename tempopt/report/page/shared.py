"""Parts shared by the report and other pages: colours, drawing of plots, cells, inline code.

plotly takes long to load, so it is imported where it is needed.
"""

from __future__ import annotations

import functools
import json
import re
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from tempopt.errors import escape_control_chars
from tempopt.report.formatting import shorten

_CODE = re.compile("`([^`]*)`")


@functools.cache
def template(name: str) -> str:
    """Return the text of one of the report's files."""
    return (files("tempopt.report.page") / "templates" / name).read_text(encoding="utf-8")


def colours() -> str:
    """Return the style sheet with the colours on light and dark backgrounds."""
    return template("colours.css")


def drawing() -> str:
    """Return the script whose ``drawing.draw(element, figure)`` draws a plot with plotly.js."""
    from tempopt.report.plots.style import DARK

    return template("draw.js").replace("DARK_COLOURS", json.dumps(dict(DARK)))


def library() -> str:
    """Return plotly.js, about 5 MB."""
    from plotly.offline import get_plotlyjs

    text: str = get_plotlyjs()
    return text


def cell(value: object) -> str:
    """Return the text of a cell of a table."""
    if value is None:
        return "–"
    if isinstance(value, float):
        from tempopt.report.plots.style import number

        return number(value)
    return shorten(str(value), 200)


def create_environment(package: str) -> Environment:
    """Return the templates of a package, which escape all values; an undefined name is an error."""
    return Environment(
        loader=PackageLoader(package),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_escape_value,
    )


def _escape_value(value: object) -> object:
    """Return a value of a template; a text could otherwise change the direction of the rest of its line."""
    return escape_control_chars(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def format_inline_code(text: str) -> Markup:
    """Return a sentence as HTML, with text between backticks as ``<code>``."""
    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(escape_control_chars(text)))))
