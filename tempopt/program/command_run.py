"""A run of a command: one process with all that it starts, its output, its reports and its end."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from tempopt.errors import SpecError
from tempopt.program.output import CappedLog, ValueReader, find_near_misses, find_similar_name
from tempopt.program.process_tree import adopt_orphans, kill_descendants, reap_children
from tempopt.program.program_run import ProgramRun
from tempopt.program.run_folder import RunFolder
from tempopt.run_handle import ATTACHED, RUN_FILE
from tempopt.spec.command import SCRIPT_SUFFIXES, SEED, CommandTemplate
from tempopt.spec.program import CommandProgram
from tempopt.spec.program_pattern import num_groups_in
from tempopt.training.messages import Channel, Failed, Finished, ProgramRequest

_CHUNK_BYTES = 256 * 1024
_MAX_CHUNKS = 64
"""Maximum number of chunks of output that are read before reports are read again."""
# the interval between polls grows: a script of 0.1 s does not wait, one of an hour is polled every 0.25 s
_FIRST_POLL_SECONDS, _MAX_POLL_SECONDS, _POLL_GROWTH = 0.01, 0.25, 1.5
_MAX_LAST_LINES, _MAX_LAST_BYTES = 12, 2000
# the token is the agent's, for its server
_SECRET_PREFIX = "TEMPOPT_TOKEN"
# other files that a command names may be ones that it writes
_SOURCE_SUFFIXES = (*SCRIPT_SUFFIXES, ".yaml", ".yml", ".toml", ".ini", ".cfg")
_MAX_OWN_CODE = 128
"""Largest exit code of a program's own; a shell adds the signal that has killed its program."""
_MEMORY_EXHAUSTED = re.compile(
    rb"out of memory|OutOfMemory|MemoryError|cannot allocate memory", re.IGNORECASE
)
_BETWEEN_PATHS = re.compile(r"[\s=:,;'\"]+")


