"""Every error that tempopt raises for a person to read; not the bugs, which are assertions.

And how a text is shown without the passwords in it.

TempoptError
├─ UsageError             what was asked cannot be done as asked (exit code 2)
│  ├─ SpecError           a study spec, or a value in it, is wrong
│  ├─ AttachError         a temperature cannot be put on this model
│  ├─ AccessDenied        a server does not know the token, or the token does not allow this
│  ├─ StorageError        the database cannot be reached, read or written
│  │  ├─ StoreUnreachable the database cannot be reached just now; trying again later may help
│  │  │  └─ StoreBusy     it answers, and cannot serve: no connection free, no writes, no space
│  │  ├─ StudyNotFound    no study of that name is in the store
│  │  └─ CheckpointNotFound a server has no such checkpoint
│  └─ StudyChanged        the stored study was begun with another spec
├─ NothingToPlot          a study has not measured what a plot would show
└─ StudyFailed            the study ran and failed (exit code 1)
   └─ StaleAttempt        the ticket was given to another agent meanwhile
"""

from __future__ import annotations

import difflib
import importlib.metadata
import re
import shlex
from collections.abc import Collection, Iterable


class TempoptError(Exception):
    """Root of the tree; its message says what was given, what is allowed and what to do.

    A message has at most 1,900 characters. Of a longer one, parts are left out, with ``…`` in their place.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(shorten_message(message))


class UsageError(TempoptError, ValueError):
    """What was asked cannot be done as asked."""


class SpecError(UsageError):
    """A study spec, or a value in it, is wrong."""


class ScheduleNotImported(SpecError):
    """A study's schedule is outside tempopt, and its module was not imported."""


class AttachError(UsageError):
    """A temperature cannot be put on this model."""


class AccessDenied(UsageError):
    """A server does not know the token, or the token does not allow what was asked."""


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


class CheckpointNotFound(StorageError):
    """A server has no such checkpoint, or the study does not record it."""


class StudyChanged(UsageError):
    """The stored study was begun with another spec."""


class NothingToPlot(TempoptError, ValueError):
    """A study has not measured what a plot would show; the message says what is missing."""


class StudyFailed(TempoptError, RuntimeError):
    """The study ran and failed."""


class StaleAttempt(StudyFailed):
    """The ticket was given to another agent meanwhile."""


def unknown(what: str, name: object, choices: Iterable[str], remedy: str = "", *, where: str = "") -> str:
    """Return the message for a name that is not known, with the nearest match first.

    Args:
        what: What kind of name it is, as in ``"schedule"``.
        name: The name that was given.
        choices: The names that are allowed.
        remedy: A closing sentence on what to do, if there is more to do than choose.
        where: Where the name was looked for, if that is to be said, as in ``' in "criterion"'``.
    """
    names, name = list(choices), str(name)
    # what is longer than every name is near to none, and takes long to compare
    near = difflib.get_close_matches(name, names, n=1) if len(name) <= _WORD else []
    hint = f' Did you mean "{near[0]}"?' if near else ""
    listing = ", ".join(names[:_NAMES]) + (f" and {len(names) - _NAMES} more" if names[_NAMES:] else "")
    return (
        f'Unknown {what} "{name}"{where}.{hint} Known: {listing or "none"}.{" " + remedy if remedy else ""}'
    )


def not_text(text: str) -> str | None:
    """Return what makes a text one that UTF-8 or a database cannot hold, None if nothing does."""
    if "\0" in text:
        return "the character NUL"
    return "bytes that are not UTF-8" if any("\ud800" <= sign <= "\udfff" for sign in text) else None


# ---- lengths

_LONGEST = 1900
_NAMES = 60
_WORD = 160
_LINE = 500
_KNOWN_NAMES_PATTERN = re.compile(r'(Did you mean "[^"\n]*"\?) Known: [^\n]*?\.(?=\s|$)')


