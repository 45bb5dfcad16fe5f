"""Runs that begin from weights which somebody brings: which are loaded, which are refused, what follows."""

from __future__ import annotations

import dataclasses
import hashlib
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from tempopt import bake
from tempopt.errors import SpecError
from tempopt.training import build
from tempopt.training.dry_run import rehearse
from tempopt.training.run import Run
from tempopt.training.start_weights import fit_text, load_start
from tempopt.workers.messages import Evaluation, Program, RunRequest
from tests.training import starting_modules as by_hand


def start(path: Path | str, **given: Any) -> dict[str, Any]:
    return {"path": str(path), "strict": True, "prefix": "", "sha256": None, **given}


@pytest.fixture
def request_for(request_for: Any) -> Iterator[Callable[..., RunRequest]]:
    """As the fixture of this name, of the module whose training is written by hand."""

    def make(begin: dict[str, Any] | None, **request: Any) -> RunRequest:
        program = Program(
            model={"class_path": "starting_modules.Model", "init_args": {}},
            data={"class_path": "starting_modules.Data", "init_args": {}},
            trainer={"max_steps": by_hand.STEPS, "val_check_interval": 2, "accelerator": "cpu"}
            | {"check_val_every_n_epoch": None},
            attach=None,
            metric="val_loss",
            validate_at="final",
            data_seed=0,
            start=begin,
        )
        measured = [Evaluation(name="test", on="test")]
        given = {"ticket": 1, "attempt": 1, "seed": 5, "parameters": {}, "evaluations": measured, **request}
        return RunRequest(program=program, **given)

    yield make
    sys.modules.pop("starting_modules", None)
    build._prepared.cache_clear()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    torch.save(by_hand.weights(), tmp_path / "weights.pt")
    return tmp_path / "weights.pt"


@pytest.mark.parametrize("tau", [1.0, 0.25])
def test_a_run_is_the_training_by_hand_from_the_same_weights(
    request_for: Any, listener: Any, file: Path, tau: float
) -> None:
    run = Run(request_for(start(file), parameters={"temperature_init": tau}), listener())
    finished = run.execute()
    expected = by_hand.trained_by_hand(by_hand.weights(), tau=tau)
    for name, each in run.module.state_dict().items():
        torch.testing.assert_close(each.double(), expected[name], rtol=1e-4, atol=1e-5)
    # without the weights it is another training by far
    other = Run(request_for(None, parameters={"temperature_init": tau}), listener()).execute()
    value = by_hand.value_by_hand(expected, "test", tau)
    assert finished.measurements["test"] == pytest.approx(value, rel=1e-4)
    assert abs(other.measurements["test"] - value) > 0.01
    assert finished.step == by_hand.STEPS


def test_what_is_not_a_weight_is_drawn_from_the_seed_of_the_run(
    request_for: Any, listener: Any, tmp_path: Path
) -> None:
    part = {name: each for name, each in by_hand.weights().items() if name.startswith("body.")}
    torch.save(part, tmp_path / "part.pt")
    made = [
        Run(request_for(begin, seed=seed), listener()).module.state_dict()
        for seed in (5, 6)
        for begin in (start(tmp_path / "part.pt", strict=False), None)
    ]
    for loaded, plain in (made[:2], made[2:]):
        assert all(torch.equal(loaded[name], part.get(name, plain[name])) for name in loaded)
    assert not torch.equal(made[0]["head.weight"], made[2]["head.weight"])


def in_checkpoint(state: dict[str, Tensor], path: Path) -> None:
    optimizer = {"state": {0: {"momentum_buffer": torch.ones(3)}}, "param_groups": [{"lr": 9.0}]}
    torch.save({"state_dict": state, "global_step": 77, "optimizer_states": [optimizer]}, path)


def in_safetensors(state: dict[str, Tensor], path: Path) -> None:
    pytest.importorskip("safetensors").torch.save_file(state, path)


@pytest.mark.parametrize(
    ("name", "written"),
    [("a.ckpt", in_checkpoint), ("a.pt", torch.save), ("a.safetensors", in_safetensors)],
    ids=["checkpoint", "state dict", "safetensors"],
)
def test_each_kind_of_file_gives_the_same_weights_and_nothing_else(
    request_for: Any, listener: Any, tmp_path: Path, name: str, written: Any
) -> None:
    import safetensors.torch  # noqa: F401

    written(by_hand.weights(), tmp_path / name)
    run = Run(request_for(start(tmp_path / name)), listener())
    assert all(torch.equal(each, by_hand.weights()[n]) for n, each in run.module.state_dict().items())
    assert run.execute().step == by_hand.STEPS


