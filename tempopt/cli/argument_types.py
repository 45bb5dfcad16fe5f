"""Types of arguments: each function parses a text, or raises an error with the allowed values."""

from __future__ import annotations

import argparse
import math
import re
from ipaddress import ip_network
from typing import NamedTuple


class Trials(NamedTuple):
    """Requested number of search trials: ``total`` (None: that of the spec), or ``additional``."""

    total: int | None = None
    additional: int = 0


# The limits of the spec, repeated here since importing the spec is slow.
_MAX_RUNS = 100_000
_MAX_SEEDS = 1000
_DAY = 86_400  # seconds
_MAX_NUMBER = 1e9
_USER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=-]{0,62}")


def _parse_int(text: str, min_value: int, max_value: int) -> int:
    """Return an integer within bounds."""
    # Python refuses to convert more than a few thousand digits
    if not (text.isdecimal() and len(text) <= len(str(max_value)) and min_value <= int(text) <= max_value):
        raise argparse.ArgumentTypeError(f'"{text}" is not a whole number from {min_value} to {max_value}')
    return int(text)


def count(text: str) -> int:
    """Return a number of runs or workers."""
    return _parse_int(text, 1, _MAX_RUNS)


def pairs(text: str) -> int:
    """Return a number of pairs."""
    return _parse_int(text, 2, _MAX_SEEDS)


def pairs_range(text: str) -> int | dict[str, int]:
    """Return a number of pairs, or the fewest and the most of them: ``4..16``."""
    first, dots, last = text.partition("..")
    try:
        return {"min": pairs(first), "max": pairs(last)} if dots else pairs(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error}, nor A..B of two such") from None


def _parse_float(text: str, min_value: float, max_value: float, expected: str) -> float:
    """Return a number within bounds."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    # false for NaN, too
    if not min_value <= value <= max_value:
        raise argparse.ArgumentTypeError(f'"{text}" is not {expected}')
    return value


def number(text: str) -> float:
    """Return a number of at least 0."""
    return _parse_float(text, 0, _MAX_NUMBER, f"a number from 0 to {_MAX_NUMBER:g}")


def hours(text: str) -> float:
    """Return a number above 0."""
    return _parse_float(text, math.ulp(0.0), _MAX_NUMBER, "a number above 0")


def user(text: str) -> str:
    """Return the name of a user."""
    if _USER.fullmatch(text) is None:
        raise argparse.ArgumentTypeError(
            f'"{text}" is not allowed; give letters, digits, ".", "_", "=" and "-", at most 63, of which the '
            "first is a letter or a digit"
        )
    return text


def port(text: str) -> int:
    """Return a TCP port, 0 for any free port."""
    return _parse_int(text, 0, 65_535)


def network(text: str) -> str:
    """Return an IP address or network."""
    try:
        return str(ip_network(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{error}. Give an address or a network, as in 10.0.0.0/8") from None


def seconds(text: str) -> float:
    """Return a number of seconds from 0.1 to a day."""
    expected = f"a number of seconds from 0.1 to {_DAY}; the name goes first, as in NAME --watch 5"
    return _parse_float(text, 0.1, _DAY, expected)


def option(text: str) -> tuple[str, str]:
    """Return key and value of ``KEY=VALUE``."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f'"{text}" is not KEY=VALUE, as in partition=gpu')
    return key, value


def workers(text: str) -> int | str:
    """Return a positive integer, or ``auto``."""
    try:
        return text if text == "auto" else count(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error}, or auto") from None


def trials(text: str) -> Trials:
    """Return the number of trials of ``N`` or ``+N``."""
    if text.startswith("+"):
        return Trials(additional=count(text[1:]))
    return Trials(total=count(text))


def more_trials(text: str) -> int:
    """Return the number of ``+N``."""
    return _parse_more(text, _MAX_RUNS, "trials can only be added to an existing study")


def more_pairs(text: str) -> int:
    """Return the number of ``+N``."""
    return _parse_more(text, _MAX_SEEDS, "pairs can only be added to a verdict")


def _parse_more(text: str, max_value: int, why: str) -> int:
    if not text.startswith("+"):
        raise argparse.ArgumentTypeError(f'"{text}" is not +N: {why}')
    return _parse_int(text[1:], 1, max_value)
