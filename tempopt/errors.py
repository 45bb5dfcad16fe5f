"""Every error that tempopt raises for a person to read; not the bugs, which are assertions.

TempoptError
├─ UsageError             what was asked cannot be done as asked (exit code 2)
│  ├─ SpecError           a study spec, or a value in it, is wrong
│  ├─ AttachError         a temperature cannot be put on this model
│  ├─ StorageError        the database cannot be reached, read or written
│  │  ├─ StoreUnreachable the database cannot be reached just now; trying again later may help
│  │  └─ StudyNotFound    no study of that name is in the store
│  └─ StudyChanged        the stored study was begun with another spec
└─ StudyFailed            the study ran and failed (exit code 1)
   └─ StaleAttempt        the ticket was given to somebody else meanwhile
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class TempoptError(Exception):
    """Root of the tree; its message says what was given, what is allowed and what to do."""


class UsageError(TempoptError, ValueError):
    """What was asked cannot be done as asked."""


class SpecError(UsageError):
    """A study spec, or a value in it, is wrong."""


class AttachError(UsageError):
    """A temperature cannot be put on this model."""


class StorageError(UsageError):
    """The database cannot be reached, read or written."""


class StoreUnreachable(StorageError):
    """The database cannot be reached just now; trying again later may help."""


class StudyNotFound(StorageError):
    """No study of that name is in the store."""


class StudyChanged(UsageError):
    """The stored study was begun with another spec."""


class StudyFailed(TempoptError, RuntimeError):
    """The study ran and failed."""


class StaleAttempt(StudyFailed):
    """The ticket was given to somebody else meanwhile."""


def unknown(what: str, given: object, known: Iterable[str], remedy: str = "") -> str:
    """Return the message for a name that is not known, with the nearest match first.

    Args:
        what: What kind of name it is, as in ``"schedule"``.
        given: The name that was given.
        known: The names that are allowed.
        remedy: A closing sentence on what to do, if there is more to do than choose.
    """
    names = list(known)
    near = difflib.get_close_matches(str(given), names, n=1)
    hint = f' Did you mean "{near[0]}"?' if near else ""
    return f'Unknown {what} "{given}".{hint} Known: {", ".join(names)}.{" " + remedy if remedy else ""}'
