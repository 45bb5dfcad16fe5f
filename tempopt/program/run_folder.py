"""The folder of a run on this machine: what its process reads, reports and keeps there."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tempopt.run_handle import FILES, REPORTS, STOP
from tempopt.training.messages import LOG, ProgramRequest

_RUN_JSON = "run.json"
_FILE_OF_RUN = re.compile(rf"attempt-\d+/({_RUN_JSON}|{REPORTS}|{STOP})|{FILES}/.+")


class RunFolder:
    """The folder of one attempt at a run; what earlier attempts at the same run have left is kept.

    Args:
        request: The run.

    Attributes:
        log: Path of what it prints.
        run_file: Path of its description, which a process of its own reads.
        files: Folder for what it writes itself.
        earlier_reports: What earlier attempts have reported here, step to value.
    """

    def __init__(self, request: ProgramRequest) -> None:
        assert request.folder is not None, "a run without a folder"
        folder, key = Path(request.folder).absolute(), _run_key(request)
        # a process of an attempt that was given up may write on for a while
        attempt_folder = folder / f"attempt-{request.attempt}"
        self.log, self.files, self.run_file = folder / LOG, folder / FILES, attempt_folder / _RUN_JSON
        self._reports, self._stop, self._offset = attempt_folder / REPORTS, attempt_folder / STOP, 0
        self.earlier_reports: dict[int, float] = {}
        earlier_folders = [folder / f"attempt-{attempt}" for attempt in range(1, request.attempt)]
        continued_folders = [path for path in earlier_folders if _read_key(path / _RUN_JSON) == key]
        for path in continued_folders:
            lines, _ = _read_lines(path / REPORTS, 0)
            self.earlier_reports |= {line["step"]: line["value"] for line in lines if "step" in line}
        if not continued_folders:
            shutil.rmtree(self.files, ignore_errors=True)
        shutil.rmtree(attempt_folder, ignore_errors=True)
        for path in (self.files, attempt_folder):
            path.mkdir(parents=True, exist_ok=True)
        data = {"key": key, "params": request.parameters, "seed": request.seed, "folder": str(self.files)}
        self.run_file.write_text(json.dumps(data), encoding="utf-8")

    def new_lines(self) -> list[dict[str, Any]]:
        """Return the lines of the reports that were completed since the last call."""
        lines, self._offset = _read_lines(self._reports, self._offset)
        return lines

    def append(self, line: Mapping[str, Any]) -> None:
        """Append a line to the reports."""
        with self._reports.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def ask_to_stop(self) -> None:
        """Tell the process to end."""
        self._stop.touch()


def is_file_of_run(path: str) -> bool:
    """Return whether a file in the folder of a run, by its path there, is one of a program."""
    return _FILE_OF_RUN.fullmatch(path) is not None


def _read_lines(path: Path, offset: int) -> tuple[list[dict[str, Any]], int]:
    """Return the complete lines of a file behind an offset, and the offset of their end."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read()
    except FileNotFoundError:
        return [], offset
    complete_data = data[: data.rfind(b"\n") + 1]
    return [json.loads(line) for line in complete_data.splitlines()], offset + len(complete_data)


def _run_key(request: ProgramRequest) -> str:
    """Return a text that is equal for all attempts at the same run."""
    fields = [request.program.identity, request.seed, request.parameters]
    return hashlib.blake2b(json.dumps(fields, sort_keys=True).encode(), digest_size=16).hexdigest()


def _read_key(path: Path) -> str | None:
    """Return the key of the run whose files are in a folder."""
    try:
        key: str = json.loads(path.read_text(encoding="utf-8"))["key"]
    except (OSError, ValueError, KeyError):
        return None
    return key
