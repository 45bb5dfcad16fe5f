"""Administration of studies, from any machine: pause, stop, delete, remove checkpoints, read logs.

With a server, the requests are sent to it, and it calls the same functions. Prints nothing: results are plain
data. Imports neither torch nor Lightning.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tempopt.errors import StorageError, StoreNotBegun, StudyNotFound, UsageError
from tempopt.program.run_folder import is_file_of_run
from tempopt.storage import checkpoints, urls
from tempopt.storage.liveness import active_agents, machine_id, short_agent_name
from tempopt.storage.opening import as_remote_store, open_store
from tempopt.storage.rows import KINDS, SEARCH_KINDS, TERMINAL_STATES, StudyRow, StudyState, TicketRow
from tempopt.storage.store import Store
from tempopt.training.messages import LOG

_RUN_PATTERN = re.compile(r"([a-z_]+)[- ]0*(\d+)")
_UNDELIVERED_PATTERN = re.compile(r"undelivered-[^/]*\.jsonl")
# Number of tickets whose logs are read at a time, and maximal bytes of a live log: logs can be long.
_MAX_IDS = 100
_MAX_LOG_BYTES = 1_000_000
# Maximal number of remaining files that are named.
_MAX_NAMED_FILES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class StopResult:
    """Result of pausing or stopping a study.

    Args:
        before: State of the study before; if that is ``done``, nothing was changed.
        agents: Agents at work on it, as ``host:pid``.
        withdrawn: Number of tickets that were withdrawn.
        compares: Whether the study is a comparison, which has no search to stop.
    """

    before: StudyState
    agents: list[str]
    withdrawn: int = 0
    compares: bool = False


Storage = str | Store
"""The store of studies: a URL, which is opened and closed again, or an open store, which stays open."""


@contextlib.contextmanager
def open_storage(storage: Storage, *, create: bool = False) -> Iterator[Store]:
    """Yield the store; raise StorageError if there is none at a URL and ``create`` is False."""
    if isinstance(storage, Store):
        yield storage
        return
    with open_store(storage, create=create) as store:
        yield store


def study_may_exist(storage: Storage, name: str) -> bool:
    """Return whether a study is in the store; True also if the store cannot be reached now."""
    try:
        with open_storage(storage) as store:
            store.load_study(name)
    except (StoreNotBegun, StudyNotFound):
        return False
    except StorageError:
        # the database cannot be reached now: the study may be in it
        pass
    return True


def pause(storage: Storage, name: str) -> StopResult:
    """Pause a study: its agents write checkpoints and leave, until it is resumed.

    Args:
        storage: The store or its URL, as in all functions of this module.

    Raises:
        StudyNotFound: There is no study of that name.
    """
    with open_storage(storage) as store:
        if server := as_remote_store(store):
            return StopResult(**server.ask(name, "pause"))
        return pause_study(store, store.load_study(name))


def pause_study(store: Store, study: StudyRow) -> StopResult:
    """Pause a study of a database, as :func:`pause`."""
    agents = active_agents(store.tickets(study.id))
    if study.state == "running":
        store.set_state(study.id, "paused")
    return StopResult(before=study.state, agents=agents)


def stop(storage: Storage, name: str) -> StopResult:
    """Stop the search of a study: runs in progress are completed, and the best so far is confirmed.

    Raises:
        StudyNotFound: There is no study of that name.
    """
    with open_storage(storage) as store:
        if server := as_remote_store(store):
            return StopResult(**server.ask(name, "stop"))
        return stop_study(store, store.load_study(name))


def stop_study(store: Store, study: StudyRow) -> StopResult:
    """Stop the search of a study of a database, as :func:`stop`."""
    agents = active_agents(store.tickets(study.id))
    num_withdrawn = 0 if study.state == "done" else store.withdraw(study.id, SEARCH_KINDS)
    compares = study.spec.get("compare") is not None
    return StopResult(before=study.state, agents=agents, withdrawn=num_withdrawn, compares=compares)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteResult:
    """Result of deleting a study.

    Args:
        agents: Agents that still work on it, as ``host:pid``.
        freed: Bytes of checkpoints and logs that were removed.
        not_removed: Reason by location, for files that were not removed.
    """

    agents: list[str]
    freed: int
    not_removed: dict[str, str]


def delete(storage: Storage, name: str, *, force: bool = False) -> DeleteResult:
    """Delete a study, its Optuna study, its checkpoints, and its logs in this machine's folder.

    Args:
        force: Whether to delete it even while agents work on it; these then leave.

    Raises:
        StudyNotFound: There is no study of that name.
        UsageError: Agents work on it.
    """
    with open_storage(storage) as store:
        if server := as_remote_store(store):
            return DeleteResult(**server.ask_to_delete(name, force=force))
        return delete_study(store, store.load_study(name), force=force)


def delete_study(store: Store, study: StudyRow, *, force: bool) -> DeleteResult:
    """Delete a study of a database, as :func:`delete`."""
    tickets = store.tickets(study.id)
    agents = active_agents(tickets)
    if agents and not force:
        raise UsageError(
            f'Agents work on the study "{study.name}": {", ".join(agents)}. Let them leave first '
            f"(tempopt pause {study.name}), or give --force."
        )
    store.delete_study(study.name, id=study.id)
    folders, reasons = _list_folders(study, tickets)
    log_folder = _find_log_folder(study) / study.name
    if log_folder.is_dir():
        folders.append(str(log_folder))
    freed = 0
    for folder in dict.fromkeys(folders):
        removal = _remove_study_files(folder)
        freed += removal.freed
        reasons |= removal.not_removed
    return DeleteResult(agents=agents, freed=freed, not_removed=reasons)


def _list_folders(study: StudyRow, tickets: Iterable[TicketRow]) -> tuple[list[str], dict[str, str]]:
    """Return all known folders of the study, and the reasons of checkpoints outside of these by URL."""
    folders = [checkpoints.join(study.checkpoints, study.name)] if study.checkpoints else []
    reasons: dict[str, str] = {}
    for ticket in tickets:
        run = checkpoints.run_name(ticket.kind, ticket.number)
        for url in (checkpoint.url for checkpoint in ticket.checkpoints):
            # agents may have used other folders, but a row of the database must not name an arbitrary folder
            if checkpoints.belongs_to_run(url, study=study.name, run=run):
                folders.append(url.rsplit("/", 2)[0])
            else:
                reasons[url] = "this is not the folder of that run's checkpoints"
    paths = [str(checkpoints.local_path(f)) if checkpoints.is_local(f) else f for f in folders]
    return list(dict.fromkeys(paths)), reasons


def _remove_study_files(folder: str) -> checkpoints.RemovalResult:
    """Delete tempopt's files in a study's folder, and the folder if it is empty then."""
    try:
        if checkpoints.is_local(folder) and not Path(folder).is_dir():
            raise FileNotFoundError("there is no such folder on this machine")
        paths = Path(folder).iterdir() if checkpoints.is_local(folder) else ()
        folders = [path for path in paths if path.is_dir() and not path.is_symlink()]
        sizes = checkpoints.disk_usage(folder)
    except Exception as error:
        return checkpoints.RemovalResult(freed=0, not_removed={folder: checkpoints.error_reason(error)})
    own_urls = [url for url in sizes if _is_written_by_tempopt(*_split_file_path(folder, url))]
    removal = checkpoints.remove(own_urls)
    runs = [path for path in folders if checkpoints.RUN.fullmatch(path.name)]
    nested_folders = sorted((path for run in runs for path in run.rglob("*") if path.is_dir()), reverse=True)
    for path in (*nested_folders, *runs, Path(folder)) if checkpoints.is_local(folder) else ():
        # a folder with other files is not removed
        with contextlib.suppress(OSError):
            path.rmdir()
    names = {path.name for path in folders if path not in runs}
    for name, inner_path in (_split_file_path(folder, url) for url in sizes.keys() - own_urls):
        names.add(f"{name}/{inner_path}" if inner_path and checkpoints.RUN.fullmatch(name) else name)
    if not names:
        return removal
    names_text = ", ".join(sorted(names)[:_MAX_NAMED_FILES])
    more_text = f" and {len(names) - _MAX_NAMED_FILES} more" if len(names) > _MAX_NAMED_FILES else ""
    return replace(
        removal, not_removed={**removal.not_removed, folder: f"tempopt did not write {names_text}{more_text}"}
    )


def _split_file_path(folder: str, url: str) -> tuple[str, str]:
    """Return the first part of a file's path in a folder, and the rest, which may be empty."""
    name, _, inner_path = url.removeprefix(f"{folder}/").partition("/")
    return name, inner_path


