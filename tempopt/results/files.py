"""Text files that are whole or not there."""

from __future__ import annotations

import contextlib
from pathlib import Path

from tempopt.errors import UsageError


def replace(path: Path, text: str) -> None:
    """Write a file by way of a temporary one, in place of one that may be there.

    Args:
        path: The file.
        text: What to write, in UTF-8.

    Raises:
        UsageError: It cannot be written.
    """
    temporary = path.with_name(path.name + ".writing")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}. Give another path.") from error
    finally:
        # there still if anything went wrong, Ctrl-C too
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
