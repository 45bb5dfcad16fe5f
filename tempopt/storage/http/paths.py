"""Paths of the server's REST interface."""

from __future__ import annotations

import re

from tempopt.errors import StudyNotFound

STUDIES = "/api/studies"
OPEN_STUDIES = "/api/agents/studies"
"""Path of the list of unfinished studies, for agents that serve every study."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")


def study_path(name: str, *parts: str) -> str:
    """Return the path of a study, or of a resource of it.

    Args:
        name: Name of the study.
        parts: Path of the resource, as in ``tickets``.

    Raises:
        StudyNotFound: No study has such a name.
    """
    if _NAME.fullmatch(name) is None:
        raise StudyNotFound(
            f'There is no study "{name}": names consist of letters, digits, dots, dashes and underscores.'
        )
    return "/".join([STUDIES, name, *parts])
