"""Every error that tempopt raises for a person to read; not the bugs, which are assertions.

And how a text is shown without the passwords in it.

TempoptError
├─ UsageError             what was asked cannot be done as asked (exit code 2)
│  ├─ SpecError           a study spec, or a value in it, is wrong
│  ├─ AttachError         a temperature cannot be put on this model
│  ├─ StorageError        the database cannot be reached, read or written
│  │  ├─ StoreUnreachable the database cannot be reached just now; trying again later may help
│  │  │  └─ StoreBusy     it answers, and cannot serve: no connection free, no writes, no space
│  │  └─ StudyNotFound    no study of that name is in the store
│  └─ StudyChanged        the stored study was begun with another spec
├─ NothingToPlot          a study has not measured what a plot would show
└─ StudyFailed            the study ran and failed (exit code 1)
   └─ StaleAttempt        the ticket was given to somebody else meanwhile
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable


class TempoptError(Exception):
    """Root of the tree; its message says what was given, what is allowed and what to do."""


class UsageError(TempoptError, ValueError):
    """What was asked cannot be done as asked."""


class SpecError(UsageError):
    """A study spec, or a value in it, is wrong."""


class ScheduleNotImported(SpecError):
    """A study's schedule is outside tempopt, and its module was not imported."""


class AttachError(UsageError):
    """A temperature cannot be put on this model."""


class StorageError(UsageError):
    """The database cannot be reached, read or written."""


class StoreUnreachable(StorageError):
    """The database cannot be reached just now; trying again later may help."""


class StoreBusy(StoreUnreachable):
    """The database answers, and cannot serve just now: no connection is free, nothing can be written."""


class StoreNotBegun(StorageError):
    """There is no database at the URL yet, or none that holds a study."""


class StudyNotFound(StorageError):
    """No study of that name is in the store."""


class StudyChanged(UsageError):
    """The stored study was begun with another spec."""


class NothingToPlot(TempoptError, ValueError):
    """A study has not measured what a plot would show; the message says what is missing."""


class StudyFailed(TempoptError, RuntimeError):
    """The study ran and failed."""


class StaleAttempt(StudyFailed):
    """The ticket was given to another agent meanwhile."""


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


# ---- passwords

# From a colon to the last "@" before a space, so that a password with a ":" or an "@" that was not written
# %3A or %40 is hidden whole. The example in a message is none.
_USERINFO = re.compile(r":(?!//)(?!password@host/)\S+@")
# The same of a URL that can be read as one: what follows its host's port is a path, whatever is in it.
_URL_USERINFO = re.compile(r"(://[^\s:/@]*):(?!\d+/)[^\s\"']+@")
_SECRET_QUERY = re.compile(r"([?&][^\s=&]*(?:pass|pwd|secret|token)[^\s=&]*=)[^\s&]*", re.IGNORECASE)


def masked(text: str) -> str:
    """Return a message without passwords; of what only looks like one, too much is hidden."""
    return _SECRET_QUERY.sub(r"\1***", _USERINFO.sub(":***@", text))


def without_passwords(text: str) -> str:
    """Return a text that is to be used, with the passwords of its URLs hidden and all else as it was."""
    return _SECRET_QUERY.sub(r"\1***", _URL_USERINFO.sub(r"\1:***@", text))
