"""What a person can get wrong ends in one message of at most 2 kB, never in a traceback: a corpus and a fuzz.

Each line of ``typed.txt`` is a command as a shell reads it; ``@N@`` stands for N letters, ``#N#`` for digits.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import signal
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tempopt import cli
from tests.cli.test_bad_input import SPEC
from tests.report.made_study import World, make, write
from tests.spec.test_spec_fuzz import anything, fuzz_spec

# A driver leaves a socket open where it cannot connect.
pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(1200),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

CORPUS = (Path(__file__).parent / "typed.txt").read_text(encoding="utf-8").splitlines()
CODES = (0, 1, 2, 3, 4, 130)
# A guard against what never ends, not a measure of speed: the slowest answer takes a hundredth of it.
CPU_SECONDS = 60
FUZZED = 3000


# What begins once everything that was typed is found to be right.
LATER = (
    *("service.studies.StudyRunner.run", "service.studies.start_workers", "service.forecast.forecast_study"),
    *("cli.init._inspect", "cli.login._request_identity", "storage.http.connection.ServerConnection.request"),
    "cli.launch.make_launcher",
    *("server.serving._Server.run", "server.mcp.serving.serve"),
)


class HangError(BaseException):
    """A command used more CPU time than any answer needs; no handler of errors catches it."""


@dataclass
class Tally:
    """What came of all inputs together."""

    inputs: int = 0
    faults: list[str] = field(default_factory=list)


def _hang(number: int, frame: object) -> None:
    raise HangError


def _check_answer(words: list[str], tally: Tally) -> None:
    """Carry out a command in this process, and note what is wrong with how it answered."""
    out, err = io.StringIO(), io.StringIO()
    code: object = None
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
            # what a library warns of is no message of ours, and is no error to who types
            warnings.simplefilter("ignore")
            code = cli.main(words)
    except SystemExit as exit_error:
        # argparse prints help and ends so
        code = exit_error.code or 0
    except pytest.fail.Exception:
        # the time of the whole test is up
        raise
    except BaseException as error:
        code = repr(error)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    stderr = err.getvalue()
    tally.inputs += 1
    if code not in CODES or "Traceback" in stderr or len(stderr) > 2000:
        tally.faults.append(
            f"{shlex.join(words)[:300]!r} -> {code}, {len(stderr)} characters: {stderr[-300:]!r}"
        )


def _written_out(line: str) -> list[str]:
    line = re.sub(r"@(\d+)@", lambda match: "x" * int(match[1]), line)
    return shlex.split(re.sub(r"#(\d+)#", lambda match: "9" * int(match[1]), line))


@pytest.fixture
def command_tally(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tally]:
    """A folder with a finished study, a spec and a pipe; yield where answers are noted.

    Trainings, servers and imports do not begin.
    """
    monkeypatch.chdir(tmp_path)
    for target in LATER:
        monkeypatch.setattr(f"tempopt.{target}", _interrupt)
    monkeypatch.setattr("tempopt.report.dashboard.Dashboard.__enter__", _close_dashboard)
    # a study that was paused by what was typed before is watched for good
    monkeypatch.setattr("tempopt.cli.watch.time", SimpleNamespace(sleep=_interrupt))
    write("sqlite:///tempopt.db", make(World(trials=4, layers=1, heads=1, reports=2)))
    Path("toy.yaml").write_text(SPEC, encoding="utf-8")
    Path("folder").mkdir()
    os.mkfifo("pipe")
    previous_handler = signal.signal(signal.SIGPROF, _hang)
    yield Tally()
    signal.signal(signal.SIGPROF, previous_handler)


def _interrupt(*words: Any, **kwargs: Any) -> Any:
    raise KeyboardInterrupt


def _close_dashboard(dashboard: Any) -> Any:
    dashboard._server.server_close()
    dashboard._store.close()
    raise KeyboardInterrupt


def test_odd_input_that_was_found_once_is_answered_in_words(command_tally: Tally) -> None:
    for line in CORPUS:
        if line and not line.startswith("# "):
            _check_answer(_written_out(line), command_tally)
    assert command_tally.inputs > 200
    assert not command_tally.faults, "\n".join(command_tally.faults)


NAMES = ["", "-", "--", ".", "..", "/", "~", "~no-such-user/x", "pipe", "folder", "toy.yaml", "toy"]
NUMBERS = ["pairs", "search-0", "nan", "-1", "0", "1", "2", "+1", "+2", "1e400", "*", "${HOME}"]
BROKEN = ["[" * 200, "{a: " * 60, "&a [*a]", "!!int abc", "!!timestamp x", "a: b: c", "\0", "\udcff"]
ODD = st.one_of(
    *(st.sampled_from(words) for words in (NAMES, NUMBERS, BROKEN)),
    st.integers().map(str),
    st.builds(
        lambda part, power: part * 10**power, st.sampled_from("9 x é [b] a: ? @".split()), st.integers(1, 5)
    ),
    st.text(st.characters(exclude_categories=()), max_size=20),
)
KEYS = """
study study.trials study.name study.metric study.seeds study.seeds.confirm study.arms study.sampler
study.pruner study.guards study.enqueue study.limits study.seed search search.lr search.temperature_init
search.schedule search.temperature_init.high model model.lr model.class_path data data.class_path
trainer trainer.max_steps trainer.val_check_interval trainer.devices trainer.strategy attach resources.workers
""".split()
FORMS = ["{name: tpe, n_startup_trials: %s}", "{name: gp, independent_sampler: %s}", "{low: %s}", "[%s]"]
VALUES = st.one_of(
    ODD,
    anything.map(lambda value: yaml.safe_dump(value, default_flow_style=True)),
    st.builds(lambda form, value: form % value, st.sampled_from(FORMS), ODD),
)
OPTIONS = "bogus ssl_ca charset port host connect_timeout row_factory".split()
SCHEMES = "sqlite postgresql mysql mariadb postgres mysql+pymysql oracle".split()
# No name is looked up, and nothing listens at port 1.
HOSTS = ["", "127.0.0.1:1", "127.0.0.1:99999", "127.0.0.1:x", "[::1]:1", "[::1", "..a", "x" * 300]
URLS = ODD | st.builds(
    lambda scheme, user, host, base, query: f"{scheme}://{user}{host}/{base}{query}",
    st.sampled_from(SCHEMES),
    st.sampled_from(["", "u@", "u:p@", "u:p@q@", ":@", "%00:%ff@"]),
    st.sampled_from(HOSTS),
    ODD,
    st.just("") | st.builds(lambda name, value: f"?{name}={value}", st.sampled_from(OPTIONS) | ODD, ODD),
)
SPECS = st.one_of(
    ODD,
    fuzz_spec().map(lambda data: yaml.safe_dump(data, allow_unicode=True)),
    st.tuples(st.integers(0, len(SPEC)), st.integers(0, 30), ODD).map(
        lambda edit: SPEC[: edit[0]] + edit[2] + SPEC[edit[0] + edit[1] :]
    ),
)
# Both would leave nothing for later inputs, or import what is installed.
LEFT_OUT = ("--yes", "--import")
# What may be given, so that a command gets as far as what is odd in it.
VALID = {
    "spec": "toy.yaml",
    "name": "pairs",
    "sets": "{temperature_init: 2}",
    "ticket": "search-0",
    "action": "upgrade",
    "module": "toy_modules:Toy",
    "shell": "bash",
    "words": "show",
    "about": "show",
    "--storage": "tempopt.db",
    "--trials": "+2",
    "--pairs": "4",
    "--max-runs": "9",
    "--workers": "1",
    "--attempt": "1",
    "--watch": "1",
    "--set": "study.trials=3",
    "--launch": "a=b",
    "--format": "python",
    "--plotlyjs": "cdn",
    "--port": "0",
    "--output": "out.txt",
    "--checkpoints": "runs",
    "--earlier": "pairs",
}


@st.composite
def commands(draw: st.DrawFn) -> tuple[list[str], str | None]:
    """Return a command line of any command, and what is written to ``odd.yaml`` before."""
    name = draw(st.sampled_from([*cli.COMMANDS]))
    words, spec = [name], None
    for argument in cli.COMMANDS[name].arguments:
        option = argument.names[-1]
        is_option, is_odd = option.startswith("-"), draw(st.integers(0, 2)) == 0
        if option in LEFT_OUT or (is_option and draw(st.integers(0, 4))):
            continue
        words += [option] * is_option
        if argument.settings.get("action") not in (None, "append"):
            continue
        if not is_odd:
            words.append(VALID.get(option, "toy"))
        elif option == "spec":
            spec = draw(SPECS)
            words.append("odd.yaml")
        elif option == "--set":
            words.append(f"{draw(st.sampled_from(KEYS) | ODD)}={draw(VALUES)}")
        else:
            words.append(draw(URLS if option == "--storage" else ODD | VALUES))
    return words, spec


def test_whatever_is_typed_is_answered_in_words(command_tally: Tally) -> None:
    @settings(max_examples=FUZZED, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
    @given(commands())
    def any_command(command_line: tuple[list[str], str | None]) -> None:
        words, spec = command_line
        if spec is not None:
            Path("odd.yaml").write_bytes(
                spec.encode("utf-8", "surrogateescape" if "\udcff" in spec else "replace")
            )
        _check_answer(words, command_tally)

    any_command()
    assert command_tally.inputs >= FUZZED
    assert not command_tally.faults, "\n".join(command_tally.faults)
