"""All errors that tempopt raises with messages for users; bugs are assertions. Masking of passwords in texts.

TempoptError
├─ UsageError             the request is invalid (exit code 2)
│  ├─ SpecError           a study spec, or a value in it, is invalid
│  ├─ AttachError         a temperature cannot be attached to this model
│  ├─ AccessDenied        a server does not accept the token, or the token does not allow this
│  ├─ StorageError        the database cannot be reached, read or written
│  │  ├─ StoreUnreachable the database cannot be reached now; a later attempt may succeed
│  │  │  └─ StoreBusy     it answers but cannot serve: no free connection, no writes, no space
│  │  ├─ StudyNotFound    no study of that name is in the store
│  │  └─ CheckpointNotFound a server has no such checkpoint
│  └─ StudyChanged        the stored study has another spec
├─ NothingToPlot          a study has no measurements for a plot
└─ StudyFailed            the study ran and failed (exit code 1)
   └─ StaleAttempt        the ticket has been given to another agent
"""

from __future__ import annotations

import difflib
import importlib.metadata
import re
import shlex
import unicodedata
from collections.abc import Collection, Iterable


class TempoptError(Exception):
    """Root of the tree; its message has the given value, what is allowed and what to do.

    A message has at most 1,900 characters; parts of a longer one are replaced by ``…``.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(shorten_message(message))


class UsageError(TempoptError, ValueError):
    """The request is invalid."""


class SpecError(UsageError):
    """A study spec, or a value in it, is invalid."""


class ScheduleNotImported(SpecError):
    """A study's schedule is outside tempopt, and its module was not imported."""


class AttachError(UsageError):
    """A temperature cannot be attached to this model."""


class AccessDenied(UsageError):
    """A server does not accept the token, or the token does not allow the request."""


class StorageError(UsageError):
    """The database cannot be reached, read or written."""


class StoreUnreachable(StorageError):
    """The database cannot be reached now; a later attempt may succeed."""


class StoreBusy(StoreUnreachable):
    """The database answers but cannot serve now: no connection is free, or nothing can be written."""


class StoreNotBegun(StorageError):
    """There is no database at the URL yet, or it has no studies."""


class StudyNotFound(StorageError):
    """No study of that name is in the store."""


class CheckpointNotFound(StorageError):
    """A server has no such checkpoint, or the study does not record it."""


class StudyChanged(UsageError):
    """The stored study has another spec."""


class NothingToPlot(TempoptError, ValueError):
    """A study has no measurements for a plot; the message names what is missing."""


class StudyFailed(TempoptError, RuntimeError):
    """The study ran and failed."""


class StaleAttempt(StudyFailed):
    """The ticket has been given to another agent."""


def unknown(what: str, name: object, choices: Iterable[str], remedy: str = "", *, where: str = "") -> str:
    """Return the message for an unknown name, with the nearest match first.

    Args:
        what: Kind of the name, as in ``"schedule"``.
        name: The given name.
        choices: The allowed names.
        remedy: A closing sentence on what to do, if needed.
        where: Where the name was searched, if needed, as in ``' in "criterion"'``.
    """
    names, name = list(choices), str(name)
    # a text longer than every name has no near match, and is slow to compare
    near_names = difflib.get_close_matches(name, names, n=1) if len(name) <= _WORD else []
    hint = f' Did you mean "{near_names[0]}"?' if near_names else ""
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    listing = ", ".join(names[:_MAX_NAMES]) + more
    return (
        f'Unknown {what} "{name}"{where}.{hint} Known: {listing or "none"}.{" " + remedy if remedy else ""}'
    )


def not_text(text: str) -> str | None:
    """Return what in a text cannot be stored in UTF-8 or a database, None if it can be stored."""
    if "\0" in text:
        return "the character NUL"
    return "bytes that are not UTF-8" if any("\ud800" <= sign <= "\udfff" for sign in text) else None


def one_line(text: str) -> str:
    """Return the first and the last line of a text, such as one that ends in a traceback."""
    first_line, *lines = text.strip().splitlines() or [""]
    return " ... ".join([first_line, lines[-1].strip()]) if len(lines) > 1 else " ".join([first_line, *lines])


