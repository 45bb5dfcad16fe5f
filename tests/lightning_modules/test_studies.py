"""Every study that comes with tempopt: its spec is valid, its classes take its arguments, it trains."""

from __future__ import annotations

from pathlib import Path

import pytest

from tempopt.spec.load import load_spec
from tempopt.spec.study_spec import StudySpec
from tempopt.training.dry_run import dry_run
from tempopt.training.messages import Evaluation, LocalChannel, RunRequest

STUDIES = sorted((Path(__file__).parents[2] / "studies").glob("*.yaml"))


def test_there_is_a_study_for_each_module_and_each_question() -> None:
    names = [path.stem for path in STUDIES]
    assert names == [
        "associative_recall",
        "clip_digits",
        "digits",
        "digits_stock",
        "distillation",
        "entropy_control",
        "entropy_control_digits",
        "generation",
        "gumbel_digits",
        "head_count",
        "head_patterns",
        "length_extrapolation",
        "max_retrieval",
        "qk_norm_lm",
        "recall",
        "source_lm",
    ]


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_a_study_is_named_as_its_file_says_what_it_asks_and_survives_the_store(path: Path) -> None:
    spec = load_spec(path)
    assert spec.study.name == path.stem
    assert not spec.notes
    assert StudySpec.from_json(spec.to_json()).identity() == spec.identity()
    assert path.read_text(encoding="utf-8").startswith("# ")
    assert spec.trainer["check_val_every_n_epoch"] is None


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_a_study_trains_two_steps_with_each_value_that_it_searches(path: Path) -> None:
    spec = load_spec(path, ["trainer.accelerator=cpu"])
    request = RunRequest(
        ticket=1,
        attempt=1,
        program=spec.lightning_program(),
        parameters=spec.parameters(
            "search", {name: domain.probes[-1] for name, domain in spec.search.items()}
        ),
        seed=0,
        evaluations=[Evaluation(name="test", on="test")],
        task="dry_run",
        space={name: list(domain.probes) for name, domain in spec.search.items()},
    )
    finished = dry_run(request, LocalChannel())
    assert (finished.state, finished.step) == ("complete", 2)
    assert spec.study.metric in finished.metrics["validate"]
