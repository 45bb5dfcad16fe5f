from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tempopt.errors import SpecError
from tempopt.spec.program import Program
from tempopt.spec.search_space import arm_parameters, parse_search
from tempopt.training import build as room
from tempopt.training.build import build, check_space, prepare

MODULE = """
import enum
from dataclasses import dataclass
from typing import Any, Callable, Literal, Optional

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader

from tempopt.training.module import TemperedModule


class Kind(enum.Enum):
    pre = 1
    post = 2


@dataclass
class Head:
    width: int = 4
    bias: bool = True


class Scale(nn.Module):
    def __init__(self, factor: float = 1.0):
        super().__init__()
        self.factor = factor


class Tempered(TemperedModule):
    def __init__(self, width: int = 8, lr: float = 0.01, **temperature: Any) -> None:
        super().__init__(num_layers=2, **temperature)
        self.lr = lr
        self.layer = nn.Linear(width, width)

    def train_dataloader(self): ...
    def val_dataloader(self): ...


class Warm(Tempered):
    def __init__(self, temperature_init: float = 4.0, **kwargs: Any) -> None:
        super().__init__(temperature_init=temperature_init, **kwargs)


class Stock(L.LightningModule):
    def __init__(
        self,
        classes: int,
        width: int = 8,
        kind: Kind = Kind.pre,
        norm: Literal["rms", "layer"] = "rms",
        scale: Optional[Scale] = None,
        head: Head = Head(),
        sizes: list[int] = [1],
        make: Callable[[Any], torch.optim.Optimizer] = torch.optim.SGD,
        output_temperature: float = 1.0,
        num_steps: int = 1,
    ):
        super().__init__()
        self.arguments = {k: v for k, v in locals().items() if k not in ("self", "__class__")}

    def val_dataloader(self): ...


class Plain(L.LightningModule):
    pass


class Data(L.LightningDataModule):
    def __init__(self, root: str, batch_size: int = 4, scale: Optional[Scale] = None):
        super().__init__()
        self.root, self.batch_size, self.scale = root, batch_size, scale

    def train_dataloader(self): ...
    def val_dataloader(self): ...


class TestData(Data):
    def test_dataloader(self): ...


class Stubborn(L.LightningModule):
    def __init__(self, width: int = 1):
        raise RuntimeError("no")
"""

