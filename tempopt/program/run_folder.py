"""The folder of a run on this machine: what its process reads, reports and keeps there."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tempopt.run_handle import FILES, REPORTS, RUN_JSON, STOP
from tempopt.training.messages import LOG, ProgramRequest


class RunFolder:
    """The folder of one attempt at a run; what an earlier attempt at the same run has left is kept.

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
        folder = Path(request.folder).absolute()
        self.log, self.run_file, self.files = folder / LOG, folder / RUN_JSON, folder / FILES
        self._reports, self._stop = folder / REPORTS, folder / STOP
        self._offset = 0
        key = _run_key(request)
        if request.attempt == 1 or _read_key(self.run_file) != key:
            shutil.rmtree(self.files, ignore_errors=True)
            self._reports.unlink(missing_ok=True)
        self._stop.unlink(missing_ok=True)
        self.files.mkdir(parents=True, exist_ok=True)
        self.earlier_reports: dict[int, float] = {
            line["step"]: line["value"] for line in self.new_lines() if "step" in line
        }
        data = {"key": key, "params": request.parameters, "seed": request.seed, "folder": str(self.files)}
        self.run_file.write_text(json.dumps(data), encoding="utf-8")

    def new_lines(self) -> list[dict[str, Any]]:
        """Return the lines of the reports that were completed since the last call."""
        try:
            with self._reports.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        complete_data = data[: data.rfind(b"\n") + 1]
        self._offset += len(complete_data)
        return [json.loads(line) for line in complete_data.splitlines()]

    def append(self, line: Mapping[str, Any]) -> None:
        """Append a line to the reports."""
        with self._reports.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def ask_to_stop(self) -> None:
        """Tell the process to end."""
        self._stop.touch()


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
