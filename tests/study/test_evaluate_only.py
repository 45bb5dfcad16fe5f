"""Studies of a trained model, from weights in each of their three forms to what is exported."""

from __future__ import annotations

import contextlib
import io
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
import yaml
from torch import nn

import tempopt
from tempopt.cli import main
from tempopt.results.export import to_python, to_yaml

pytest.importorskip("transformers", reason="NOT TESTED: models of transformers.")

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
QUIET: dict[str, Any] = dict(
    logger=False, enable_progress_bar=False, enable_checkpointing=False, enable_model_summary=False
)


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Work in a folder with a trained model in each form; return the module that it is of."""
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.setenv("PYTHONPATH", f"{HERE}:{ROOT}")
    monkeypatch.chdir(tmp_path)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        import writer_modules

        model = writer_modules.Writer()
        with torch.no_grad():
            for name, each in model.named_parameters():
                # attention that looks at something, so that a temperature changes it
                each.mul_(12.0 if "c_attn" in name or "wte" in name or "wpe" in name else 1.0)
        torch.save(model.state_dict(), "weights.pt")
        model.model.save_pretrained("folder")
        trainer = L.Trainer(accelerator="cpu", max_epochs=0, **QUIET)
        trainer.validate(model, writer_modules.Texts(), verbose=False)
        trainer.save_checkpoint("trained.ckpt")
    yield writer_modules
    sys.modules.pop("writer_modules", None)


def spec(weights: str, **study: Any) -> dict[str, Any]:
    return {
        "study": {
            "name": Path(weights).stem,
            "metric": "val_loss",
            # of a random model τ = 1 has the least loss here, and another choice is to be exported
            "direction": "maximize",
            "trials": 4,
            "evaluate_only": weights,
            **study,
        },
        "model": {"class_path": "writer_modules.Writer"},
        "data": {"class_path": "writer_modules.Texts"},
        "trainer": {"accelerator": "cpu"},
        "attach": {"layers": "auto"},
        "search": {"temperature_init": {"low": 0.5, "high": 8.0}},
    }


def value(model: nn.Module, data: Any) -> float:
    trainer = L.Trainer(accelerator="cpu", **QUIET)
    return trainer.validate(model, data, verbose=False)[0]["val_loss"]


def by_cli(text: str) -> float:
    """Return what LightningCLI's validate gives for an exported config."""
    Path("exported.yaml").write_text(text)
    code = (
        "from lightning.pytorch.cli import LightningCLI\n"
        "cli = LightningCLI(save_config_callback=None, args=['validate', '--config', 'exported.yaml'])\n"
        "print('VALUE', float(cli.trainer.callback_metrics['val_loss']))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "VALUE" in done.stdout, done.stderr
    return float(done.stdout.rpartition("VALUE")[2])


def in_folder(modules: Any) -> nn.Module:
    model = modules.Writer()
    model.model = type(model.model).from_pretrained("deployed")
    return model


def in_state_dict(modules: Any) -> nn.Module:
    model = modules.Writer()
    model.load_state_dict(torch.load("deployed.pt", weights_only=True))
    return model


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("weights", "deployed"), [("trained.ckpt", None), ("weights.pt", in_state_dict), ("folder", in_folder)]
)
def test_what_is_exported_evaluates_at_the_chosen_temperature_whatever_the_weights_come_in(
    modules: Any, weights: str, deployed: Callable[[Any], nn.Module] | None
) -> None:
    result = tempopt.search(spec(weights), workers=1)
    found = result.evaluated
    assert found is not None and found.on == "test" and not found.at_one
    assert (found.unit, found.units) == ("items", 48)
    # an evaluation by hand, at τ = 1 and at the chosen temperature
    tau = found.params["temperature_init"]
    for data, one, best in (
        (modules.Texts().loader(1), found.chosen_at_one, found.chosen),
        (modules.Texts().loader(2), found.value_at_one, found.value),
    ):
        model = modules.Writer()
        tempopt.load_checkpoint(model, weights)
        assert value(model, data) == pytest.approx(one, rel=1e-5)
        tempopt.attach(model, {"temperature_init": tau}, example=None)
        assert value(model, data) == pytest.approx(best, rel=1e-5)
    assert by_cli(to_yaml(result)) == pytest.approx(found.chosen, rel=1e-5)
    Path("exported.py").write_text(to_python(result))
    with contextlib.redirect_stdout(io.StringIO()):
        space = runpy.run_path("exported.py")
    assert float(space["trainer"].callback_metrics["val_loss"]) == pytest.approx(found.chosen, rel=1e-5)
    plain = modules.Writer()
    plain.load_state_dict(torch.load("deployed.ckpt", weights_only=True)["state_dict"])
    assert value(plain, modules.Texts().loader(1)) == pytest.approx(found.chosen, rel=1e-5)
    if deployed is not None:
        assert value(deployed(modules), modules.Texts().loader(1)) == pytest.approx(found.chosen, rel=1e-5)


@pytest.mark.long
def test_the_commands_speak_of_evaluations(modules: Any, capsys: pytest.CaptureFixture[str]) -> None:
    given = spec("folder")
    given["data"]["init_args"] = {"tested": False}
    Path("writer.yaml").write_text(yaml.safe_dump(given))

    def said(*command: str) -> str:
        assert main(list(command)) == 0
        return capsys.readouterr().out

    checked = said("check", "writer.yaml", "--dry-run")
    assert "The trained model was loaded and evaluated on one batch, on cpu" in checked
    assert "Nothing is trained: a run is one evaluation." in checked
    planned = said("plan", "writer.yaml")
    assert "folder: 7 evaluations at most" in planned and "Nothing is trained. An evaluation" in planned
    searched = said("search", "writer.yaml", "--no-report")
    assert "folder: maximize val_loss; evaluations: 1 baseline, 4 search" in searched
    assert "since it could not be evaluated on test data: write a test_dataloader" in searched
    shown = said("show", "folder")
    for text in (checked, planned, searched, shown):
        words = text.replace("Nothing is trained", "").replace("trained model", "").lower()
        assert "train" not in words.replace("another training of the model", "")
        assert "optimizer" not in words