class CommandRun(ProgramRun):
    """One run of a command.

    Args:
        request: What to run.
        program: The command.
        channel: Where to report.
    """

    def __init__(self, request: ProgramRequest, program: CommandProgram, channel: Channel) -> None:
        super().__init__(request, channel)
        self._program = program
        self._command = CommandTemplate.parse(program.command)
        self._variables, self._words = self._command.fill(request.parameters, request.seed)
        self._path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
        self._reader = None if program.pattern is None else ValueReader(program.pattern)
        self._last_output = b""
        self._has_attached = False
        self._stop_deadline = math.inf

    def check(self) -> None:
        """Refuse a program that is not in PATH, a script that does not exist, and runs without a seed."""
        program = self._words[0]
        if shutil.which(program, path=self._variables.get("PATH", self._path)) is None:
            reason = f'there is no program "{program}" in {Path.cwd()} or in PATH.'
            if Path(program).is_file():
                reason = (
                    f"{program} is not executable. Run chmod +x {program}, or give its interpreter first."
                )
            raise SpecError(f"program.command: {reason}")
        # later words may be files that are written, or that are inside of a container
        script = Path("".join(self._words[1:2]))
        if script.suffix.lower() in SCRIPT_SUFFIXES and not script.exists():
            raise SpecError(f"program.command: there is no file {script} in {Path.cwd()}.")
        has_seed = SEED in self._command.placeholders
        if not has_seed and not any(b"current_run" in path.read_bytes() for path in self.source_files()):
            raise SpecError(
                "program.command: {seed} is missing, so that every run would train with the same seed and "
                "nothing could be tested. Write it where the program takes its seed, as in --seed {seed}, or "
                "in a variable of the environment: SEED={seed} python train.py. Or let the script that the "
                "command names use tempopt.current_run().seed."
            )

    def source_files(self) -> Iterator[Path]:
        """Yield the scripts and settings that the command names, also behind -m and for a shell."""
        # without the values of placeholders, since all runs of a study have the same code
        text = " ".join(["", *self._command.variables.values(), *self._command.words])
        for option, word in itertools.pairwise(_BETWEEN_PATHS.split(text)):
            names = [word]
            if option == "-m":
                names += [f"{word.replace('.', '/')}{ending}" for ending in (".py", "/__main__.py")]
            for path in map(Path, names):
                if path.suffix.lower() in _SOURCE_SUFFIXES and path.is_file():
                    yield path

    def execute(self) -> Finished | Failed:
        """Run the command, then end the processes that it has left."""
        folder = RunFolder(self.request)
        log = CappedLog(folder.log)
        adopt_orphans()
        try:
            process = subprocess.Popen(
                self._words,
                env=self._environment(folder.run_file),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                bufsize=0,
            )
        except OSError as error:
            log.close()
            raise SpecError(
                f"program.command: {self._words[0]} cannot be started: {error.strerror}"
            ) from error
        try:
            self.send_started(folder.earlier_reports)
            self._watch(process, log, folder)
        finally:
            kill_descendants(os.getpid())
            process.wait()
            reap_children()
            log.close()
        return dataclasses.replace(self._build_end_message(process.returncode, folder.log), log_lost=log.lost)

    # ---- while it runs

    def _environment(self, run_file: Path) -> dict[str, str]:
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(_SECRET_PREFIX)
        }
        # output renews the lease and is shown in the log while the command runs
        defaults = {"PYTHONUNBUFFERED": "1"}
        return defaults | environment | {"PATH": self._path, RUN_FILE: str(run_file)} | self._variables

    def _watch(self, process: subprocess.Popen[bytes], log: CappedLog, folder: RunFolder) -> None:
        assert process.stdout is not None
        output = process.stdout.fileno()
        os.set_blocking(output, False)
        poll_seconds = _FIRST_POLL_SECONDS
        with selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            while process.poll() is None and time.monotonic() < self._stop_deadline:
                if selector.get_map():
                    selector.select(poll_seconds)
                else:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(poll_seconds)
                if selector.get_map() and not self._take_output(output, log):
                    # the process has closed its output and may still run
                    selector.unregister(output)
                self._take_reports(folder)
                self._forward_stop(folder)
                poll_seconds = min(_POLL_GROWTH * poll_seconds, _MAX_POLL_SECONDS)
        # processes that it has left would keep its output open
        kill_descendants(os.getpid())
        self._take_output(output, log)
        self._take_reports(folder)
        process.stdout.close()
        if self._reader is not None:
            self._reader.feed(b"", is_last=True)
            if self._reader.last is not None and process.poll() == 0:
                log.write(self._describe_value(*self._reader.last).encode())

    def _take_output(self, descriptor: int, log: CappedLog) -> bool:
        """Read the available output; return whether more may follow."""
        for _ in range(_MAX_CHUNKS):
            try:
                data = os.read(descriptor, _CHUNK_BYTES)
            except BlockingIOError:
                return True
            if not data:
                return False
            log.write(data)
            if self._reader is not None:
                self._reader.feed(data)
            self._last_output = (self._last_output + data)[-_MAX_LAST_BYTES:]
            self.send_progress()
        return True

    def _take_reports(self, folder: RunFolder) -> None:
        for line in folder.new_lines():
            if line == ATTACHED:
                self._has_attached = True
                self.send_progress()
            else:
                self.take_report(line["value"], line["step"])

    def _forward_stop(self, folder: RunFolder) -> None:
        """Request the process to stop; one that has not called current_run() is ended at once."""
        is_stopped = self.has_diverged or self.channel.find_stop(self.request) is not None
        if is_stopped and self._stop_deadline == math.inf:
            folder.ask_to_stop()
            self._stop_deadline = time.monotonic() + (self.request.grace if self._has_attached else 0.0)

    # ---- how it ended

    def _describe_value(self, value: float, line: str) -> str:
        text, report = f"the value is {value!r}, of the line: {line}", self.find_last_report()
        if report not in (None, value):
            text += f"; it counts, and not the last report, {report!r}"
        return f"\n[tempopt: {text}]\n"

    def _build_end_message(self, code: int, log: Path) -> Finished | Failed:
        if (early_end := self.build_early_end_message()) is not None:
            return early_end
        if code:
            ending = f"ended with exit code {code}"
            if code < 0:
                ending = f"was killed by {signal.Signals(-code).name}"
            is_killed = -code == signal.SIGKILL
            message = f"The command {ending}.{self._last_lines()}"
            # a process has no other way than its output to say why it ends
            is_own = 0 < code <= _MAX_OWN_CODE and _MEMORY_EXHAUSTED.search(self._last_output) is None
            kind: Literal["infrastructure", "error"] = "infrastructure" if is_killed else "error"
            return self.build_failed_message(kind, message, is_by_program=is_own)
        names = [SEED, *self.request.parameters]
        unused_names = [name for name in names if name not in self._command.placeholders]
        if unused_names and not self._has_attached:
            return self.build_failed_message("usage", _describe_unread_params(unused_names))
        printed = None if self._reader is None else self._reader.last
        value = self.find_last_report() if printed is None else printed[0]
        if value is None:
            message = self._describe_missing_value(log)
            return self.build_failed_message("no_value", message, is_by_program=True)
        return self.build_ended_message(value)

    def _describe_missing_value(self, log: Path) -> str:
        pattern = self._program.pattern
        if pattern is None:
            return (
                f"The command has ended without reporting {self._program.metric}. Have it call "
                "tempopt.current_run().report(value), or name in program.metric what stands before the value "
                f"in its output.{self._last_lines()}"
            )
        text = f"The command has ended without a value behind {pattern!r} in its output"
        if num_groups_in(pattern):
            text += ", and without a number in the group of this regular expression"
        output = log.read_text(errors="replace") if log.exists() else ""
        if near_misses := find_near_misses(pattern, output):
            text += ". The whole name counts, in the same case, and a number like 1234.5. Near it are:"
            return "\n".join([text, *near_misses])
        if similar := find_similar_name(pattern, output):
            name, line = similar
            return f"{text}. Did you mean {name}, as in the line: {line}"
        return f"{text}.{self._last_lines()}"

    def _last_lines(self) -> str:
        lines = self._last_output.decode(errors="replace").splitlines()[-_MAX_LAST_LINES:]
        return "\n".join([" It printed last:", *lines]) if lines else " It printed nothing."


def _describe_unread_params(names: list[str]) -> str:
    words = " ".join(f"--{name.replace('_', '-')} {{{name}}}" for name in names)
    return (
        f"program.command: {', '.join(names)} never reached the program, which has ended without a call of "
        f"tempopt.current_run(). Add them to the command, as in {words}, or read "
        "them in the program from tempopt.current_run(), which has params and seed."
    )