class Whole(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = by_hand.Body()
        self.head = nn.Linear(8, 3)


def test_what_is_loaded_and_what_is_not_is_told(tmp_path: Path) -> None:
    whole = Whole().state_dict()
    torch.save(whole, tmp_path / "whole.pt")
    assert fit_text(Whole(), start(tmp_path / "whole.pt")) == f"{len(whole)} of {len(whole)} weights of Whole"
    part = {name: each for name, each in whole.items() if name != "head.bias"} | {"other": torch.ones(1)}
    torch.save(part, tmp_path / "part.pt")
    assert fit_text(Whole(), start(tmp_path / "part.pt", strict=False)) == (
        f"{len(whole) - 1} of {len(whole)} weights of Whole; as initialised: head.bias; "
        "of the file left out: other"
    )


def parts(prefix: str) -> dict[str, Tensor]:
    return {f"{prefix}{name}": each + 1 for name, each in by_hand.Body().state_dict().items()}


@pytest.mark.parametrize(
    ("module", "in_file", "prefix"),
    [(Whole, "", "body."), (Whole, "body.", "body."), (by_hand.Body, "body.", "body.")],
    ids=["part of the module", "part of both", "part of the file"],
)
def test_a_prefix_names_the_part_that_is_loaded(
    tmp_path: Path, module: type[nn.Module], in_file: str, prefix: str
) -> None:
    given = parts(in_file)
    more = {"head.weight": torch.full((9, 9), 5.0)} if in_file else {}
    torch.save(given | more, tmp_path / "a.pt")
    model = module()
    before = {name: each.clone() for name, each in model.state_dict().items()}
    load_start(model, start(tmp_path / "a.pt", prefix=prefix))
    values = {name.removeprefix(in_file): each for name, each in given.items()}
    for name, each in model.state_dict().items():
        assert torch.equal(each, values.get(name.removeprefix(prefix), before[name]))


@given(
    names=st.sets(st.sampled_from([*Whole().state_dict(), "more.weight", "body.more"]), min_size=1),
    strict=st.booleans(),
)
def test_strict_asks_for_the_same_names_and_else_what_is_common_is_loaded(
    tmp_path_factory: pytest.TempPathFactory, names: set[str], strict: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.pt"
    own = Whole().state_dict()
    torch.save({name: torch.full_like(own.get(name, torch.ones(2)), 3.0) for name in names}, path)
    model, common = Whole(), names & own.keys()
    before = {name: each.clone() for name, each in model.state_dict().items()}
    if not common or (strict and names != own.keys()):
        with pytest.raises(SpecError, match=r"study\.start_from"):
            load_start(model, start(path, strict=strict))
        common = set()
    else:
        load_start(model, start(path, strict=strict))
    for name, each in model.state_dict().items():
        assert torch.equal(each, torch.full_like(each, 3.0) if name in common else before[name])


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 8)
        self.out = nn.Linear(8, 5, bias=False)
        self.out.weight = self.embed.weight


def test_weights_that_are_tied_may_be_there_once(tmp_path: Path) -> None:
    torch.save({"embed.weight": torch.full((5, 8), 2.0)}, tmp_path / "a.pt")
    model = Tied()
    load_start(model, start(tmp_path / "a.pt"))
    assert torch.equal(model.out.weight, torch.full((5, 8), 2.0)) and model.out.weight is model.embed.weight


# ---- what is refused


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(2, 2, bias=False) for _ in range(8))
        self.last = nn.Linear(2, 3, bias=False)


def refusal(module: nn.Module, begin: dict[str, Any]) -> str:
    with pytest.raises(SpecError) as caught:
        load_start(module, begin)
    return str(caught.value)


def test_one_error_counts_what_differs_and_names_five_of_each_kind(tmp_path: Path) -> None:
    state = {f"others.{n}": torch.ones(2) for n in range(7)} | {"last.weight": torch.ones(4, 2)}
    torch.save(state, tmp_path / "a.pt")
    told = refusal(Wide(), start(tmp_path / "a.pt"))
    assert "1 weight with another shape: last.weight (4 x 2, in the module 3 x 2)" in told
    named = ", ".join(f"layers.{n}.weight" for n in range(5))
    assert f"8 weights that the file lacks: {named}, and 3 more" in told
    assert (
        "7 weights that the module lacks: others.0, others.1, others.2, others.3, others.4, and 2 m" in told
    )
    assert "Build the module with the arguments" in told and "\n" not in told
    # shapes have to agree in any case
    told = refusal(Wide(), start(tmp_path / "a.pt", strict=False))
    assert "last.weight (4 x 2" in told and "lacks" not in told


def test_what_may_be_meant_is_said(tmp_path: Path) -> None:
    torch.save(parts(""), tmp_path / "part.pt")
    assert 'With prefix: "body." 4 of the 4 weights would have' in refusal(
        Whole(), start(tmp_path / "part.pt")
    )
    torch.save(parts("net."), tmp_path / "net.pt")
    assert 'With prefix: "net." 4 of the 4' in refusal(by_hand.Body(), start(tmp_path / "net.pt"))
    torch.save({**Whole().state_dict(), "more": torch.ones(1)}, tmp_path / "more.pt")
    told = refusal(Whole(), start(tmp_path / "more.pt"))
    assert "1 weight that the module lacks: more." in told and "strict: false" in told
    torch.save({"a": torch.ones(1)}, tmp_path / "a.pt")
    told = refusal(Whole(), start(tmp_path / "a.pt", strict=False))
    assert "None of its 1 weight has a name of the module: a." in told


