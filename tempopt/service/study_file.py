"""A study in one file, without secrets: dumped from any store, loaded into any database to be continued."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import json
import zlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError

from tempopt.errors import StorageError, StudyNotFound, UsageError, mask_secrets, without_passwords
from tempopt.files import replace
from tempopt.sampling.frozen_history import trial_params
from tempopt.service.lifecycle import Storage, open_storage
from tempopt.spec.custom_schedules import check_schedules
from tempopt.spec.study_spec import StudySpec
from tempopt.storage.attention_maps import MapsData
from tempopt.storage.checkpoints import is_in_object_store
from tempopt.storage.damage import first_fault
from tempopt.storage.http.wire import measurements_from_plain, measurements_to_plain, serialize
from tempopt.storage.import_study import StudyDump
from tempopt.storage.opening import as_remote_store
from tempopt.storage.optuna_calls import make_study
from tempopt.storage.rows import (
    FiniteValue,
    LogRow,
    PriorRuns,
    ShortText,
    Step,
    StudyRow,
    TicketId,
    TicketRow,
)
from tempopt.storage.store import Store
from tempopt.version import __version__

FORMAT = "tempopt study"
FORMAT_VERSION = 1
_MAX_IDS = 2000
_MAX_BYTES = 4 * 1024**3
# a dump is about a tenth of its text
_MAX_RATIO = 100
_FREE_BYTES = 2**20


class _Document(BaseModel, extra="forbid"):
    """The content of a file, validated; the order is that of the checks."""

    format: Literal["tempopt study"]
    version: Literal[1]
    tempopt: ShortText
    written: ShortText
    study: StudyRow
    warm_start: PriorRuns
    tickets: Annotated[list[TicketRow], Field(fail_fast=True)]
    measurements: Annotated[list[tuple[TicketId, Step, ShortText, FiniteValue | None]], Field(fail_fast=True)]
    logs: Annotated[list[LogRow], Field(fail_fast=True)]
    maps: dict[TicketId, MapsData]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DumpResult:
    """Contents of a dumped or loaded file.

    Args:
        study: Name of the study.
        tickets: Number of its tickets.
        measurements: Number of its measurements.
        file: Size of the file in bytes.
        is_done: Whether the study is done.
    """

    study: str
    tickets: int
    measurements: int
    file: int
    is_done: bool


def dump(storage: Storage, name: str, path: Path, *, overwrite: bool = False) -> DumpResult:
    """Write a study into a file: spec, tickets, measurements, logs and maps, without passwords and tokens.

    Runs in progress are written as waiting. The file has no checkpoints, but the URLs of those in a bucket.

    Args:
        storage: The store or its URL, which may be that of a server.
        name: Name of the study.
        path: The file.
        overwrite: Whether an existing file is replaced.

    Raises:
        StudyNotFound: There is no study of that name.
        UsageError: The file exists, or cannot be written.
    """
    with open_storage(storage) as store:
        study = store.load_study(name)
        document = _to_document(store, study)
    content = gzip.compress(json.dumps(document, allow_nan=False).encode(), 6, mtime=0)
    replace(path, content, overwrite=overwrite)
    return DumpResult(
        study=name,
        tickets=len(document["tickets"]),
        measurements=len(document["measurements"]),
        file=path.stat().st_size,
        is_done=study.state == "done",
    )


def _to_document(store: Store, study: StudyRow) -> dict[str, Any]:
    """Return a study as plain data."""
    # the tickets first: if they change in the meantime, there are more measurements than needed, never fewer
    tickets = store.tickets(study.id)
    measurements: list[Any] = []
    logs: list[Any] = []
    maps: dict[int, Any] = {}
    for start in range(0, len(tickets), _MAX_IDS):
        ids = [ticket.id for ticket in tickets[start : start + _MAX_IDS]]
        measurements += measurements_to_plain(store.measurements(study.id, ids))
        logs += [
            serialize(dataclasses.replace(log, text=mask_secrets(log.text)))
            for log in store.logs(study.id, ids)
        ]
        maps |= store.attention_maps(study.id, ids)
    return {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "tempopt": __version__,
        "written": datetime.now(UTC).isoformat(),
        "study": serialize(_strip_study(study)),
        "warm_start": store.warm_start(study.id) or [],
        "tickets": [serialize(_strip_ticket(ticket)) for ticket in tickets],
        "measurements": measurements,
        "logs": logs,
        "maps": maps,
    }


def _strip_study(study: StudyRow) -> StudyRow:
    url = study.checkpoints or ""
    return dataclasses.replace(study, checkpoints=without_passwords(url) if is_in_object_store(url) else None)


def _strip_ticket(ticket: TicketRow) -> TicketRow:
    checkpoints = tuple(
        dataclasses.replace(checkpoint, url=without_passwords(checkpoint.url))
        for checkpoint in ticket.checkpoints
        if is_in_object_store(checkpoint.url)
    )
    error = None if ticket.error is None else mask_secrets(ticket.error)
    return dataclasses.replace(ticket, checkpoints=checkpoints, error=error, lease=None)


def load(storage: Storage, path: Path, *, name: str | None = None) -> DumpResult:
    """Write the study of a file into a database: paused unless it is done, for ``tempopt resume``.

    Load only trusted files, as with specs: agents train the classes that a file names.

    Args:
        storage: The database or its URL.
        path: A file that :func:`dump` has written.
        name: New name of the study; None: the name in the file.

    Raises:
        UsageError: The file is not a study file, is damaged, or was written by a later version.
        StorageError: The database has a study of that name.
    """
    # read before the database is opened: a damaged file must not create a database
    whole_study = read(path, name=name)
    with open_storage(storage, create=True) as store:
        if as_remote_store(store):
            raise UsageError(
                "A study cannot be loaded through a server. Run this command with the URL of the database as "
                "--storage."
            )
        study, spec = whole_study.study, StudySpec.from_json(whole_study.study.spec)
        try:
            store.load_study(study.name)
        except StudyNotFound:
            pass
        else:
            raise StorageError(
                f'The store {store.masked_url} already has a study "{study.name}". Load it under another '
                "name: --name NAME"
            )
        section = spec.study
        make_study(store.url, name=study.name, direction=section.direction, metric=section.metric)
        try:
            store.import_study(whole_study)
        except BaseException:
            with contextlib.suppress(StorageError):
                store.delete_optuna_study(study.name)
            raise
        return DumpResult(
            study=study.name,
            tickets=len(whole_study.tickets),
            measurements=len(whole_study.measurements),
            file=path.stat().st_size,
            is_done=study.state == "done",
        )


def read(path: Path, *, name: str | None = None) -> StudyDump:
    """Return the study in a file.

    Args:
        path: The file.
        name: New name of the study; None: the name in the file.

    Raises:
        UsageError: The file is not a study file, is damaged, or was written by a later version.
    """
    document = _read_document(path)
    study = _strip_study(document.study)
    if study.state == "running":
        study = dataclasses.replace(study, state="paused")
    if name is not None:
        study = _rename_study(study, name)
    tickets = [_strip_ticket(ticket) for ticket in document.tickets]
    measurements = measurements_from_plain(document.measurements)
    spec = StudySpec.from_json(study.spec)
    check_schedules(spec)
    if spec.study.name != study.name:
        raise _damaged_file_error(path, "its spec has another name")
    try:
        _check_rows(document)
        trials = {
            ticket.id: trial_params(ticket.sampled or {}, spec.space("search"))
            for ticket in tickets
            if ticket.trial_number is not None
        }
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged_file_error(path, str(error)) from error
    return StudyDump(
        study=study,
        tickets=tickets,
        measurements=measurements,
        logs=document.logs,
        maps=document.maps,
        warm_start=document.warm_start,
        trials=trials,
    )


def _check_rows(document: _Document) -> None:
    """Refuse rows that no database holds together.

    Raises:
        ValueError: A row is there twice, has no ticket, or has a value that does not fit its outcome.
    """
    ids = [ticket.id for ticket in document.tickets]
    names = [ticket.name for ticket in document.tickets]
    measured = [(ticket_id, step, name) for ticket_id, step, name, _ in document.measurements]
    logged = [(log.ticket_id, log.attempt) for log in document.logs]
    for rows in (ids, names, measured, logged):
        if len(set(rows)) < len(rows):
            raise ValueError("a row is there twice")
    if not {id for id, *_ in (*measured, *logged)} | document.maps.keys() <= set(ids):
        raise ValueError("it refers to tickets that are not in it")
    for ticket in document.tickets:
        if (ticket.outcome == "complete") > (ticket.value is not None) or (
            ticket.value is not None and ticket.outcome not in ("complete", "pruned")
        ):
            raise ValueError(f"{ticket.name} has an outcome that does not fit its value")


def _rename_study(study: StudyRow, name: str) -> StudyRow:
    """Return a study with another name, also in its spec."""
    spec = StudySpec.from_json(study.spec).with_overrides([f"study.name={json.dumps(name)}"])
    return dataclasses.replace(study, name=name, spec=spec.to_json())


def _read_document(path: Path) -> _Document:
    """Return the document in a file: its size and checksum are checked before it is parsed."""
    try:
        limit = min(_MAX_BYTES, max(_FREE_BYTES, _MAX_RATIO * path.stat().st_size))
        with gzip.open(path, "rb") as file:
            data = file.read(limit + 1)
            if len(data) > limit:
                raise _damaged_file_error(path, f"unpacked it has more than {limit} bytes")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise _damaged_file_error(path, str(error)) from error
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror}. Give a file that tempopt dump has written."
        ) from error
    try:
        return _Document.model_validate_json(data)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_context=False)[0]
        if fault["loc"] == ("version",) and fault["type"] == "literal_error":
            raise UsageError(
                f"{path} has format {str(fault['input'])[:20]} of a later tempopt, which this version, "
                f"{__version__}, does not support. Load it with the version that wrote it."
            ) from error
        raise _damaged_file_error(path, first_fault(error)) from error


def _damaged_file_error(path: Path, why: str) -> UsageError:
    return UsageError(
        f"{path} is not a study file, or is damaged: {why}. Give a file that tempopt dump has written."
    )
