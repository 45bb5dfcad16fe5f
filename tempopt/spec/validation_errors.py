"""Translate pydantic's errors into messages for the author of a spec; it refuses nothing itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from tempopt.errors import SpecError
from tempopt.spec import yaml_source
from tempopt.spec.lightning_config import unknown_key
from tempopt.spec.yaml_source import CollectedSpecError, YamlDocument

Spec = TypeVar("Spec", bound=BaseModel)


class FaultySpecError(SpecError):
    """A study spec that does not validate.

    Attributes:
        lines: The dotted path and the message of each fault.
        document: Document of the spec.
    """

    lines: Sequence[tuple[str, str]]
    document: YamlDocument


def validate_spec(model: type[Spec], data: Mapping[str, Any], document: YamlDocument) -> Spec:
    """Return the spec that plain data describes.

    Args:
        model: The class of the spec.
        data: The sections by name.
        document: Document of the data.

    Raises:
        FaultySpecError: The data are invalid; it lists all errors.
    """
    lines = [
        (path, f"{yaml_source.BLANK} stands for a value that only you can give. Fill it in.")
        for path, value in yaml_source.leaves(data, "")
        if value == yaml_source.BLANK
    ]
    try:
        if not lines:
            spec = model.model_validate(dict(data))
            problems = (
                (path, yaml_source.number_problem(value)) for path, value in yaml_source.leaves(data, "")
            )
            lines = [(path, problem) for path, problem in problems if problem is not None]
            if not lines:
                return spec
    except ValidationError as error:
        lines = extract_errors(error, model)
    raise build_spec_error(lines, document)


def build_spec_error(lines: Sequence[tuple[str, str]], document: YamlDocument) -> FaultySpecError:
    """Return an error that lists all errors of a spec, in the order of its lines."""
    ordered_lines = sorted(lines, key=lambda line: document.line(line[0]))
    messages = [f"{document.where(path)}: {path}: {message}" for path, message in ordered_lines]
    error = FaultySpecError(format_error_list("This study spec has", messages))
    error.lines, error.document = ordered_lines, document
    return error


def format_error_list(head: str, lines: Sequence[str]) -> str:
    """Return a message with the number of errors and a line for each."""
    count = "a fault" if len(lines) == 1 else f"{len(lines)} faults"
    return "\n".join([f"{head} {count}:", *(f"  {line}" for line in lines)])


def extract_errors(error: ValidationError, root: type[BaseModel]) -> list[tuple[str, str]]:
    """Return the dotted path and the message of every error, in the order of the sections.

    Args:
        error: Error from validating ``root``.
        root: The model that was validated.
    """
    lines: list[tuple[str, str]] = []
    for details in error.errors(include_url=False):
        location = tuple(str(part) for part in details["loc"])
        cause = details.get("ctx", {}).get("error")
        if isinstance(cause, CollectedSpecError):
            lines += _add_path_prefix(cause, location)
            continue
        line = (".".join(location), _message(details, location, root))
        if line not in lines:  # each alternative of a union reports an error
            lines.append(line)
    return lines


def _add_path_prefix(cause: CollectedSpecError, location: tuple[str, ...]) -> list[tuple[str, str]]:
    """Return lines with full paths: paths of a section's errors begin below it, others are complete."""
    prefix = ".".join(location)
    return [
        (path if path.partition(".")[0] == prefix or not prefix else f"{prefix}.{path}", message)
        for path, message in cause.lines
    ]


def _message(details: Mapping[str, Any], location: tuple[str, ...], root: type[BaseModel]) -> str:
    kind, value = details["type"], details["input"]
    if kind == "value_error":
        return str(details["ctx"]["error"])
    if kind == "extra_forbidden":
        field = _field(root, location[:-1])
        section = (_section_model(field) if field else None) or root
        return unknown_key(".".join(location[:-1]), location[-1], tuple(section.model_fields))
    allowed_text = _allowed_values_text(root, location)
    if kind == "missing":
        return f"is missing. Give {allowed_text}."
    return f"given {_format_value(value)}. Give {allowed_text}."


def _format_value(value: object) -> str:
    return f'the text "{value}"' if isinstance(value, str) else "nothing" if value is None else repr(value)


def _field(root: type[BaseModel], location: tuple[str, ...]) -> FieldInfo | None:
    """Return the field at a location, or the deepest one above it."""
    field: FieldInfo | None = None
    model: type[BaseModel] | None = root
    is_user_key = False
    for part in location:
        if is_user_key:
            # an entry of a section whose keys are names
            is_user_key = False
            continue
        if model is None or part not in model.model_fields:
            break
        field = model.model_fields[part]
        model, is_user_key = _section_model(field), get_origin(field.annotation) is dict
    return field


def _section_model(field: FieldInfo) -> type[BaseModel] | None:
    for kind in (field.annotation, *get_args(field.annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def _allowed_values_text(root: type[BaseModel], location: tuple[str, ...]) -> str:
    """Return a description of the values that a field allows, or of the keys of its section."""
    field = _field(root, location)
    if field is None:
        return "something else"
    if field.description:
        return field.description
    model = _section_model(field)
    if model is None:
        return "a mapping"
    fields = model.model_fields
    required_names = [name for name, field in fields.items() if field.is_required()]
    return f"a mapping with the keys {', '.join(required_names or fields)}"
