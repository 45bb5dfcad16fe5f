"""A run of a Python function, in the worker itself."""

from __future__ import annotations

import contextlib
import inspect
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tempopt.class_loading import import_module
from tempopt.errors import SpecError, unknown
from tempopt.program.program_run import BEAT_SECONDS, ProgramRun
from tempopt.program.run_folder import RunFolder
from tempopt.run_handle import Reporter, Run, activate
from tempopt.spec.program import FunctionProgram
from tempopt.training.messages import Channel, Failed, Finished, ProgramRequest

_SPEC_KEY = "program.function"


class RunStopped(BaseException):
    """Ends a function that goes on reporting after it diverged, or long after it should have stopped."""


class FunctionRun(ProgramRun):
    """One run of a function.

    Args:
        request: What to run.
        program: The function.
        channel: Where to report.
    """

    def __init__(self, request: ProgramRequest, program: FunctionProgram, channel: Channel) -> None:
        super().__init__(request, channel)
        self._import_path = program.function
        self._function = load_function(program.function)

    def check(self) -> None:
        """Refuse a function that does not take a run."""
        try:
            inspect.signature(self._function).bind(None)
        except (TypeError, ValueError) as error:
            raise SpecError(
                f'{_SPEC_KEY}: "{self._import_path}" cannot be called with a run: {error}. Write it as '
                "def train(run: tempopt.Run) -> float."
            ) from error

    def source_files(self) -> Iterator[Path]:
        """Yield the file of the function."""
        with contextlib.suppress(TypeError):
            yield Path(inspect.getfile(inspect.unwrap(self._function)))

    def execute(self) -> Finished | Failed:
        """Call the function, and return the message of its end."""
        folder = RunFolder(self.request)
        run = Run(self.request.parameters, self.request.seed, folder.files, _WorkerReporter(self, folder))
        self.send_started(folder.earlier_reports)
        value: object = None
        try:
            with activate(run), self._send_progress_on_output(folder.log):
                value = self._function(run)
        except RunStopped:
            pass
        if (early_end := self.build_early_end_message()) is not None:
            return early_end
        number = self.find_last_report() if value is None else _to_number(value, self._import_path)
        if number is None:
            return self.build_failed_message(
                "error",
                f"{self._import_path} has returned nothing and reported nothing. Have it return "
                f"{self.request.program.metric}, or call run.report(value).",
            )
        return self.build_ended_message(number)

    @contextlib.contextmanager
    def _send_progress_on_output(self, log: Path) -> Iterator[None]:
        """Send progress messages while the function prints, so that the lease is renewed."""
        has_ended = threading.Event()

        def watch() -> None:
            size = _size(log)
            while not has_ended.wait(BEAT_SECONDS):
                if (new_size := _size(log)) != size:
                    size = new_size
                    self.send_progress()

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            sys.stdout.flush()
            has_ended.set()
            thread.join()


class _WorkerReporter(Reporter):
    """Passes the reports of a function on to the agent.

    Args:
        run: Its run.
        folder: Of the run.
    """

    def __init__(self, run: FunctionRun, folder: RunFolder) -> None:
        self._function_run, self._folder = run, folder
        self._stop_deadline = math.inf

    def _send(self, value: float, step: int) -> None:
        """Report a value; raises once the run has had its time to end."""
        run = self._function_run
        run.take_report(value, step)
        self._folder.append({"step": run.last_step, "value": value})
        if self.should_stop:  # grace begins at the first report after the request
            self._stop_deadline = min(self._stop_deadline, time.monotonic() + run.request.grace)
        if run.has_diverged or time.monotonic() > self._stop_deadline:
            raise RunStopped

    @property
    def should_stop(self) -> bool:
        """Whether the agent wants the run to end."""
        return self._function_run.channel.find_stop(self._function_run.request) is not None


def load_function(import_path: str) -> Callable[[Run], Any]:
    """Import a function by its path.

    Raises:
        SpecError: There is none.
    """
    module_name, _, name = import_path.rpartition(".")
    module = import_module(module_name, where=_SPEC_KEY)
    function: Callable[[Run], Any] | None = getattr(module, name, None)
    if function is None:
        names = [key for key, value in vars(module).items() if inspect.isfunction(value)]
        raise SpecError(f"{_SPEC_KEY}: {unknown(f'function in {module_name}', name, names or ['none'])}")
    if not callable(function):
        raise SpecError(f'{_SPEC_KEY}: "{import_path}" is of type {type(function).__name__}, not a function.')
    return function


def _to_number(value: object, import_path: str) -> float:
    try:
        # numbers of numpy and torch, too
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise SpecError(
            f"{_SPEC_KEY}: {import_path} has returned {value!r}, of type {type(value).__name__}. Have it "
            "return a number."
        ) from error


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
