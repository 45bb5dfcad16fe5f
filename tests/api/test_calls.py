"""search, compare and resume in Python: what they show, what an interrupt says, and the handle."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tempopt
from tempopt.agent.observer import NullObserver, Snapshot
from tempopt.api import calls
from tempopt.errors import SpecError, UsageError
from tempopt.service import studies
from tempopt.service.progress import NotebookProgress, in_notebook, progress_for_python
from tempopt.storage.opening import open_store
from tempopt.storage.rows import TicketRow
from tests.toy_study import SMALL, toy_spec

URL = "sqlite:///tempopt.db"
SPEC: dict[str, Any] = {
    **toy_spec(space={"temperature_init": {"low": 1.5, "high": 4.0}}, **{**SMALL, "candidates": 1}),
    "model": {"class_path": "tempopt.testing.toys.Toy"},
    "data": {"class_path": "tempopt.testing.toys.ToyData"},
    "trainer": {"max_steps": 10, "accelerator": "cpu"},
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


class InterruptObserver(NullObserver):
    """The observer with a person who presses Ctrl-C after the first training."""

    def on_ticket_end(self, ticket: TicketRow) -> None:
        os.kill(os.getpid(), signal.SIGINT)


# ---- where it is kept


def test_python_and_the_command_line_keep_a_study_in_the_same_place(monkeypatch: pytest.MonkeyPatch) -> None:
    urls: list[str] = []

    monkeypatch.setattr(studies, "carry_out", lambda _, options, __: urls.append(options.storage))
    monkeypatch.setattr(calls, "forecast_study", lambda _, storage, **__: urls.append(storage))
    for url in (URL, "sqlite:///other.db"):
        for call in (
            lambda **options: tempopt.search(SPEC, **options),
            lambda **options: tempopt.compare(SPEC, {"one": {}, "hot": {"temperature_init": 2.0}}, **options),
            lambda **options: tempopt.resume("toy", **options),
            lambda **options: tempopt.plan(SPEC, **options),
        ):
            call()
            call(storage="sqlite:///given.db")
            assert urls == [url, "sqlite:///given.db"]
            urls.clear()
        monkeypatch.setenv("TEMPOPT_STORAGE", "sqlite:///other.db")


# ---- what is shown


def _output(displays: list[Any]) -> Any:
    def display(data: Any, **options: Any) -> Any:
        assert options == {"raw": True, "display_id": True}
        displays.append(data)
        return SimpleNamespace(update=lambda data, raw: displays.__setitem__(-1, data))

    return SimpleNamespace(display=display)


def test_a_notebook_has_one_output_that_is_drawn_anew(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], make_snapshot: Any
) -> None:
    displays: list[Any] = []
    shell = SimpleNamespace()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))  # type: ignore[misc]
    monkeypatch.setitem(sys.modules, "IPython.display", _output(displays))
    # IPython in a terminal has no kernel
    assert not in_notebook()
    shell.kernel = object()
    assert in_notebook()
    with progress_for_python(True) as observer:
        assert isinstance(observer, NotebookProgress)
        assert "starting the workers" in displays[0]["text/plain"]
        observer.note("A <note>.")
        snapshot: Snapshot = make_snapshot()
        for _ in range(100):
            observer.update(snapshot)
    assert len(displays) == 1
    assert "16/40" in displays[0]["text/plain"] and "16/40" in displays[0]["text/html"]
    assert displays[0]["text/html"].startswith("<pre")
    assert capsys.readouterr().out == "A <note>.\n"


# ---- Ctrl-C


def test_an_interrupt_says_how_to_go_on() -> None:
    with pytest.raises(KeyboardInterrupt, match=r"tempopt\.resume\('toy'\)\n  tempopt resume toy$") as error:
        tempopt.search(SPEC, workers=1, observer=InterruptObserver())
    assert error.value.__cause__ is None and error.value.__suppress_context__
    assert tempopt.load_study(URL, "toy").trials["complete"] < 2


# ---- explanations


# ---- handles


def test_a_spec_that_is_wrong_is_refused_before_there_is_a_handle() -> None:
    with pytest.raises(SpecError, match="trials"):
        tempopt.search({**SPEC, "study": {**SPEC["study"], "trials": 0}}, wait=False)
    sets = [{"name": "A", "parameters": {}}, {"name": "B", "parameters": {"temperature_init": 2}}]
    with pytest.raises(UsageError, match="nothing to search"):
        tempopt.search({**SPEC, "compare": sets}, wait=False)
    with pytest.raises(UsageError):
        tempopt.resume("nothing", wait=False)


@pytest.mark.long
def test_an_error_of_the_agent_is_raised_by_result() -> None:
    spec = {**SPEC, "model": {"class_path": "tempopt.testing.toys.Toyy"}}
    with tempopt.search(spec, wait=False) as handle:
        with pytest.raises(UsageError, match='stop|begun|"toy"'):
            handle.stop()
        with pytest.raises(UsageError, match='Did you mean "Toy"'):
            handle.result(progress=False)
        assert handle.state == "failed"
        with pytest.raises(UsageError, match='Did you mean "Toy"'):
            handle.result()


@pytest.mark.long
def test_a_handle_is_waited_for_and_paused_and_a_comparison_has_one_too() -> None:
    sets = {"A": {}, "B": {"temperature_init": 2.0}}
    with tempopt.compare(SPEC, sets, name="two", workers=1, wait=False) as handle:
        with pytest.raises(TimeoutError, match='Study "two" has not ended within 0 s'):
            handle.result(0, progress=False)
        assert handle.state in ("starting", "running")
        assert handle.result(progress=False).comparison is not None
        assert handle.state == "done"
    spec = {**SPEC, "trainer": {"max_steps": 4000, "accelerator": "cpu"}}
    with tempopt.search(spec, workers=1, wait=False) as handle:
        while handle.state == "starting":
            time.sleep(0.2)
        snapshot = handle.progress()
        assert snapshot is not None and snapshot.study == "toy"
        handle.pause()
        assert handle.state == "paused"
        assert handle.result(progress=False).state == "paused"


DYING = f"""
import os, time, tempopt
handle = tempopt.search({SPEC!r}, workers=1, wait=False)
while handle.progress() is None or not sum(handle.progress().done.values()):
    time.sleep(0.05)
os.kill(os.getpid(), 9)
"""


@pytest.mark.long
def test_a_study_outlives_the_process_that_waited_for_it() -> None:
    process = subprocess.run([sys.executable, "-c", DYING], capture_output=True, text=True, check=False)
    assert process.returncode == -signal.SIGKILL, process.stderr
    deadline = time.monotonic() + 120
    with open_store(URL, create=False) as store:
        study = store.load_study("toy")
        while time.monotonic() < deadline and any(t.state == "running" for t in store.tickets(study.id)):
            time.sleep(0.1)
        assert not any(ticket.failures for ticket in store.tickets(study.id))
    assert tempopt.resume("toy", workers=1, progress=False).state == "done"


UNGUARDED = f"""
import tempopt
from tempopt.testing.toys import Toy

with open("begun", "a") as file:
    file.write("x")

class Model(Toy):
    pass

result = tempopt.search({{**{SPEC!r}, "model": Model}}, workers=2, progress=False)
print(result.state)
"""


@pytest.mark.long
def test_a_script_without_a_guard_runs_once() -> None:
    Path("train.py").write_text(UNGUARDED, encoding="utf-8")
    process = subprocess.run([sys.executable, "train.py"], capture_output=True, text=True, check=False)
    assert process.stdout == "done\n", process.stderr
    assert Path("begun").read_text("utf-8") == "x"
