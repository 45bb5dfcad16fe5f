"""Odd files of weights: a run starts from them, or refuses them with one clear error."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tempopt.errors import SpecError
from tempopt.training.start_weights import load_start


def start(path: Path, **given: Any) -> dict[str, Any]:
    return {"path": str(path), "strict": True, "prefix": "", "sha256": None, **given}


def saved(tmp_path: Path, content: Any, name: str = "a.pt") -> Path:
    torch.save(content, tmp_path / name)
    return tmp_path / name


def refusal(module: nn.Module, path: Path, **given: Any) -> str:
    before = {name: each.clone() for name, each in module.state_dict().items()}
    with pytest.raises(SpecError) as caught:
        load_start(module, start(path, **given))
    told = str(caught.value)
    assert told.startswith("study.start_from: ") and "\n" not in told
    assert all(torch.equal(each, before[name]) for name, each in module.state_dict().items())
    return told


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line, self.norm = nn.Linear(3, 2), nn.BatchNorm1d(2)


def state(**changed: Any) -> dict[str, Any]:
    whole = {name: torch.full_like(each, 2) for name, each in Normed().state_dict().items()}
    return whole | {name.replace("__", "."): each for name, each in changed.items()}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_weights_of_another_precision_are_those_of_the_module(tmp_path: Path, dtype: torch.dtype) -> None:
    given = {n: each.to(dtype) if each.is_floating_point() else each for n, each in state().items()}
    module = Normed()
    load_start(module, start(saved(tmp_path, given)))
    for name, each in module.state_dict().items():
        assert each.dtype == Normed().state_dict()[name].dtype
        assert torch.equal(each, torch.full_like(each, 2))


def quantised() -> Tensor:
    with warnings.catch_warnings():
        # torch deprecates its own quantised tensors, of which there are files
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(torch.ones(2, 3), 0.1, 0, torch.qint8)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (lambda: torch.ones(2, 3, dtype=torch.int8), "int8, in the module float32"),
        (lambda: torch.ones(2, 3, dtype=torch.complex64), "complex64, in the module float32"),
        (lambda: torch.ones(2, 3).to_sparse(), "float32 sparse_coo, in the module float32"),
        (lambda: torch.ones(2, 3, device="meta"), "no numbers, but the device meta"),
        (lambda: 3.0, "float, in the module float32"),
        (lambda: [1, 2], "list, in the module float32"),
        pytest.param(
            quantised, "qint8, in the module float32", marks=pytest.mark.filterwarnings("ignore::UserWarning")
        ),
    ],
    ids=["int8", "complex", "sparse", "meta", "a number", "a list", "quantised"],
)
@pytest.mark.parametrize("strict", [True, False])
def test_values_that_are_no_such_numbers_are_refused(
    tmp_path: Path, value: Any, kind: str, strict: bool
) -> None:
    path = saved(tmp_path, state(line__weight=value()))
    told = refusal(Normed(), path, strict=strict)
    assert f"1 weight with another kind of number: line.weight ({kind}" in told
    assert "strict: false" not in told


def test_a_lazy_module_gets_its_shape_from_the_file(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        # torch says of each lazy module that it may change
        warnings.simplefilter("ignore")
        module = nn.Sequential(nn.LazyLinear(2))
    load_start(module, start(saved(tmp_path, {"0.weight": torch.ones(2, 3), "0.bias": torch.zeros(2)})))
    assert torch.equal(module(torch.ones(1, 3)), torch.full((1, 2), 3.0))


@pytest.mark.parametrize("name", ["a.ckpt", "a.bin", "with a space.safetensors"])
def test_safetensors_are_known_by_their_content(tmp_path: Path, name: str) -> None:
    from safetensors.torch import save_file

    save_file(state(), tmp_path / name)
    module = Normed()
    load_start(module, start(tmp_path / name))
    assert torch.equal(module.line.weight, torch.full((2, 3), 2.0))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ([torch.ones(2)], "holds no weights by name"),
        (torch.ones(2), "holds no weights by name"),
        ({"state_dict": {}}, "holds no weights by name"),
        ({"state_dict": None, "a": torch.ones(2)}, "holds no weights by name"),
        ({"epoch": 3}, "holds no weights by name"),
    ],
    ids=["list", "tensor", "empty", "none", "numbers"],
)
def test_data_that_are_no_weights_are_refused(tmp_path: Path, content: Any, said: str) -> None:
    assert said in refusal(Normed(), saved(tmp_path, content))


@pytest.mark.parametrize("name", ["a.pt", "a.safetensors"])
@pytest.mark.parametrize("begin", [b"\x80\x02", b'\x10\0\0\0\0\0\0\0{"', b"\x89PNG\r\n", b"# text\n"])
def test_a_file_of_something_else_is_refused(tmp_path: Path, name: str, begin: bytes) -> None:
    (tmp_path / name).write_bytes(begin + bytes(range(256)))
    assert "cannot be loaded as data" in refusal(Normed(), tmp_path / name)


def test_a_whole_module_is_refused_and_a_program_is_not_run(tmp_path: Path) -> None:
    assert "torch.save(torch.load(" in refusal(Normed(), saved(tmp_path, Normed()))
    with warnings.catch_warnings():
        # torch deprecates its programs, of which there are files
        warnings.simplefilter("ignore")
        torch.jit.script(nn.Linear(3, 2)).save(str(tmp_path / "program.pt"))
    assert "cannot be loaded as data" in refusal(nn.Linear(3, 2), tmp_path / "program.pt")


@pytest.mark.parametrize("before", ["_orig_mod.", "module."])
def test_the_names_of_a_compiled_or_distributed_model_are_told(tmp_path: Path, before: str) -> None:
    path = saved(tmp_path, {f"{before}{name}": each for name, each in state().items()})
    assert f'With prefix: "{before}" 7 of the 7 weights' in refusal(Normed(), path)
    load_start(Normed(), start(path, prefix=before))


def test_the_slip_of_a_prefix_without_its_point_is_told(tmp_path: Path) -> None:
    path = saved(tmp_path, {f"model.{name}": each for name, each in state().items()})
    assert 'With prefix: "model." 7 of the 7' in refusal(Normed(), path, prefix="model")
