"""How mkdocstrings is shown our code: docstrings in Markdown, and what rooms that load lazily make public."""

from __future__ import annotations

import importlib
import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:attr|class|data|exc|func|meth|mod):`~?([^`]+)`")
_LITERAL = re.compile(r"(?<!`)``(?!`)([^`]+)``(?!`)")
_CODE = re.compile(r"^( *)\.\. code-block:: (\w+)\n\n((?:(?:\1 +\S.*)?\n)+)", re.MULTILINE)


def _fenced(match: re.Match[str]) -> str:
    indent, language, body = match.groups()
    return f"{indent}```{language}\n{body.rstrip()}\n{indent}```\n\n"


def as_markdown(text: str) -> str:
    """Return a docstring with roles as code, and code blocks between fences."""
    # a code block at the end of a docstring has no line after it
    return _LITERAL.sub(r"`\1`", _ROLE.sub(r"`\1`", _CODE.sub(_fenced, f"{text}\n"))).rstrip("\n")


class AsWritten(griffe.Extension):
    """Rewrites every docstring, and asks a module what it exports where reading cannot tell."""

    def on_module(self, *, mod: griffe.Module, **kwargs: Any) -> None:
        """Take the exports of a module that computes its ``__all__``."""
        if not mod.exports and "__all__" in mod.members:
            mod.exports = list(importlib.import_module(mod.path).__all__)

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite the docstring of a module, class, function or attribute."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)
