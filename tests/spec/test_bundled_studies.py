from __future__ import annotations

from pathlib import Path

import pytest

from tempopt.errors import SpecError
from tempopt.spec import load
from tempopt.spec.load import bundled_specs, find_spec


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with two specs, and another folder to stand in."""
    package = tmp_path / "checkout" / "tempopt"
    package.mkdir(parents=True)
    studies = package.parent / "studies"
    studies.mkdir()
    for name in ("max_retrieval", "digits"):
        (studies / f"{name}.yaml").write_text("study: {}\n")
    monkeypatch.setattr(load, "__file__", str(package / "spec" / "load.py"))
    other_folder = tmp_path / "elsewhere"
    other_folder.mkdir()
    monkeypatch.chdir(other_folder)
    return package


def test_a_checkout_has_its_specs_beside_the_package(package: Path) -> None:
    assert find_spec("digits") == package.parent / "studies" / "digits.yaml"


def test_a_wheel_has_its_specs_inside_the_package(package: Path) -> None:
    inner_folder = package / "_studies"
    inner_folder.mkdir()
    (inner_folder / "max_retrieval.yaml").touch()
    assert bundled_specs(package) == {"max_retrieval": inner_folder / "max_retrieval.yaml"}


def test_a_file_of_ones_own_goes_before_a_bundled_spec(package: Path) -> None:
    own_path = Path("digits")
    own_path.touch()
    assert find_spec("digits") == own_path


def test_a_folder_of_that_name_does_not_hide_a_bundled_spec(package: Path) -> None:
    Path("digits").mkdir()
    assert find_spec("digits") == package.parent / "studies" / "digits.yaml"


def test_a_name_that_is_not_known_is_answered_with_those_that_are(package: Path) -> None:
    with pytest.raises(SpecError, match=r'Did you mean "max_retrieval"\? Known: digits, max_retrieval\.'):
        find_spec("max_retreival")


def test_a_file_that_is_not_there_is_answered_with_the_bundled_name(package: Path) -> None:
    with pytest.raises(SpecError, match='A spec "digits" comes with tempopt: give just that name'):
        find_spec("studies/digits.yaml")
    with pytest.raises(SpecError, match=r"no file none\.yaml in .*elsewhere\. .*digits, max_retrieval"):
        find_spec("none.yaml")


def test_a_folder_is_no_spec(package: Path) -> None:
    with pytest.raises(SpecError, match="is a folder"):
        find_spec(package.parent / "studies")
