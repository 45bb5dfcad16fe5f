"""A study in one file, without secrets: written from any store, read into any database, where it goes on."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tempopt.errors import StorageError, StudyNotFound, UsageError, masked, not_text, without_passwords
from tempopt.sampling.trial_params import trial_params
from tempopt.service.lifecycle import Storage, open_storage
from tempopt.spec.custom_schedules import check_schedules
from tempopt.spec.study_spec import StudySpec
from tempopt.storage.checkpoints import is_local
from tempopt.storage.http.wire import deserialize, measurements_from_plain, measurements_to_plain, serialize
from tempopt.storage.import_study import StudyDump
from tempopt.storage.opening import as_remote_store
from tempopt.storage.optuna_calls import make_study
from tempopt.storage.rows import LogRow, StudyRow, TicketRow
from tempopt.storage.store import Store
from tempopt.version import __version__

FORMAT = "tempopt study"
VERSION = 1
_MANY = 2000
_MOST_BYTES = 4 * 1024**3
_LONGEST_LINE = 256 * 1024**2


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DumpResult:
    """What a file holds of a study, or what was written of one.

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

    Runs in progress are written as waiting. Checkpoints are not in the file; those in a bucket are named.

    Args:
        storage: The store or its URL, that of a server too.
        name: Name of the study.
        path: The file.
        overwrite: Whether a file that is there is replaced.

    Raises:
        StudyNotFound: There is no study of that name.
        UsageError: The file is there, or cannot be written.
    """
    temporary = path.with_name(path.name + ".writing")
    try:
        with open_storage(storage) as store:
            study = store.load_study(name)
            if path.exists() and not overwrite:
                raise UsageError(
                    f"{path} is there already and is left as it is. Remove it, or give another name."
                )
            counts = _write(store, study, temporary)
        temporary.replace(path)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written: {error.strerror or error}. Give another path."
        ) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    size = path.stat().st_size
    is_done = study.state == "done"
    return DumpResult(study=name, tickets=counts[0], measurements=counts[1], file=size, is_done=is_done)


def _write(store: Store, study: StudyRow, path: Path) -> tuple[int, int]:
    num_measurements = 0
    # the tickets first: of what becomes of them meanwhile, measurements tell more than is needed, never less
    tickets = store.tickets(study.id)
    ids = [ticket.id for ticket in tickets]
    with gzip.GzipFile(path, "wb", compresslevel=6, mtime=0) as file:

        def line(kind: str, data: Any) -> None:
            file.write(json.dumps({kind: data}, allow_nan=False).encode() + b"\n")

        about = {"format": FORMAT, "version": VERSION, "tempopt": __version__}
        line("about", {**about, "written": datetime.now(UTC).isoformat()})
        line("study", serialize(_portable(study)))
        if prior_runs := store.warm_start(study.id):
            line("warm_start", prior_runs)
        for ticket in tickets:
            line("ticket", serialize(_moved(ticket)))
        for start in range(0, len(ids), _MANY):
            batch = ids[start : start + _MANY]
            measurements = store.measurements(study.id, batch)
            num_measurements += len(measurements)
            line("measurements", measurements_to_plain(measurements))
            for log in store.logs(study.id, batch):
                line("log", serialize(dataclasses.replace(log, text=masked(log.text))))
            for id, maps in store.attention_maps(study.id, batch).items():
                line("map", {"ticket_id": id, "maps": maps})
    return len(tickets), num_measurements


def _portable(study: StudyRow) -> StudyRow:
    url = study.checkpoints
    return dataclasses.replace(
        study, checkpoints=None if url is None or is_local(url) else without_passwords(url)
    )


def _moved(ticket: TicketRow) -> TicketRow:
    checkpoints = tuple(
        dataclasses.replace(checkpoint, url=without_passwords(checkpoint.url))
        for checkpoint in ticket.checkpoints
        if not is_local(checkpoint.url) and not checkpoint.url.startswith("tempopt://")
    )
    error = None if ticket.error is None else masked(ticket.error)
    return dataclasses.replace(ticket, checkpoints=checkpoints, error=error, lease=None)


def load(storage: Storage, path: Path, *, name: str | None = None) -> DumpResult:
    """Write the study of a file into a database: paused unless it is done, for ``tempopt resume``.

    A user who loads a file trusts it as they trust a spec: agents train what it names.

    Args:
        storage: The database or its URL.
        path: The file, as :func:`dump` has written it.
        name: Name of the study there; None: the one that it has.

    Raises:
        UsageError: The file is none of a study, is damaged, or was written by a later version.
        StorageError: The database has a study of that name.
    """
    # before the database, which a damaged file does not create
    whole_study = read(path, name=name)
    with open_storage(storage, create=True) as store:
        if as_remote_store(store):
            raise UsageError(
                "A study is loaded into a database itself. Type this where the database is reached, with its "
                "URL as --storage."
            )
        study, spec = whole_study.study, StudySpec.from_json(whole_study.study.spec)
        try:
            store.load_study(study.name)
        except StudyNotFound:
            pass
        else:
            raise StorageError(
                f'The store {store.masked_url} has a study "{study.name}" already. Load it under another '
                "name: --name NAME"
            )
        section = spec.study
        make_study(store.url, name=study.name, direction=section.direction, metric=section.metric)
        store.import_study(whole_study)
        return DumpResult(
            study=study.name,
            tickets=len(whole_study.tickets),
            measurements=len(whole_study.measurements),
            file=path.stat().st_size,
            is_done=study.state == "done",
        )


def read(path: Path, *, name: str | None = None) -> StudyDump:
    """Return the study that a file holds.

    Args:
        path: The file.
        name: Name that it is to have; None: the one that it has.

    Raises:
        UsageError: The file is none of a study, is damaged, or was written by a later version.
    """
    records: dict[str, list[Any]] = {}
    for kind, data in _lines(path):
        records.setdefault(kind, []).append(data)
    try:
        study: StudyRow = deserialize(StudyRow, records["study"][0])
        if study.state == "running":
            study = dataclasses.replace(study, state="paused")
        if name is not None:
            study = _renamed(study, name)
        tickets: list[TicketRow] = deserialize(list[TicketRow], records.get("ticket", []))
        logs: list[LogRow] = deserialize(list[LogRow], records.get("log", []))
        measurements = [
            measurement
            for part in records.get("measurements", [])
            for measurement in measurements_from_plain(part)
        ]
        maps = {int(entry["ticket_id"]): entry["maps"] for entry in records.get("map", [])}
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise _damaged(path, str(error)) from error
    spec = StudySpec.from_json(study.spec)
    check_schedules(spec)
    ids = {ticket.id for ticket in tickets}
    ticket_ids = (
        {measurement.ticket_id for measurement in measurements}
        | {log.ticket_id for log in logs}
        | maps.keys()
    )
    if not ticket_ids <= ids or len(ids) < len(tickets):
        raise _damaged(path, "it tells of tickets that are not in it")
    return StudyDump(
        study=study,
        tickets=tickets,
        measurements=measurements,
        logs=logs,
        maps=maps,
        warm_start=records.get("warm_start", [[]])[0],
        trials={
            ticket.id: trial_params(ticket.sampled or {}, spec.space("search"))
            for ticket in tickets
            if ticket.trial_number is not None
        },
    )


def _renamed(study: StudyRow, name: str) -> StudyRow:
    """Return a study under another name, which its spec has as well."""
    spec = StudySpec.from_json(study.spec).with_overrides([f"study.name={json.dumps(name)}"])
    return dataclasses.replace(study, name=name, spec=spec.to_json())


def _lines(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield kind and data of each line of a file; gzip tells one that is damaged or cut short."""
    size = 0
    try:
        with gzip.open(path, "rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(_LONGEST_LINE), b"")):
                size += len(line)
                if size > _MOST_BYTES or not line.endswith(b"\n"):
                    raise _damaged(path, "it is longer than it can be, or its end is missing")
                kind, data = _parsed(path, line)
                if number == 0:
                    _check_version(path, kind, data)
                yield kind, data
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise _damaged(path, str(error)) from error
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror}. Give a file that tempopt dump has written."
        ) from error


def _parsed(path: Path, line: bytes) -> tuple[str, Any]:
    try:
        [(kind, data)] = json.loads(line).items()
    except (ValueError, AttributeError, RecursionError) as error:
        raise _damaged(path, "a line is not as it should be") from error
    if no_text := not_text(line.decode("utf-8", "replace")):
        raise _damaged(path, f"it holds {no_text}")
    return str(kind), data


def _check_version(path: Path, kind: str, data: Any) -> None:
    if kind != "about" or not isinstance(data, Mapping) or data.get("format") != FORMAT:
        raise _damaged(path, "it does not begin as one")
    if data.get("version") != VERSION:
        raise UsageError(
            f"{path} was written by tempopt {data.get('tempopt')} in a form that this version, "
            f"{__version__}, does not know. Load it with that version, or a later one."
        )


def _damaged(path: Path, why: str) -> UsageError:
    return UsageError(
        f"{path} is no file of a study, or is damaged: {why}. Give one that tempopt dump has written."
    )