def _is_written_by_tempopt(name: str, inner_path: str) -> bool:
    """Return whether tempopt wrote a file of a study's folder, given its path in it."""
    if not inner_path:
        return _UNDELIVERED_PATTERN.fullmatch(name) is not None
    is_checkpoint = checkpoints.CHECKPOINT.fullmatch(inner_path) is not None
    is_file = inner_path == LOG or is_checkpoint or is_file_of_run(inner_path)
    return is_file and checkpoints.RUN.fullmatch(name) is not None


def _find_log_folder(study: StudyRow) -> Path:
    """Return this machine's folder for logs: that of the checkpoints, if it is local."""
    if study.checkpoints and checkpoints.is_local(study.checkpoints):
        return checkpoints.local_path(study.checkpoints)
    return Path(checkpoints.DEFAULT_FOLDER).absolute()


@dataclass(frozen=True, slots=True, kw_only=True)
class GarbageCollectionResult:
    """Result of removing one study's checkpoints.

    Args:
        files: Bytes by location, for files that were removed or would be.
        not_removed: Reason by location, for files that were not removed.
    """

    study: str
    files: dict[str, int]
    not_removed: dict[str, str]

    @property
    def freed(self) -> int:
        """Total bytes."""
        return sum(self.files.values())


def collect_garbage(
    storage: Storage, name: str | None = None, *, dry_run: bool = False
) -> list[GarbageCollectionResult]:
    """Remove the checkpoints that no run needs any more.

    Args:
        name: Name of the study; None: all studies of the store.
        dry_run: Whether only to list them.

    Raises:
        StudyNotFound: There is no study of that name.
    """
    with open_storage(storage) as store:
        names = [name] if name is not None else [summary.study.name for summary in store.list_studies()]
        return [_collect_study_garbage(store, study_name, dry_run=dry_run) for study_name in names]


