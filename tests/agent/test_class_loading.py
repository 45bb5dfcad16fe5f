from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tempopt.class_loading import load_class, module_name, refuse_module
from tempopt.errors import SpecError

Write = Callable[[str, str], None]


class Base:
    """What is asked for in these tests."""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Stand in an empty folder; what is written there can be imported, and is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    modules_before = dict(sys.modules)

    def writer(name: str, text: str) -> None:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        importlib.invalidate_caches()

    yield writer
    for name in set(sys.modules) - set(modules_before):
        if name.split(".")[0] in ("theirs", "package", "lightning_modules", "none"):
            del sys.modules[name]
    sys.modules.update(modules_before)


def _message(class_path: str) -> str:
    with pytest.raises(SpecError) as error:
        load_class(class_path, base=Exception, where="model.class_path")
    return str(error.value)


def test_the_current_folder_goes_before_what_is_installed(write: Write) -> None:
    write("theirs.py", "class Mine(Exception): here = True")
    sys.path.append(str(Path.cwd()))
    assert vars(load_class("theirs.Mine", base=Exception, where="model"))["here"]
    assert sys.path[0] == str(Path.cwd())


def test_a_file_in_the_folder_hides_no_module_of_the_standard_library(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("colorsys.py", "class Mine(Exception): ...")
    write("theirs.py", "import colorsys\nclass Mine(Exception): converted = colorsys.rgb_to_hsv")
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    assert load_class("theirs.Mine", base=Exception, where="model").__name__ == "Mine"
    message = _message("colorsys.Mine")
    assert '"colorsys" is a module of Python\'s standard library, which hides yours. Rename yours.' in message


@pytest.mark.parametrize(
    ("files", "class_path", "message"),
    [
        (["theirs.py"], "thiers.Mine", 'model.class_path: Unknown module "thiers". Did you mean "theirs"?'),
        ([], "theirs.Mine", 'There is no module "theirs".'),
        (
            ["package/__init__.py", "package/model.py"],
            "package.modle.Mine",
            'Unknown module in "package" "modle". Did you mean "model"?',
        ),
        (["theirs.py"], "theirs.more.Mine", '"theirs" is a module, not a package'),
        (["theirs.py"], "theirs.Mien", 'Unknown class in "theirs" "Mien". Did you mean "Mine"? Known: Mine.'),
        (["theirs.py"], "theirs.Other", '"theirs.Other" is not a Exception. Give one of Mine.'),
        (["theirs.py"], "theirs.make", '"theirs.make" is a function, not a class.'),
    ],
)
def test_what_is_not_there_is_answered_with_what_is(
    write: Write, files: list[str], class_path: str, message: str
) -> None:
    for file in files:
        write(file, "class Mine(Exception): ...\nclass Other: ...\ndef make(): ...")
    assert message in _message(class_path)


@pytest.mark.parametrize(
    ("class_path", "message"),
    [
        ("theirs", "a module, not a class. Name the class as well: theirs.Mine. It also has More."),
        ("theirs.py", "a module, not a class. Name the class as well: theirs.Mine."),
        ("none", "a module, not a class. It has no Exception."),
        ("os.path", "a module, not a class. It has no Exception."),
        ("thiers", 'Unknown module "thiers". Did you mean "theirs"?'),
    ],
)
def test_a_module_where_a_class_is_asked_for_is_answered_with_its_classes(
    write: Write, class_path: str, message: str
) -> None:
    write("theirs.py", "class Mine(Exception): ...\nclass More(Exception): ...")
    write("none.py", "")
    with pytest.raises(SpecError) as error:
        refuse_module(module_name(class_path), base=Exception, where="init")
    assert message in str(error.value)
    refuse_module("theirs.Mine", base=Exception, where="init")


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ("import torhc", "theirs.py:1: ModuleNotFoundError: No module named 'torhc'"),
        ("\n\nraise ValueError('own')", "theirs.py:3: ValueError: own"),
        ("x = (", "theirs.py:1: SyntaxError: '(' was never closed"),
        ("import sys\nsys.exit(3)", "theirs.py:2: SystemExit: 3"),
        (
            "import json\njson.loads('{')",
            "theirs.py:2: json.decoder.JSONDecodeError: Expecting",
        ),
    ],
)
def test_their_own_error_is_shown_and_not_hidden(write: Write, text: str, fragment: str) -> None:
    write("theirs.py", text)
    message = _message("theirs.Mine")
    assert '"theirs" was found, but importing it failed at' in message
    assert fragment in message
