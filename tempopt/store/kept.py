"""Files that lie beside a study's checkpoints by their hash: looked for, listed, written whole or not at all.

What is in them is known to ``tempopt.store.weights``.
"""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Callable
from pathlib import Path

from tempopt.errors import UsageError
from tempopt.store.checkpoints import join, opened, reason

Pattern = re.Pattern[str]


def is_kept(url: str) -> bool:
    """Return whether there is a file.

    Raises:
        UsageError: The storage cannot be reached.
    """
    fs, path = opened(url)
    try:
        fs.invalidate_cache()
        return bool(fs.exists(path))
    except Exception as error:
        # each storage has errors of its own
        raise UsageError(f"Whether {url} is there cannot be found out: {reason(error)}.") from error


def others(url: str, pattern: Pattern) -> list[str]:
    """Return the URLs of the files in the folder of a file that are others, half written ones too.

    Args:
        url: The file.
        pattern: Names of such files, and of half written ones; the first group is the hash.

    Raises:
        UsageError: The storage cannot be reached.
    """
    folder, _, name = url.rpartition("/")
    fs, path = opened(folder)
    try:
        fs.invalidate_cache()
        names = [each.rpartition("/")[2] for each in fs.ls(path, detail=False)]
    except FileNotFoundError:
        return []
    except Exception as error:
        # each storage has errors of its own
        raise UsageError(f"What is in {folder} cannot be found out: {reason(error)}.") from error
    return [join(folder, each) for each in names if pattern.fullmatch(each) and not each.startswith(name)]


def whole(target: Path, write: Callable[[Path], object]) -> None:
    """Have a file of this machine written, whole or not at all.

    Args:
        target: The file; its folder is made.
        write: Writes it, given a file beside it.

    Raises:
        OSError: It cannot be written.
    """
    temporary = target.with_name(f"{target.name}.{secrets.token_hex(8)}.writing")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write(temporary)
        temporary.replace(target)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
