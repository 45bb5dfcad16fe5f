"""Classes in a spec given as Python data, and the module that those of the running program are written to."""

from __future__ import annotations

import importlib
import linecache
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tempopt.api.classes import load_portable_spec
from tempopt.api.main_module import FOLDER
from tempopt.errors import SpecError
from tempopt.spec.study_spec import StudySpec
from tempopt.testing.toys import Toy, ToyData
from tests.toy_study import toy_spec

Run = Callable[..., ModuleType]

SPEC: dict[str, Any] = {
    **toy_spec(trials=2),
    "model": {"class_path": "tempopt.testing.toys.Toy"},
    "data": {"class_path": "tempopt.testing.toys.ToyData"},
}


def spec(**sections: Any) -> StudySpec:
    return load_portable_spec({**SPEC, **sections})


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the current folder, which is empty and importable."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [module_name for module_name in sys.modules if module_name.partition(".")[0] == FOLDER]:
        del sys.modules[name]


@pytest.fixture
def script(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return what runs a text as the program's file."""

    def run(text: str) -> ModuleType:
        main = ModuleType("__main__")
        monkeypatch.setitem(sys.modules, "__main__", main)
        path = folder / "train.py"
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        linecache.checkcache(str(path))
        main.__file__ = str(path)
        exec(compile(path.read_text(encoding="utf-8"), str(path), "exec", dont_inherit=True), vars(main))
        return main

    return run


@pytest.fixture
def cells(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return what runs texts as the cells of a notebook, each with its lines where IPython has them."""
    main = ModuleType("__main__")
    history: list[str] = [""]
    shell = SimpleNamespace(user_ns={"In": history})
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))  # type: ignore[misc]
    monkeypatch.setitem(sys.modules, "__main__", main)

    def run(*texts: str) -> ModuleType:
        for text in map(textwrap.dedent, texts):
            history.append(text)
            name = f"/nowhere/ipykernel_1/{len(history)}.py"
            linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
            exec(compile(text, name, "exec", dont_inherit=True), vars(main))
        return main

    return run


def load_module(path: str) -> ModuleType:
    importlib.invalidate_caches()
    return importlib.import_module(path.rpartition(".")[0])


# ---- classes of modules


@pytest.mark.parametrize(
    "model_class", [Toy, {"class_path": Toy}, {"class_path": "tempopt.testing.toys.Toy"}]
)
def test_a_class_is_given_as_itself_or_as_its_path(model_class: object) -> None:
    assert spec(model=model_class).model == {"class_path": "tempopt.testing.toys.Toy", "init_args": {}}
    assert not Path(FOLDER).exists()


def test_callbacks_and_arguments_can_be_classes() -> None:
    class_spec = spec(
        model={"class_path": Toy, "init_args": {"inner": {"class_path": ToyData}, "kind": ToyData}},
        trainer={"max_steps": 1, "callbacks": [ToyData, {"class_path": ToyData, "init_args": {"a": 1}}]},
    )
    path = "tempopt.testing.toys.ToyData"
    assert class_spec.model["init_args"] == {"inner": {"class_path": path}, "kind": path}
    assert class_spec.trainer["callbacks"] == [
        {"class_path": path},
        {"class_path": path, "init_args": {"a": 1}},
    ]


@pytest.mark.parametrize("value", [ToyData(), object(), np.int64(3)])
def test_an_object_in_place_of_plain_data_is_refused(value: object) -> None:
    class_name = type(value).__qualname__
    with pytest.raises(SpecError, match=rf"data: given an object of the class {class_name}.*class_path"):
        spec(data=value)
    with pytest.raises(SpecError, match=rf"trainer.logger\[0\]: given an object of the class {class_name}"):
        spec(trainer={"max_steps": 1, "logger": [value]})


def test_a_class_that_no_name_leads_to_is_refused() -> None:
    class Local(Toy):
        pass

    with pytest.raises(SpecError, match=r"model: the class .*Local is defined inside of a function"):
        spec(model=Local)
    Local.__qualname__ = "Toy"
    Local.__module__ = "tempopt.testing.toys"
    with pytest.raises(SpecError, match=r"model: .*toys.Toy is another one by now"):
        spec(model=Local)


# ---- classes of the running program

PROGRAM = """
    import collections.abc
    import json as js
    from math import inf, sqrt as root
    from dataclasses import dataclass
    from tempopt.testing.toys import Toy

    WIDTH = 8
    SIZES = {"a": [1, (2.5, None)]}
    untouched = open

    def half(number):
        return other(number) / WIDTH

    def other(number):
        return -number if number < 0 else number

    @dataclass
    class Config:
        width: int = WIDTH
        sizes: "collections.abc.Mapping" = None

    class Base(Toy):
        limit = inf

    class Model(Base):
        def __init__(self, config: Config = Config()):
            self.config = config

        def found(self):
            return half(root(16) + len(js.dumps(SIZES))), [self.again(each) for each in (1, 2)]

        @classmethod
        def again(cls, number):
            return Late.number + number

    class Late(Model):
        number = sum(WIDTH for _ in range(2))

    model = object()
"""


def test_a_class_of_a_script_is_written_with_all_that_it_uses(script: Run) -> None:
    main = script(PROGRAM)
    path = spec(model=main.Model).model["class_path"]
    module = load_module(path)
    assert path == f"{FOLDER}.{module.__name__.rpartition('.')[2]}.Model"
    model = module.Model()
    assert model.found() == main.Model().found()
    assert model.config.width == 8 and model.limit == float("inf")
    assert not {"model", "untouched", "SPEC"} & set(vars(module))


def test_a_path_into_the_program_is_the_class(script: Run) -> None:
    main = script(PROGRAM)
    by_class = spec(model=main.Model)
    assert spec(model={"class_path": "__main__.Model"}).model == by_class.model
    assert (
        load_portable_spec(StudySpec.parse({**SPEC, "model": {"class_path": "__main__.Model"}}, source=""))
        == by_class
    )


def test_classes_of_one_spec_share_a_module_and_a_change_makes_another(script: Run) -> None:
    main = script(PROGRAM)
    first = spec(model=main.Model, trainer={"max_steps": 1, "callbacks": [main.Late]})
    late = first.trainer["callbacks"][0]["class_path"]
    module = load_module(late)
    assert first.model["class_path"] == f"{module.__name__}.Model"
    assert issubclass(module.Late, module.Model)
    path_before = spec(model=main.Model).model["class_path"]
    same_script = script(PROGRAM.replace("model = object()", "model = None"))
    assert spec(model=same_script.Model, trainer=first.trainer | {"callbacks": [same_script.Late]}) == first
    changed_script = script(PROGRAM.replace("WIDTH = 8", "WIDTH = 9"))
    assert spec(model=changed_script.Model).model["class_path"] not in (
        path_before,
        first.model["class_path"],
    )


def test_annotations_that_are_not_evaluated_stay_so(script: Run) -> None:
    main = script("""
        from __future__ import annotations
        from tempopt.testing.toys import Toy, ToyData

        class Model(Toy):
            def used(self, data: ToyData, later: Nowhere) -> Model:
                return self
    """)
    module = load_module(spec(model=main.Model).model["class_path"])
    assert module.Model.used.__annotations__["later"] == "Nowhere"
    assert module.ToyData is ToyData


def test_a_class_of_a_notebook_is_that_of_the_cell_which_was_run_last(cells: Run) -> None:
    main = cells(
        "from tempopt.testing.toys import Toy\nimport torch.nn.functional\nSIZE = 1",
        "class Model(Toy):\n    def size(self):\n        return SIZE",
        "class Config:\n    size = 1",
        "class Model(Toy):\n    def size(self):\n        return torch.nn.functional, Config.size + SIZE",
        "class Config:\n    size = 20",
        "SIZE = 300",
        "Other = Model",
    )
    module = load_module(spec(model=main.Model).model["class_path"])
    assert module.Model.size(None)[1] == 320
    assert not hasattr(module, "Other")


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("import threading\nlock = threading.Lock()\n", r"lock \(of type lock\)"),
        ("lock = lambda: 1\n", "lock, which is a lambda"),
        ("class Other:\n    pass\nlock = Other()\n", r"lock \(of type Other\)"),
        ("lock = float('nan')\n", r"lock \(of type float\)"),
        ("lock = [0] * 30_000\n", r"lock \(of type list\)"),
        (
            "def make():\n    class lock:\n        pass\n    return lock\nlock = make()\n",
            "lock, which is defined in",
        ),
    ],
)
def test_what_cannot_be_written_is_named_with_the_way_out(cells: Run, cell: str, message: str) -> None:
    model = "class Model(Toy):\n    def used(self):\n        return lock, fine\n"
    main = cells("from tempopt.testing.toys import Toy\nfine = 1\n", cell, model)
    with pytest.raises(SpecError, match=message) as error:
        spec(model=main.Model)
    assert "%%writefile my_module.py" in str(error.value) and "my_module.Model" in str(error.value)
    assert "  fine" not in str(error.value)
    assert not Path(FOLDER).exists()


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("def step(self):\n    return 2\nModel.step = step", "was given step after its definition"),
        ("def used(self):\n    return 2\nModel.used = used", "was given used after its definition"),
        ("class Base(Toy):\n    pass", "base Base has been defined anew since"),
    ],
)
def test_a_class_that_is_no_longer_what_its_source_says_is_refused(
    cells: Run, cell: str, message: str
) -> None:
    main = cells(
        "from tempopt.testing.toys import Toy\nclass Base(Toy):\n    pass\n",
        "class Model(Base):\n    def used(self):\n        return 1\n",
        cell,
    )
    with pytest.raises(SpecError, match=message):
        spec(model=main.Model)


def test_what_the_program_imports_later_makes_no_other_module(cells: Run) -> None:
    text = """
        from tempopt.testing.toys import Toy
        import torch.nn.functional

        class Model(Toy):
            def used(self):
                return torch.nn.functional
    """
    first = spec(model=cells(text).Model)
    main = cells("import torch\nimport torch.utils.data\nimport tempopt.testing.toys\nx = 1")
    assert spec(model=main.Model) == first
    assert load_module(first.model["class_path"]).Model.used(None).gelu


def test_a_class_of_a_timed_cell_has_a_source(cells: Run) -> None:
    body = "from tempopt.testing.toys import Toy\nclass Model(Toy):\n    def used(self):\n        return 7\n"
    main = cells("def get_ipython():\n    return __builtins__['__import__']('IPython').get_ipython()\n")
    shell = sys.modules["IPython"].get_ipython()
    shell.run_cell_magic = lambda magic, line, cell: exec(compile(cell, "<timed exec>", "exec"), vars(main))
    cells(f"get_ipython().run_cell_magic('time', '', {body!r})")
    assert load_module(spec(model=main.Model).model["class_path"]).Model.used(None) == 7


def test_a_class_without_source_is_refused(cells: Run) -> None:
    main = cells("from tempopt.testing.toys import Toy\nexec('class Model(Toy): pass')")
    with pytest.raises(SpecError, match="Model, which has no source that can be read"):
        spec(model=main.Model)
    with pytest.raises(SpecError, match="has no class or function Nothing"):
        spec(model={"class_path": "__main__.Nothing"})


def test_a_class_that_was_defined_anew_is_not_taken_for_the_one_given(cells: Run) -> None:
    source = "from tempopt.testing.toys import Toy\nclass Model(Toy):\n    pass\n"
    first_class = cells(source).Model
    cells(source)
    with pytest.raises(SpecError, match=r"__main__\.Model is another one by now"):
        spec(model=first_class)


# ---- functions of programs

FUNCTION_SPEC = {
    "study": {"name": "program", "metric": "loss", "direction": "minimize"},
    "search": {"lr": {"low": 0.1, "high": 1.0, "baseline": 0.5}},
}

TRAIN = """
    import math

    CENTRE = 0.3


    def loss(value):
        return (value - CENTRE) ** 2


    def train(run):
        return math.sqrt(loss(run.params["lr"]))
    """


def test_a_function_of_a_cell_is_written_with_all_that_it_uses(cells: Run) -> None:
    main = cells(TRAIN)
    program = load_portable_spec({**FUNCTION_SPEC, "program": {"function": main.train}}).program
    assert program is not None and program.function is not None
    module = load_module(program.function)
    run = SimpleNamespace(params={"lr": 0.7})
    assert module.train(run) == main.train(run) and not hasattr(module, "run")
    # a cell that is run again with another constant defines another function
    changed_main = cells(TRAIN.replace("0.3", "0.4"))
    changed_spec = load_portable_spec({**FUNCTION_SPEC, "program": {"function": changed_main.train}})
    assert changed_spec.program is not None and changed_spec.program.function != program.function


def test_a_function_of_a_module_is_named_by_its_path_and_an_inner_one_is_refused() -> None:
    spec_of_path = load_portable_spec({**FUNCTION_SPEC, "program": {"function": textwrap.dedent}})
    assert spec_of_path.program is not None and spec_of_path.program.function == "textwrap.dedent"

    def inner(run: object) -> float:
        return 0.0

    with pytest.raises(SpecError, match="function .*inner is defined inside"):
        load_portable_spec({**FUNCTION_SPEC, "program": {"function": inner}})