def shorten_message(message: str) -> str:
    """Shorten a message to at most 1,900 characters: the given value is cut first, then lines are left out.

    Args:
        message: Any text. If it is too long, the passwords in it are hidden before anything is cut: half a
            URL is not recognised as one.
    """
    if len(message) <= _LONGEST:
        return message
    message = re.sub(rf"\S{{{_WORD},}}", lambda match: _ends(match[0], _WORD), mask_secrets(message))
    if len(message) > _LONGEST:
        message = _KNOWN_NAMES_PATTERN.sub(r"\1", message)
    if len(message) > _LONGEST:
        message = "\n".join(_ends(line, _LINE) for line in message.splitlines())
    if len(message) <= _LONGEST:
        return message
    first_line, *lines = message.splitlines()
    last_line, head, room = lines.pop(), [first_line], _LONGEST - 40 - len(first_line)
    room -= len(last_line)
    for line in lines:
        room -= len(line) + 1
        if room < 0:
            break
        head.append(line)
    num_omitted = len(lines) + 1 - len(head)
    return "\n".join(
        [*head, f"  … ({num_omitted} {'line is' if num_omitted == 1 else 'lines are'} left out)", last_line]
    )


def _ends(text: str, length: int) -> str:
    """Return the beginning and the end of a text that is longer than length."""
    return text if len(text) <= length else f"{text[: length * 2 // 3]} … {text[-length // 4 :]}"


# ---- passwords

# From a colon to the last "@" before a space, so that a password with a ":" or an "@" that was not written
# %3A or %40 is hidden whole. The example in a message is none.
_USERINFO = re.compile(r":(?!//)(?!password@host/)\S+@")
_WORDS = re.compile(r"\S+")
# The same of a URL that can be read as one: what follows its host's port is a path, whatever is in it.
_URL_USERINFO = re.compile(r"(://[^\s:/@]*):(?!\d+/)[^\s\"']+@")
# No name of a parameter is longer; without a limit the time would grow with the square of the length.
_SECRET_QUERY = re.compile(
    r"([?&][^\s=&]{0,60}(?:pass|pwd|secret|token)[^\s=&]{0,60}=)[^\s&]*", re.IGNORECASE
)


# What tempopt token create has made, whatever stands before it: its public id stays.
_TOKEN = re.compile(r"(tempopt_[0-9a-f]{12}_)[A-Za-z0-9_-]{20,}")


def install_command(extra: str) -> str:
    """Return how to install the packages of an extra: by their own names, as tempopt is on no index."""
    marker = re.compile(rf"extra == ['\"]{extra}['\"]")
    packages = [
        requirement.partition(";")[0].strip()
        for requirement in importlib.metadata.requires("tempopt") or ()
        if marker.search(requirement)
    ]
    return f"pip install {' '.join(shlex.quote(package) for package in packages)}"


def missing_extra(error: ModuleNotFoundError, extra: str, packages: Collection[str], use: str) -> UsageError:
    """Return the error that a package of an extra is not installed.

    Args:
        error: What the import has raised.
        extra: Name of the extra.
        packages: Packages of the extra.
        use: What needs them, as the beginning of a sentence.

    Raises:
        ModuleNotFoundError: Another package is missing.
    """
    if (error.name or "").partition(".")[0] not in packages:
        raise error
    return UsageError(f"{use}, and {error.name} is not installed. Run: {install_command(extra)}")


def mask_secrets(text: str) -> str:
    """Replace passwords and tokens in a text by ``***``; what only looks like one is replaced, too."""
    text = _TOKEN.sub(r"\1***", text)
    return _SECRET_QUERY.sub(r"\1***", _WORDS.sub(_without_userinfo, text))


def _without_userinfo(word: re.Match[str]) -> str:
    # cut off after the last "@", so that the search ends at the first colon that begins a password
    end = word[0].rfind("@") + 1
    if not end:
        return word[0]
    end += len("host/")
    return _USERINFO.sub(":***@", word[0][:end]) + word[0][end:]


def without_passwords(text: str) -> str:
    """Return a text that is to be used, with the passwords of its URLs hidden and all else as it was."""
    return _SECRET_QUERY.sub(r"\1***", _URL_USERINFO.sub(r"\1:***@", text))
