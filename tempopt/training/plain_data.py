"""Reads a checkpoint as data: tensors, plain Python values, and values of types that hold no code.

Besides what ``torch.load(weights_only=True)`` allows these are NumPy's numbers and arrays, enumerations,
paths, dates, fractions, named tuples and the like. Only classes that are imported already are taken.
"""

from __future__ import annotations

import contextlib
import datetime
import decimal
import enum
import fractions
import re
import sys
import uuid
from collections import OrderedDict, defaultdict
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

_VALUE_TYPES = (
    enum.Enum,
    PurePath,
    datetime.date,
    datetime.time,
    datetime.timedelta,
    decimal.Decimal,
    fractions.Fraction,
    uuid.UUID,
)
_TYPES = {bool, int, float, str, bytes, list, dict, set, tuple, frozenset, range, slice, defaultdict}
_SCALARS = {type(None), bool, int, float, complex, str, bytes}
_CONTAINERS = {list, tuple, set, frozenset, dict, OrderedDict, defaultdict}
_NUMPY_NAME = re.compile(r"numpy\.(_core|core)\.multiarray\.(scalar|_reconstruct)")
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


def load_as_data(path: Path) -> Any:
    """Return the content of a checkpoint; its tensors stay on the disk until they are used.

    Raises:
        Exception: It is damaged, or holds objects.
    """
    with reading_as_data(path):
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)


def is_data(value: Any) -> bool:
    """Return whether :func:`load_as_data` could read a value; that of a subclass it could not."""
    if (isinstance(value, tuple) and _is_of_values("", type(value))) or type(value) in _CONTAINERS:
        items = value if not isinstance(value, dict) else (*value, *value.values())
        return all(map(is_data, items))
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype != object
    if isinstance(value, Tensor):
        return type(value) is Tensor and value.layout is torch.strided and not value.is_quantized
    return type(value) in _SCALARS or isinstance(value, _VALUE_TYPES)


@contextlib.contextmanager
def reading_as_data(path: Path) -> Iterator[None]:
    """Return a context in which ``weights_only`` allows the types of values that a checkpoint holds."""
    named_objects = {name: _find_imported(name) for name in get_unsafe_globals_in_checkpoint(path)}
    types: list[Any] = [value for name, value in named_objects.items() if _is_of_values(name, value)]
    if types:
        types += [getattr(np.dtypes, name) for name in np.dtypes.__all__]
    with safe_globals(types):
        yield


def brief(error: Exception) -> str:
    """Return an error in one line; torch's go on for a page, in colours."""
    text = _ANSI.sub("", str(error))
    if unsupported := re.search(r"(?:GLOBAL|function|class) (\S+\.\S+) was not an allowed", text):
        return f"it holds a {unsupported[1]}"
    text = text.partition("WeightsUnpickler error: ")[2] or text
    return f"{type(error).__name__}: {text.partition(chr(10))[0][:200]}".removesuffix(": ")


def _find_imported(name: str) -> Any:
    """Return an object by its full name if its module is imported; else None."""
    module_name, _, attribute_path = name.rpartition(".")
    while module_name not in sys.modules and "." in module_name:
        module_name, _, outer_name = module_name.rpartition(".")
        attribute_path = f"{outer_name}.{attribute_path}"
    value: Any = sys.modules.get(module_name)
    for attribute in attribute_path.split("."):
        value = getattr(value, attribute, None)
    return value


def _is_of_values(name: str, value: Any) -> bool:
    if not isinstance(value, type):
        return _NUMPY_NAME.fullmatch(name) is not None
    is_named_tuple = issubclass(value, tuple) and hasattr(value, "_fields")
    return value in _TYPES or is_named_tuple or issubclass(value, (*_VALUE_TYPES, np.ndarray, np.dtype))