# ---- lengths

_MAX_ERROR_CHARS = 1900
_MAX_NAMES = 60
_WORD = 160  # letters that a word keeps
_MAX_LINE_CHARS = 500
_KNOWN_NAMES_PATTERN = re.compile(r'(Did you mean "[^"\n]*"\?) Known: [^\n]*?\.(?=\s|$)')


def shorten_message(message: str) -> str:
    """Shorten a message to at most 1,900 characters: the given value is cut first, then lines are left out.

    Args:
        message: Any text. If it is too long, its passwords are masked before it is cut, since a part of a
            URL is not recognised as a URL.
    """
    if len(message) <= _MAX_ERROR_CHARS:
        return message
    message = re.sub(rf"\S{{{_WORD},}}", lambda match: _cut_middle(match[0], _WORD), mask_secrets(message))
    if len(message) > _MAX_ERROR_CHARS:
        message = _KNOWN_NAMES_PATTERN.sub(r"\1", message)
    if len(message) > _MAX_ERROR_CHARS:
        message = "\n".join(_cut_middle(line, _MAX_LINE_CHARS) for line in message.splitlines())
    if len(message) <= _MAX_ERROR_CHARS:
        return message
    first_line, *lines = message.splitlines()
    last_line, head, room = lines.pop(), [first_line], _MAX_ERROR_CHARS - 40 - len(first_line)
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


def _cut_middle(text: str, length: int) -> str:
    """Return the beginning and the end of a long text."""
    return text if len(text) <= length else f"{text[: length * 2 // 3]} … {text[-length // 4 :]}"


# ---- passwords

# From a colon to the last "@" before a space, so that a password with a ":" or an "@" that was not written
# %3A or %40 is masked completely. The examples in messages are excluded.
_USERINFO = re.compile(r":(?!//)(?!password@host/)\S+@")
_WORDS = re.compile(r"\S+")
# The same for a valid URL: the text after its host's port is a path.
_URL_USERINFO = re.compile(r"(://[^\s:/@]*):(?!\d+/)[^\s\"']+@")
# Maximal length of a parameter's name; without a limit the time would be quadratic in the length.
_SECRET_QUERY = re.compile(
    r"([?&][^\s=&]{0,60}(?:pass|pwd|secret|token)[^\s=&]{0,60}=)[^\s&]*", re.IGNORECASE
)


# Tokens of tempopt token create after any text; their public id is not masked.
# Control characters, invisible ones such as those that change the direction of text, lone surrogates, and
# Unicode's line ends.
_UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")
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
        error: The error of the import.
        extra: Name of the extra.
        packages: Packages of the extra.
        use: A main clause on their use, with which the message begins.

    Raises:
        ModuleNotFoundError: Another package is missing.
    """
    if (error.name or "").partition(".")[0] not in packages:
        raise error
    return UsageError(f"{use}, and {error.name} is not installed. Run: {install_command(extra)}")


def escape_control_chars(text: str) -> str:
    r"""Return a text with each character that could steer a terminal or a page as an escape such as ``\x1b``.

    Args:
        text: Any text, for instance of the database; newlines and tabs stay.
    """
    return "".join(
        sign.encode("unicode_escape").decode("ascii")
        if sign not in "\n\t" and unicodedata.category(sign) in _UNSEEN
        else sign
        for sign in text
    )


def mask_secrets(text: str) -> str:
    """Replace passwords and tokens in a text by ``***``, also texts that only look like one."""
    text = _TOKEN.sub(r"\1***", text)
    return _SECRET_QUERY.sub(r"\1***", _WORDS.sub(_mask_userinfo, text))


def _mask_userinfo(word: re.Match[str]) -> str:
    # cut after the last "@", so that the search ends at the first colon before a password
    end = word[0].rfind("@") + 1
    if not end:
        return word[0]
    end += len("host/")
    return _USERINFO.sub(":***@", word[0][:end]) + word[0][end:]


def without_passwords(text: str) -> str:
    """Return a text with the passwords of its URLs masked, and otherwise unchanged."""
    return _SECRET_QUERY.sub(r"\1***", _URL_USERINFO.sub(r"\1:***@", text))
