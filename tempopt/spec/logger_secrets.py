"""Refuse passwords and keys in the arguments of a spec's loggers, since a spec is stored and shown.

Checks plain data without importing loggers, so that a spec is refused before anything is stored.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from tempopt.errors import SpecError, without_passwords

_SECRET = re.compile(r"(?:\w+_)?(?:api_?key|access_key|passw(?:or)?d|secret|token)", re.IGNORECASE)


def check_no_secrets(logger: object, path: str = "trainer.logger") -> None:
    """Refuse loggers with an argument that is a password, a key, or a URL that contains one.

    Args:
        logger: ``trainer.logger``, or one logger of it; plain data.
        path: Its path in the spec.

    Raises:
        SpecError: There is a secret; the message gives its path, but does not repeat it.
    """
    for secret_path, message in find_secrets(logger, path):
        raise SpecError(f"{secret_path}: {message}")


def find_secrets(logger: object, path: str = "trainer.logger") -> list[tuple[str, str]]:
    """Return the paths of passwords and keys in the arguments of a logger, each with a message."""
    message = (
        "holds a password or a key, which would be stored with the study and shown with it. "
        "Take it out, and give it to the tracker by environment variables, on every machine that trains: "
        "MLFLOW_TRACKING_URI, MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, WANDB_API_KEY."
    )
    return [(secret_path, message) for secret_path in _secrets(logger, path)]


def _secrets(data: object, path: str) -> Iterator[str]:
    if isinstance(data, Mapping):
        for name, value in data.items():
            entry_path = f"{path}.{name}"
            if value and isinstance(value, str) and _SECRET.fullmatch(str(name)):
                yield entry_path
            else:
                yield from _secrets(value, entry_path)
    elif isinstance(data, list | tuple):
        for number, entry in enumerate(data):
            yield from _secrets(entry, f"{path}.{number}")
    elif isinstance(data, str) and without_passwords(data) != data:
        yield path