STOCK = {"class_path": "their_module.Stock", "init_args": {"classes": 3}}
TEMPERED = {"class_path": "their_module.Tempered", "init_args": {}}
DATA = {"class_path": "their_module.Data", "init_args": {"root": "/x"}}
AUTO = {"layers": "auto"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    """Stand in an empty folder; what is written there can be imported, and is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)

    def write(name: str, text: str) -> None:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        importlib.invalidate_caches()

    room._cached_factory.cache_clear()
    yield write
    room._cached_factory.cache_clear()
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def program(folder: Callable[[str, str], None]) -> Callable[..., Program]:
    """Return a maker of programs over the module above."""
    folder("their_module.py", MODULE)

    def make(
        model: dict[str, Any] = TEMPERED,
        data: dict[str, Any] | None = None,
        attach: dict[str, Any] | None = None,
        weights: str | None = None,
        **trainer: Any,
    ) -> Program:
        return Program(
            model=model,
            data=data,
            trainer={"max_steps": 10, **trainer},
            attach=attach,
            metric="val_loss",
            validate_at="final",
            data_seed=0,
            weights=weights,
        )

    return make


Make = Callable[..., Program]


def with_init_args(model: dict[str, Any], **arguments: Any) -> dict[str, Any]:
    return {"class_path": model["class_path"], "init_args": {**model["init_args"], **arguments}}


def test_parameters_go_where_their_names_say(program: Make) -> None:
    parameters = {
        "width": 16,
        "lr": 0.5,
        "temperature_init": 2.0,
        "schedule": "cosine",
        "temperature_final": 1.0,
        "data.batch_size": 32,
        "trainer.gradient_clip_val": 0.5,
    }
    built = build(program(data=DATA), parameters)
    module: Any = built.module
    data: Any = built.datamodule
    assert module.layer.in_features == 16
    assert module.hparams["lr"] == 0.5
    assert module.plan.temperatures(0.0) == (2.0, 2.0)
    assert module.plan.temperatures(1.0) == (1.0, 1.0)
    assert (data.root, data.batch_size) == ("/x", 32)
    assert built.trainer_kwargs == {"max_steps": 10, "gradient_clip_val": 0.5}
    assert built.temperature == {
        "temperature_init": 2.0,
        "schedule": "cosine",
        "temperature_final": 1.0,
    }


def test_what_a_parameter_makes_pointless_is_left_out(program: Make) -> None:
    model = with_init_args(TEMPERED, schedule="exponential", temperature_init=4.0, temperature_final=1.0)
    built = build(program(model), {"schedule": "constant", "temperature_init": 2.0})
    module: Any = built.module
    assert module.plan.temperatures(1.0) == (2.0, 2.0)
    assert built.temperature == {"schedule": "constant", "temperature_init": 2.0}


def test_a_module_without_data_has_its_own_loaders(program: Make) -> None:
    assert build(program(), {}).datamodule is None
    with pytest.raises(SpecError, match=r"data\.x is given, but the spec has no data: section"):
        build(program(), {"data.x": 1})


def test_every_kind_of_argument_is_read_as_lightning_reads_it(program: Make) -> None:
    model = with_init_args(
        STOCK,
        kind="post",
        norm="layer",
        scale={"class_path": "their_module.Scale", "init_args": {"factor": 3}},
        head={"width": 7},
        sizes=[3, 4],
        make={"class_path": "torch.optim.Adam", "init_args": {"lr": 0.5}},
    )
    module: Any = build(program(model, attach=AUTO), {}).module
    theirs: Any = sys.modules["their_module"]
    arguments = module.arguments
    assert arguments["kind"] is theirs.Kind.post
    assert arguments["norm"] == "layer"
    assert isinstance(arguments["scale"], theirs.Scale)
    assert arguments["scale"].factor == 3.0
    assert arguments["head"] == theirs.Head(width=7, bias=True)
    assert arguments["sizes"] == [3, 4]
    optimizer = arguments["make"]([torch.nn.Parameter(torch.zeros(1))])
    assert isinstance(optimizer, torch.optim.Adam)
    assert optimizer.defaults["lr"] == 0.5


def test_each_run_has_objects_of_its_own(program: Make) -> None:
    model = with_init_args(STOCK, scale={"class_path": "their_module.Scale"}, sizes=[1, 2])
    callback = {"class_path": "lightning.pytorch.callbacks.GradientAccumulationScheduler"}
    callback["init_args"] = {"scheduling": {4: 2}}  # type: ignore[assignment]
    stock_program = program(model, attach=AUTO, callbacks=[callback])
    first, second = build(stock_program, {"width": 1}), build(stock_program, {"width": 2})
    assert first.trainer_kwargs["callbacks"][0] is not second.trainer_kwargs["callbacks"][0]
    first_module: Any = first.module
    second_module: Any = second.module
    assert (first_module.arguments["width"], second_module.arguments["width"]) == (1, 2)
    assert first_module.arguments["scale"] is not second_module.arguments["scale"]
    first_module.arguments["sizes"].append(9)
    assert second_module.arguments["sizes"] == [1, 2]
    third_module: Any = build(stock_program, {}).module
    assert third_module.arguments["sizes"] == [1, 2]


def test_names_below_an_object_are_dotted(program: Make) -> None:
    scale = {"class_path": "their_module.Scale", "init_args": {"factor": 1.0}}
    data = with_init_args(DATA, scale=scale)
    built = build(
        program(with_init_args(STOCK, scale=scale, head={"width": 1}), data, attach=AUTO),
        {"data.scale.factor": 2.5, "scale.factor": 0.5, "head.width": 3},
    )
    datamodule: Any = built.datamodule
    module: Any = built.module
    assert datamodule.scale.factor == 2.5
    assert module.arguments["scale"].factor == 0.5
    assert module.arguments["head"].width == 3
    with pytest.raises(SpecError, match='"root.x" goes below "root", but the spec gives root no class_path'):
        build(program(STOCK, data, attach=AUTO), {"data.root.x": 1})


def test_a_choice_by_name_becomes_what_the_annotation_asks_for(program: Make) -> None:
    stock_program = program(STOCK, attach=AUTO)
    theirs: Any = None
    for name in ("post", "pre", "post"):
        module: Any = build(stock_program, {"kind": name}).module
        theirs = theirs or sys.modules["their_module"]
        assert module.arguments["kind"] is theirs.Kind[name]


def test_temperature_from_outside_is_not_given_to_the_module(program: Make) -> None:
    built = build(
        program(STOCK, attach={"layers": ["a.*"]}),
        {"temperature_init": 2.0, "schedule": "constant", "entropy_lambda": 0.0, "output_temperature": 3},
    )
    module: Any = built.module
    # a whole number is made a real one
    assert repr(module.arguments["output_temperature"]) == "3.0"
    assert built.temperature == {"temperature_init": 2.0, "schedule": "constant", "entropy_lambda": 0.0}


def test_making_draws_no_other_random_numbers_the_second_time(program: Make) -> None:
    data_program = program(data=DATA)
    prepare(data_program)

    def weights() -> torch.Tensor:
        torch.manual_seed(3)
        module: Any = build(data_program, {"width": 5, "lr": 0.5}).module
        weight: torch.Tensor = module.layer.weight.detach()
        return weight

    assert torch.equal(weights(), weights())


FAULTS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {"widht": 3}, 'Unknown argument of their_module.Tempered "widht". Did you mean "width"?'),
    ({}, {"width": 2.5}, "model.width: given 2.5 (float). Allowed for their_module.Tempered: int."),
    ({}, {"temperature_init": "hot"}, 'model.temperature_init: given the text "hot".'),
    ({}, {"schedule": "cosin"}, 'Unknown schedule "cosin". Did you mean "cosine"?'),
    (
        {},
        {"trainer.max_step": 3},
        'Unknown argument of lightning.pytorch.trainer.trainer.Trainer "max_step".',
    ),
    ({}, {"output_temperature": 2.0}, 'Unknown argument of their_module.Tempered "output_temperature".'),
    ({"data": DATA}, {"data.batchsize": 3}, 'data: Unknown argument of their_module.Data "batchsize".'),
    (
        {"model": STOCK},
        {"temperature_init": 2.0},
        "Add attach: {layers: auto} to the spec to set it from outside",
    ),
    (
        {"model": STOCK, "attach": AUTO},
        {"num_steps": 2},
        "num_steps could mean what attach: sets, or the argument",
    ),
    ({"attach": AUTO}, {}, "attach: is given, but their_module.Tempered is a TemperedModule"),
    ({"model": with_init_args(STOCK, kind="mid")}, {}, "their_module.Stock: pre, post."),
    (
        {"model": {"class_path": "their_module.Stock"}},
        {},
        "their_module.Stock needs the argument classes (int).",
    ),
    (
        {"model": with_init_args(STOCK, scale={"class_path": "their_module.Scal"})},
        {},
        'model.scale.class_path: Unknown class in "their_module" "Scal". Did you mean "Scale"?',
    ),
    (
        {"model": with_init_args(STOCK, scale={"class_path": "their_module.Scale", "init_args": {"f": 1}})},
        {},
        'model.scale: Unknown argument of their_module.Scale "f".',
    ),
    ({"callbacks": [{"class_path": "no.Such"}]}, {}, "trainer.callbacks.0.class_path: "),
]


@pytest.mark.parametrize(("program_args", "parameters", "reason"), FAULTS)
def test_a_fault_is_said_in_one_line(
    program: Make, program_args: dict[str, Any], parameters: dict[str, Any], reason: str
) -> None:
    with pytest.raises(SpecError) as excinfo:
        build(program(**program_args), parameters)
    message = str(excinfo.value)
    assert reason in message
    assert "\n" not in message
    assert "Union" not in message


def test_the_faults_of_all_sections_are_said_at_once(program: Make) -> None:
    with pytest.raises(SpecError) as excinfo:
        build(
            program(
                with_init_args(STOCK, width="a", nom=1), {"class_path": "their_module.Dta"}, max_steps="x"
            ),
            {},
        )
    lines = str(excinfo.value).splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        "model.width",
        "model",
        "data.class_path",
        "trainer.max_steps",
    ]


def test_an_error_of_their_constructor_is_theirs(program: Make) -> None:
    with pytest.raises(RuntimeError, match="no") as excinfo:
        build(program({"class_path": "their_module.Stubborn"}), {"width": 3})
    assert excinfo.value.__notes__ == ["while making their_module.Stubborn with {'width': 3}"]


SPACE = {"temperature_init": [0.25, 4.0, 1.0], "schedule": ["constant", "cosine"], "lr": [0.1, 0.2]}


def test_a_space_that_fits_is_let_through(program: Make) -> None:
    check_space(program(), SPACE)
    check_space(
        program(data=with_init_args({**DATA, "class_path": "their_module.TestData"}, root="x")),
        SPACE,
        test_data=True,
    )
    # evaluation only needs no training data
    check_space(program(STOCK, attach=AUTO, weights="x.ckpt"), {"temperature_init": [1.0, 2.0]})


CHECKS: list[tuple[dict[str, Any], dict[str, list[Any]], bool, list[str]]] = [
    ({}, {"widht": [1, 2]}, False, ['search.widht: Unknown argument of their_module.Tempered "widht".']),
    ({}, {"width": [8, 16, "big"]}, False, ['search.width: model.width: given the text "big".']),
    (
        {},
        {"trainer.precision": ["bf16", "8"]},
        False,
        ['search.trainer.precision: trainer.precision: given the text "8"'],
    ),
    (
        {"data": DATA},
        SPACE,
        True,
        ["data: their_module.Data has no test_dataloader. A gain is confirmed on data"],
    ),
    (
        {"model": STOCK},
        {"width": [1, 2]},
        False,
        ["model: their_module.Stock has no train", "model: their_module.Stock is not a T"],
    ),
    (
        {"model": {"class_path": "their_module.Warm", "init_args": {}}},
        {"schedule": ["constant"]},
        False,
        ["model: their_module.Warm has temperature_init=4.0 by default, but temperature 1 is"],
    ),
    (
        {"model": {"class_path": "their_module.Plain", "init_args": {}}, "attach": AUTO},
        {"temperature_init": [1.0, 2.0]},
        False,
        [
            "model: their_module.Plain has no train_dataloader.",
            "model: their_module.Plain has no val_dataloader.",
        ],
    ),
]


@pytest.mark.parametrize(("program_args", "search", "test_data", "line_starts"), CHECKS)
def test_a_space_that_does_not_fit_is_refused(
    program: Make,
    program_args: dict[str, Any],
    search: dict[str, list[Any]],
    test_data: bool,
    line_starts: list[str],
) -> None:
    with pytest.raises(SpecError) as excinfo:
        check_space(program(**program_args), search, test_data=test_data)
    lines = str(excinfo.value).splitlines()
    assert [line[: len(start)] for line, start in zip(lines, line_starts, strict=True)] == line_starts


@pytest.mark.parametrize(
    ("init_args", "searched"),
    [
        ({"entropy_lambda": 0.1, "entropy_lambda_final": 0.3, "entropy_schedule": "linear"}, {}),
        ({"entropy_lambda_final": 0.3, "entropy_schedule": "linear"}, {}),
        ({"entropy_lambda": 0.1, "entropy_lambda_final": 0.3}, {"entropy_schedule": ["linear", "cosine"]}),
        ({"entropy_lambda": 0.1, "entropy_target": 0.5}, {"entropy_lambda_final": [0.1, 0.2]}),
    ],
)
def test_the_runs_at_temperature_one_have_no_entropy_term_whatever_the_spec_fixes(
    program: Make, init_args: dict[str, Any], searched: dict[str, list[Any]]
) -> None:
    model = {"class_path": "their_module.Tempered", "init_args": init_args}
    prepared = prepare(program(model=model))
    space = parse_search({"temperature_init": [0.5, 2.0], **searched}, model_args=init_args)
    for arm, sampled in (("baseline", {}), ("constant", {"temperature_init": 2.0})):
        parameters = arm_parameters(arm, sampled, search=space, fixed=init_args)  # type: ignore[arg-type]
        module: Any = prepared.module(parameters)
        assert not module.entropy.has_term, (arm, parameters)
        assert module.temperatures == (sampled.get("temperature_init", 1.0),) * 2