def _collect_study_garbage(store: Store, name: str, *, dry_run: bool) -> GarbageCollectionResult:
    if server := as_remote_store(store):
        return GarbageCollectionResult(**server.ask(name, "gc", {"dry_run": dry_run}))
    study = store.load_study(name)
    folders, reasons = _list_folders(study, store.tickets(study.id))
    sizes_by_folder: dict[str, dict[str, int]] = {}
    for folder in folders:
        try:
            sizes_by_folder[folder] = checkpoints.disk_usage(folder)
        except Exception as error:
            reasons[folder] = checkpoints.error_reason(error)
    # read after the files were listed: checkpoints that were recorded since are then not unneeded
    runs = {checkpoints.run_name(ticket.kind, ticket.number): ticket for ticket in store.tickets(study.id)}
    files: dict[str, int] = {}
    for folder, sizes in sizes_by_folder.items():
        for url, size in sizes.items():
            run, file = _split_file_path(folder, url)
            if run in runs and _is_unneeded(runs[run], file):
                files[url] = size
    if not dry_run:
        failed_urls = checkpoints.remove(files).not_removed
        files = {url: size for url, size in files.items() if url not in failed_urls}
        reasons |= failed_urls
    return GarbageCollectionResult(study=name, files=files, not_removed=reasons)