class Bomb:
    def __reduce__(self) -> Any:
        return (Path.touch, (Path(self.path),))  # type: ignore[attr-defined]


def test_a_file_that_needs_pickle_is_refused_and_not_run(tmp_path: Path) -> None:
    bomb = Bomb()
    bomb.path = str(tmp_path / "ran")  # type: ignore[attr-defined]
    torch.save({"state_dict": Whole().state_dict(), "hyper_parameters": bomb}, tmp_path / "a.ckpt")
    told = refusal(Whole(), start(tmp_path / "a.ckpt"))
    assert "study.start_from:" in told and "without pickle" in told and "torch.save(torch.load(" in told
    (tmp_path / "b.ckpt").write_bytes(pickle.dumps(bomb))
    assert "study.start_from:" in refusal(Whole(), start(tmp_path / "b.ckpt"))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("content", [b"", b"no weights", b"PK\x03\x04 cut off"])
@pytest.mark.parametrize("name", ["a.ckpt", "a.safetensors"])
def test_a_file_that_is_none_of_weights_is_refused(tmp_path: Path, content: bytes, name: str) -> None:
    (tmp_path / name).write_bytes(content)
    assert "cannot be loaded as data" in refusal(Whole(), start(tmp_path / name))


def test_weights_with_a_temperature_in_them_are_refused(tmp_path: Path) -> None:
    class Attended(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.attention(x, x, x)[0]

    model = Attended()
    from tempopt import attach

    attach(model, {"temperature_init": 2.0}, example=lambda: model(torch.randn(2, 3, 8)))
    bake(model)
    torch.save(model.state_dict(), tmp_path / "a.pt")
    assert "have a temperature in them already" in refusal(Attended(), start(tmp_path / "a.pt"))


def test_another_content_than_the_study_was_begun_with_is_not_trained(
    request_for: Any, listener: Any, file: Path
) -> None:
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    Run(request_for(start(file, sha256=digest)), listener())
    torch.save(by_hand.weights(seed=8), file)
    channel = listener()
    with pytest.raises(SpecError, match=r"study\.start_from.* has another content \(SHA-256 "):
        Run(request_for(start(file, sha256=digest)), channel).execute()
    assert not channel.heard


def test_the_dry_run_refuses_an_argument_at_a_value_that_does_not_fit(
    request_for: Any, listener: Any, file: Path
) -> None:
    space = {"width": [8, 16], "temperature_init": [0.5, 2.0]}
    asked = request_for(start(file), task="rehearse", parameters={"width": 8}, space=space)
    with pytest.raises(SpecError, match=r"search\.width: with 16 the weights do not fit\. .* 4 weights with"):
        rehearse(asked, listener())
    del space["width"]
    assert rehearse(dataclasses.replace(asked, space=space), listener()).state == "complete"


# ---- what goes on


def test_a_run_that_was_killed_goes_on_from_its_own_checkpoint(
    request_for: Any, listener: Any, file: Path, tmp_path: Path
) -> None:
    whole = Run(request_for(start(file)), listener())
    expected = whole.execute()
    request = request_for(start(file), checkpoints=str(tmp_path / "ticket"))
    channel = listener(die_at=5)
    with pytest.raises(SystemExit):
        Run(request, channel).execute()
    assert channel.saved[0].step == 4
    again = Run(dataclasses.replace(request, attempt=2, resume=channel.saved), listener())
    found = again.execute()
    assert (found.reports, found.measurements) == (expected.reports, expected.measurements)
    assert all(
        torch.equal(each, whole.module.state_dict()[n]) for n, each in again.module.state_dict().items()
    )


def test_a_checkpoint_of_a_run_from_other_weights_is_not_taken_up(
    request_for: Any, listener: Any, file: Path, tmp_path: Path
) -> None:
    def begin(path: Path) -> dict[str, Any]:
        return start(path, sha256=hashlib.sha256(path.read_bytes()).hexdigest())

    other = tmp_path / "other.pt"
    torch.save(by_hand.weights(seed=8), other)
    request = request_for(begin(file), checkpoints=str(tmp_path / "ticket"))
    channel = listener(die_at=5)
    with pytest.raises(SystemExit):
        Run(request, channel).execute()
    program = dataclasses.replace(request.program, start=begin(other))
    again = dataclasses.replace(request, attempt=2, resume=channel.saved, program=program)
    found = Run(again, listener()).execute()
    assert found.reports == Run(request_for(begin(other)), listener()).execute().reports
