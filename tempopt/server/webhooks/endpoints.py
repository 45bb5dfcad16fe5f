"""The endpoints that webhooks go to, as the operator's file names them; no error shows a secret."""

from __future__ import annotations

import base64
import binascii
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import httpx
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from tempopt.errors import SpecError, UsageError
from tempopt.files import read_text
from tempopt.server.tokens import NAME, PREFIX
from tempopt.spec.validation_errors import listed
from tempopt.spec.yaml_source import Document, parse

EventType = Literal["study.done", "study.verdict", "run.failed", "budget.spent"]
EVENTS: tuple[EventType, ...] = get_args(EventType)
_PREFIX = "whsec_"
_FEWEST_BYTES, _MOST_BYTES = 24, 64
_MOST_PORT = 65_535
_MOST_CHARACTERS, _MOST_FAULTS = 1_000_000, 20
MOST_ENDPOINTS = 100
"""Each has a thread in each server."""
_HIDDEN = re.compile(r"whsec_\S+|https?://\S+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where messages go.

    Args:
        name: Its name in the file, by which the store knows what it was told.
        url: Where they are posted to.
        secrets: What they are signed with; several while one is replaced.
        events: The types of events that it is told of.
        studies: Only of studies whose names begin so; the empty text: of all.
    """

    name: str
    url: str = field(repr=False)
    secrets: tuple[str, ...] = field(repr=False)
    events: tuple[EventType, ...] = EVENTS
    studies: str = ""

    @property
    def host(self) -> str:
        """Host that messages go to; the path of a URL is often a secret."""
        return httpx.URL(self.url).host


def new_secret() -> str:
    """Return a secret of 256 random bits, to sign with."""
    return _PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


def _secrets(given: object) -> tuple[str, ...]:
    """Return the secrets that are given; what is wrong is told without showing it."""
    texts = given if isinstance(given, list) else [given]
    if not texts or not all(isinstance(each, str) and _is_secret(each) for each in texts):
        raise ValueError(
            f"a secret is {_PREFIX} and {_FEWEST_BYTES} to {_MOST_BYTES} bytes in base64. To make one: "
            "tempopt webhook secret. Give one, or a list of them while one is replaced."
        )
    return tuple(texts)


def _is_secret(text: str) -> bool:
    try:
        size = len(base64.b64decode(text.removeprefix(_PREFIX), validate=True))
    except (binascii.Error, ValueError):
        return False
    return text.startswith(_PREFIX) and _FEWEST_BYTES <= size <= _MOST_BYTES


def _url(text: str) -> str:
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL:
        url = httpx.URL("")
    port = url.port or 1
    if url.scheme not in ("http", "https") or not url.host or url.userinfo or port > _MOST_PORT:
        raise ValueError(
            "give a URL with http or https and without a password, as in https://example.com/hook"
        )
    return text


def _prefix(text: str) -> str:
    if text and PREFIX.fullmatch(text) is None:
        raise ValueError(
            'a prefix has letters, digits, ".", "_" and "-", and begins with a letter or a digit.'
        )
    return text


class _Given(BaseModel):
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    url: Annotated[str, AfterValidator(_url)]
    secret: Annotated[tuple[str, ...], BeforeValidator(_secrets)]
    events: Annotated[list[EventType], Field(min_length=1)] = list(EVENTS)
    studies: Annotated[str, AfterValidator(_prefix)] = ""


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    webhooks: Annotated[dict[str, _Given], Field(min_length=1, max_length=MOST_ENDPOINTS)]


_KEYS = {
    "webhooks": f"1 to {MOST_ENDPOINTS} names of endpoints, each with url: and secret:",
    "url": "the URL that messages are posted to",
    "secret": "a secret to sign with",
    "events": f"a list of {', '.join(EVENTS)}",
    "studies": "how the names of its studies begin",
}
_NAMES = (
    'a name has letters, digits, ".", "_" and "-", at most 64, of which the first is a letter or a digit.'
)


def read_endpoints(path: Path) -> tuple[Endpoint, ...]:
    """Return the endpoints that a file in YAML names.

    Raises:
        UsageError: It cannot be read, or is not as it should be. No value of the file is in the message: a
            secret may stand where it does not belong.
    """
    text, _ = read_text(path, "webhooks in YAML")
    if len(text) > _MOST_CHARACTERS:
        raise UsageError(
            f"{path} has {len(text):,} characters. A file of webhooks has {_MOST_CHARACTERS:,} at most."
        )
    try:
        document = parse(text, source=str(path), expected="the file of webhooks has the key webhooks:")
    except SpecError as error:
        raise UsageError(_hidden(str(error))) from None
    try:
        given = _File.model_validate(document.data)
    except ValidationError as error:
        told = [
            (each["loc"], _message(each)) for each in error.errors(include_url=False, include_input=False)
        ]
        raise _faulty([(".".join(map(str, place)), message) for place, message in told], document) from None
    if wrong := [(f"webhooks.{name}", _NAMES) for name in given.webhooks if NAME.fullmatch(name) is None]:
        raise _faulty(wrong, document)
    return tuple(_endpoint(name, each) for name, each in given.webhooks.items())


def _message(fault: ErrorDetails) -> str:
    if fault["type"] == "value_error":
        return str(fault["ctx"]["error"])
    if fault["type"] == "extra_forbidden":
        inside = len(fault["loc"]) > 1
        return f"unknown key. Known: {', '.join(_Given.model_fields if inside else _File.model_fields)}."
    place = next((str(each) for each in reversed(fault["loc"]) if each in _KEYS), "webhooks")
    return f"{'is missing. ' * (fault['type'] == 'missing')}Give {_KEYS[place]}."


def _endpoint(name: str, given: _Given) -> Endpoint:
    return Endpoint(
        name=name,
        url=given.url,
        secrets=given.secret,
        events=tuple(dict.fromkeys(given.events)),
        studies=given.studies,
    )


def _faulty(lines: Sequence[tuple[str, str]], origin: Document) -> UsageError:
    told = [f"{origin.where(path)}: {path}: {message}" for path, message in lines[:_MOST_FAULTS]]
    return UsageError(_hidden(listed("The file of webhooks has", told)))


def _hidden(text: str) -> str:
    return _HIDDEN.sub("***", text)


def plain(endpoint: Endpoint) -> dict[str, Any]:
    """Return what may be shown of an endpoint."""
    return {
        "name": endpoint.name,
        "host": endpoint.host,
        "events": endpoint.events,
        "studies": endpoint.studies,
    }