def _is_unneeded(ticket: TicketRow, file: str) -> bool:
    """Return whether a file is a checkpoint from which its run will not resume."""
    parts = checkpoints.CHECKPOINT.fullmatch(file)
    if parts is None:
        return False
    if ticket.state in TERMINAL_STATES:
        return True
    saved_checkpoints = ticket.checkpoints
    if file in {checkpoint.url.rpartition("/")[2] for checkpoint in saved_checkpoints}:
        return False
    # a checkpoint newer than the recorded ones may be recorded soon
    return bool(parts[1]) and len(saved_checkpoints) >= 2 and int(parts[1]) < saved_checkpoints[1].step


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLog:
    """Output of one attempt of a run.

    Args:
        ticket: Kind and number, as in ``search-12``.
        agent: The agent that trained it, as ``host:pid``.
        running: Whether it is still in progress.
        lines: Number of stored lines.
        text: The end of its output, or only the last line; None if it is not available on this machine.
        error: Error of the run's last failed or lost attempt; None if there is none, or for several runs.
    """

    ticket: str
    attempt: int
    agent: str
    running: bool
    lines: int
    text: str | None
    error: str | None = None


def logs(storage: Storage, name: str, ticket: str | None = None) -> list[RunLog]:
    """Return the output of the attempts of a study's runs.

    Args:
        ticket: A run, as in ``search-12`` or ``search 12``, for all its stored and current output; None: the
            last line of each attempt of every run.

    Raises:
        StudyNotFound: There is no study of that name.
        UsageError: There is no such run.
    """
    with open_storage(storage) as store:
        mask = urls.url_masker(store.url)
        study = store.load_study(name)
        tickets = store.tickets(study.id)
        if ticket is None:
            return list(_iter_last_lines(store, study, tickets, mask))
        run = _find_run(ticket, tickets, name)
        rows = store.logs(study.id, [run.id])
    outputs = [_build_run_log(run, row.attempt, row.agent, mask(row.text)) for row in rows]
    if run.state == "running":
        text = _read_live_log(study, run, mask)
        outputs.append(_build_run_log(run, run.attempt, run.agent or "", text, running=True))
    error = None if run.error is None else mask(run.error)
    return [replace(output, error=error) for output in outputs]


def _iter_last_lines(
    store: Store, study: StudyRow, tickets: Sequence[TicketRow], mask: Callable[[str], str]
) -> Iterator[RunLog]:
    begun_tickets = {run.id: run for run in tickets if run.attempt}
    ids = list(begun_tickets)
    for start in range(0, len(ids), _MAX_IDS):
        for row in store.logs(study.id, ids[start : start + _MAX_IDS]):
            log = _build_run_log(begun_tickets[row.ticket_id], row.attempt, row.agent, row.text)
            yield replace(log, text=mask(row.text.rstrip().rpartition("\n")[2]))


def _build_run_log(
    ticket: TicketRow, attempt: int, agent: str, text: str | None, *, running: bool = False
) -> RunLog:
    return RunLog(
        ticket=ticket.name,
        attempt=attempt,
        agent=short_agent_name(agent),
        running=running,
        lines=len((text or "").splitlines()),
        text=text,
    )


def _find_run(text: str, tickets: Sequence[TicketRow], study: str) -> TicketRow:
    parts = _RUN_PATTERN.fullmatch(text)
    if parts is None or parts[1] not in KINDS:
        kinds = ", ".join(KINDS)
        raise UsageError(f'"{text}" is not a run. Give kind and number, as in search-12. Kinds: {kinds}.')
    name = f"{parts[1]}-{parts[2]}"
    kind_tickets = [ticket for ticket in tickets if ticket.kind == parts[1]]
    for ticket in kind_tickets:
        if ticket.name == name:
            return ticket
    choices = f"{kind_tickets[0].name} to {kind_tickets[-1].name}" if kind_tickets else f"no {parts[1]} yet"
    raise UsageError(f'Study "{study}" has no {name}; it has {choices}.')


def _read_live_log(study: StudyRow, ticket: TicketRow, mask: Callable[[str], str]) -> str | None:
    """Return the end of the log of a run in progress, None if it is not on this machine."""
    run = checkpoints.run_name(ticket.kind, ticket.number)
    path = _find_log_folder(study) / study.name / run / LOG
    if machine_id() not in (ticket.agent or "").split(":") or not path.is_file():
        return None
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _MAX_LOG_BYTES))
        return mask(file.read().decode(errors="replace"))
