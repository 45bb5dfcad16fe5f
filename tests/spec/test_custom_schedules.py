"""A schedule outside tempopt, from a package of one's own: one dataclass, and nothing else is edited."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tempopt.api.calls import search
from tempopt.class_loading import load_schedule
from tempopt.cli import main
from tempopt.errors import SpecError
from tempopt.report.export import to_python, to_yaml
from tempopt.service.studies import load_study
from tempopt.spec.custom_schedules import import_schedules
from tempopt.spec.study_spec import StudySpec
from tempopt.temperature import Schedule, TemperatureParameters, drop_unused_params, same_training
from tempopt.temperature.custom_schedules import schedule_class
from tempopt.testing import check_schedule
from tests.toy_study import SMALL, URL, tickets, toy_spec, work_in

KNEE = '''
    from dataclasses import dataclass
    from pathlib import Path

    from tempopt.temperature import Schedule, number

    Path("imported").touch()


    @dataclass(frozen=True, slots=True, kw_only=True)
    class Knee(Schedule):
        """Geometric from temperature_init to temperature_final until the knee, and there from then on."""

        temperature_init: float
        temperature_final: float
        knee: float = number(0.5, low=0.01, high=1.0)

        def _at(self, progress: float) -> float:
            fraction = min(progress / self.knee, 1.0)
            return self.temperature_init ** (1.0 - fraction) * self.temperature_final**fraction
'''


@pytest.fixture
def package(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the name of a package of one module with the schedule Knee, in a folder of its own."""
    name = f"own_{abs(hash(request.node.nodeid))}"
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").touch()
    (tmp_path / name / "shapes.py").write_text(textwrap.dedent(KNEE))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def own_spec(package: str, **study: Any) -> dict[str, Any]:
    space = {
        "temperature_init": {"low": 0.25, "high": 4.0},
        "temperature_final": {"low": 0.25, "high": 4.0},
        "schedule": ["cosine", f"{package}.shapes:Knee"],
        "schedule_args.knee": {"low": 0.1, "high": 0.9},
    }
    return toy_spec(space=space, **{**SMALL, "trials": 4, **study})


@pytest.mark.long
def test_a_schedule_of_a_temporary_package_is_searched_and_its_winner_exported(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    work_in(tmp_path, monkeypatch)
    name = f"{package}.shapes:Knee"
    first = {"schedule": name, "temperature_init": 3.0, "temperature_final": 0.4, "schedule_args.knee": 0.25}
    result = search(own_spec(package, enqueue=[first]), storage=URL, workers=1)
    assert result.verdict is not None
    runs = [t.parameters for t in tickets() if t.kind == "search" and t.parameters is not None]
    assert runs[0] == first
    assert {params["schedule"] for params in runs} >= {name}
    assert all(("schedule_args.knee" in params) == (params["schedule"] == name) for params in runs)

    module, _ = name.split(":")
    read = [sys.executable, "-m", "tempopt"]
    (tmp_path / "imported").unlink()
    show_process = subprocess.run([*read, "show", "toy"], capture_output=True, text=True, check=False)
    assert not (tmp_path / "imported").exists()
    assert show_process.returncode == 0 or f"tempopt --import {module} " in show_process.stderr
    trusted = subprocess.run(
        [*read, "--import", module, "show", "toy", "--json"], capture_output=True, text=True, check=True
    )
    assert (tmp_path / "imported").exists()
    assert json.loads(trusted.stdout)["verdict"] is not None
    loaded_result = load_study(URL, "toy")
    assert to_yaml(loaded_result)
    assert "Toy(" in to_python(loaded_result)


def test_equal_effects_are_seen(package: str) -> None:
    import_schedules(StudySpec.parse(own_spec(package), source="a test"))
    name = f"{package}.shapes:Knee"
    ends = {"temperature_init": 2.0, "temperature_final": 0.5, "schedule_args.knee": 0.3}
    assert drop_unused_params({**ends, "schedule": name, "curvature": 3.0}) == {**ends, "schedule": name}
    assert "schedule_args.knee" not in drop_unused_params({**ends, "schedule": "cosine"})
    assert "schedule_args.other" not in drop_unused_params(
        {**ends, "schedule": name, "schedule_args.other": 1.0}
    )
    flat = {**ends, "temperature_final": 2.0, "schedule": name}
    assert same_training(flat, {"temperature_init": 2.0})


FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"schedule": ["cosine", "{}.shapes:Knob"]}, r'class in ".*shapes" "Knob".*Knee'),
    ({"schedule": ["cosine", "{}.shape:Knee"]}, r'module in ".*" "shape".*shapes'),
    ({"schedule": ["cosine", "pathlib:Path"]}, r'"pathlib.Path" is not a Schedule'),
    ({"schedule_args.knees": [0.1, 0.2]}, r"search.schedule_args.knees: none of .* has a number knees"),
    ({"schedule_args.knee": {"low": 0.5, "high": 2.0}}, r"knee=2.0 is out of range. .*0.01 to 1"),
    ({"schedule_args.knee": [0.5, "0.7"]}, r"schedule_args.knee='0.7' is a str"),
    ({"schedule": ["cosine", "linear"]}, r"search.schedule_args.knee: it changes nothing"),
    ({"schedule": ["cosine", "{}.shapes.Knee"]}, r'Unknown schedule ".*shapes.Knee".*Or give a class'),
    ({"schedule": ["cosine", "{}.shapes:Schedule"]}, r"is the base class of schedules"),
    ({"schedule": ["cosine", "__main__:Knee"]}, r"running program, which workers cannot import"),
    ({"schedule_args.knee": {"low": 0.1, "high": 0.9, "baseline": 0.5}}, r"given a baseline, but at τ = 1"),
]


@pytest.mark.parametrize(("change", "message"), FAULTS)
def test_a_wrong_name_or_number_is_told_before_anything_is_trained(
    package: str, change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    spec = own_spec(package)
    search_changes = {
        name: [template.format(package) for template in value] if name == "schedule" else value
        for name, value in change.items()
    }
    spec["search"] |= search_changes
    if "schedule_args.knees" in change:
        del spec["search"]["schedule_args.knee"]
    with pytest.raises(SpecError, match=message):
        search(spec, storage=URL, workers=1)
    assert not (tmp_path / "tempopt.db").exists()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (KNEE.replace("    @dataclass(frozen=True, slots=True, kw_only=True)\n", ""), "is no dataclass"),
        (KNEE.replace("number(0.5, low=0.01, high=1.0)", "0.5"), "Knee.knee has no range"),
        (KNEE.replace("        temperature_final: float\n", ""), "has no field temperature_final"),
        (KNEE.replace("number(0.5,", "number(1.5,"), "default 1.5 is not from 0.01 to 1.0"),
        (KNEE.replace("def _at", "def at"), "has no method _at"),
        (KNEE.replace("return self", "return -self"), "Return a number from 1e-06 to"),
        (
            KNEE.replace("return self", "return math.nan * self").replace(
                "    from pathlib", "    import math\n    from pathlib"
            ),
            "is nan at progress 0.0. Return a number",
        ),
        (KNEE.replace("return self", "return 1e30 * self"), "Return a number from 1e-06 to"),
        (
            KNEE.replace("return self", 'return "" or self').replace("**fraction", '**fraction and "hot"'),
            "is 'hot' at progress",
        ),
        (KNEE.replace("return self", "return 1 / 0 * self"), "raised ZeroDivisionError at progress 0.0"),
        (KNEE.replace("return self", "return 0.5 * self"), "There a schedule is at|stays between"),
    ],
)
def test_a_class_that_is_not_declared_as_a_schedule_is_refused(
    package: str, source: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / package / "shapes.py").write_text(textwrap.dedent(source))
    with pytest.raises(SpecError, match=message):
        import_schedules(StudySpec.parse(own_spec(package), source="a test"))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "return self.temperature_init * (1.0 - progress)",
            "not between its temperatures|not temperature_final|Return a number",
        ),
        ("return self.temperature_init", "not temperature_final"),
        ("return self.temperature_final if progress > self.knee else 1.0", "not between|not temperature_"),
        ("return float('nan')", "nan"),
    ],
)
def test_the_shipped_test_finds_a_broken_promise(
    package: str, body: str, message: str, tmp_path: Path
) -> None:
    lines = textwrap.dedent(KNEE).splitlines()
    (tmp_path / package / "shapes.py").write_text("\n".join([*lines[:-2], f"        {body}", ""]))
    load_schedule(f"{package}.shapes:Knee", where="here")
    with pytest.raises((AssertionError, SpecError), match=message):
        check_schedule(schedule_class(f"{package}.shapes:Knee"))


def test_reading_a_spec_imports_nothing(package: str, tmp_path: Path) -> None:
    StudySpec.from_json(StudySpec.parse(own_spec(package), source="a test").to_json())
    with pytest.raises(SpecError, match=f"tempopt --import {package}.shapes "):
        TemperatureParameters(schedule=f"{package}.shapes:Knee").plan(1)
    assert not (tmp_path / "imported").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--import"], "--import needs the name of a module"),
        (["--import", "no_such_module", "list"], 'There is no module "no_such_module"'),
    ],
)
def test_an_import_that_cannot_be_done_is_told(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) != 0
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("value", [Schedule, int, "text"])
def test_what_is_no_schedule_of_ones_own_is_not_tested(value: Any) -> None:
    with pytest.raises(SpecError, match="is not a schedule"):
        check_schedule(value)


def test_a_schedule_that_goes_wrong_between_two_points_ends_the_training_that_meets_it(package: str) -> None:
    import_schedules(StudySpec.parse(own_spec(package), source="a test"))
    knee = schedule_class(f"{package}.shapes:Knee")
    broken_schedule = type(
        "Broken", (knee,), {"_at": lambda self, progress: -1.0 if progress == 0.3 else 1.0}
    )
    schedule = broken_schedule(temperature_init=1.0, temperature_final=1.0)
    assert schedule(0.25) == 1.0
    with pytest.raises(SpecError, match=r"is -1.0 at progress 0.3"):
        schedule(0.3)
