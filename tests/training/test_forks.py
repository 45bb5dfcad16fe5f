"""A run that begins from another run's checkpoint ends as if it had trained every step itself."""

from __future__ import annotations

import csv
import dataclasses
import errno
from pathlib import Path
from typing import Any

import pytest
import torch

from tempopt.temperature import end_alike, same_training, steps_alike
from tempopt.training.checkpoints import JUDGED
from tempopt.training.identity import run_identity
from tempopt.training.run import Run
from tempopt.workers.messages import Evaluation, Fork, Kept, Label, RunRequest, Saved, Started, decode, encode
from tests.tiers import long_but
from tests.training.test_checkpoint_callback import EPOCHS, IMPATIENT, everything, same

HELD = {
    "temperature_init": 4.0,
    "temperature_final": 1.0,
    "schedule": "hold_anneal",
    "hold_fraction": 0.5,
    "entropy_lambda": 0.01,
}
SHORTER = {**HELD, "hold_fraction": 0.3}
COLDER = {**HELD, "temperature_final": 0.25}
CONSTANT = {"temperature_init": 4.0, "schedule": "constant", "entropy_lambda": 0.01}
# The weight of the entropy is on a schedule of its own.
TERM = {"entropy_schedule": "hold_anneal", "entropy_lambda_final": 0.02}


def fork(parent: RunRequest, saved: Saved, child: RunRequest) -> Fork:
    """What an agent would offer the child."""
    current = child.program.validate_at == "current"
    validated = current or end_alike(parent.parameters, child.parameters)
    return Fork(saved=saved, ticket=parent.ticket, parameters=parent.parameters, validated=validated)


def trained(request: RunRequest, listener: Any) -> tuple[Run, dict[str, Any]]:
    run = Run(request, listener())
    return run, everything(run, run.execute())


def kept(request: RunRequest, listener: Any) -> list[Saved]:
    """Train a run, and return a checkpoint of every place where it could write one, the first one first."""
    channel = listener()
    Run(dataclasses.replace(request, checkpoint_every=0.0), channel).execute()
    return channel.saved[::-1]


def assert_exact_from_every_fork(parent: RunRequest, child: RunRequest, listener: Any) -> list[int]:
    """Begin one run from each checkpoint of another that is trained alike so far; return their steps."""
    child = dataclasses.replace(child, evaluations=[Evaluation(name="test", on="test", at="current")])
    _, expected = trained(dataclasses.replace(child, checkpoints=None), listener)
    steps = []
    for saved in kept(parent, listener):
        alike = steps_alike(parent.parameters, child.parameters, at_most=saved.step, total_steps=24)
        if alike < saved.step:
            continue
        offered = fork(parent, saved, child)
        heard = listener()
        run = Run(dataclasses.replace(child, forks=[offered]), heard)
        found = everything(run, run.execute())
        (started,) = heard.of(Started)
        assert (started.step, started.forked, started.notes) == (saved.step, parent.ticket, [])
        wanted = dict(expected)
        if not offered.validated:
            assert started.reports == []
            before = torch.load(saved.url, weights_only=True)["callbacks"]["RunCallback"]["reports"]
            later = expected["reports"][len(before) :]
            callbacks = expected["callbacks"]
            own = {**callbacks["RunCallback"], "reports": later}
            wanted |= {"reports": later, "callbacks": {**callbacks, "RunCallback": own}}
        assert [name for name in wanted if not same(found[name], wanted[name])] == [], saved.step
        steps.append(saved.step)
    return steps


@pytest.fixture
def pair(request_for: Any, tmp_path: Path) -> Any:
    """Return a maker of two requests that differ in their tickets and their parameters alone."""

    def make(one: dict[str, Any], other: dict[str, Any], *module: str, **given: Any) -> list[RunRequest]:
        return [
            request_for(
                *module, ticket=ticket, parameters=each, checkpoints=str(tmp_path / str(ticket)), **given
            )
            for ticket, each in ((1, one), (2, other))
        ]

    return make


PAIRS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "the same": (HELD, HELD, "final"),
    "the same end": (HELD, SHORTER, "final"),
    "another end": (HELD, COLDER, "final"),
    "another end, validated on the way": (HELD, COLDER, "current"),
    "what stays forks to what moves": (CONSTANT, HELD, "final"),
    "what moves forks to what stays": (HELD, CONSTANT, "current"),
    "another weight of the entropy": (HELD, {**HELD, **TERM}, "final"),
}


@pytest.mark.parametrize(
    ("one", "other", "validate_at"),
    [long_but(name, {"the same", "another end"}, *each) for name, each in PAIRS.items()],
)
def test_a_run_that_begins_from_another_is_exact(
    pair: Any, listener: Any, one: dict[str, Any], other: dict[str, Any], validate_at: str
) -> None:
    parent, child = pair(one, other, validate_at=validate_at)
    steps = assert_exact_from_every_fork(parent, child, listener)
    assert len(steps) >= 5
    if same_training(one, other):
        assert max(steps) > 20


@pytest.mark.long
@pytest.mark.parametrize(
    "trainer",
    [
        {"accumulate_grad_batches": 3, "max_steps": 24},
        {"val_check_interval": 1.0, "check_val_every_n_epoch": 1},
        {**EPOCHS, "max_epochs": 3, "val_check_interval": 0.5, "limit_train_batches": 8},
    ],
    ids=["accumulating", "by epoch", "a number of epochs"],
)
def test_it_is_exact_however_a_training_is_divided(pair: Any, listener: Any, trainer: dict[str, Any]) -> None:
    assert assert_exact_from_every_fork(*pair(HELD, COLDER, trainer=trainer), listener)


@pytest.mark.parametrize(
    ("module", "init"), [("Scheduled", {"rate": "epoch"}), ("Stock", {})], ids=["rate", "attached"]
)
@pytest.mark.long
def test_it_is_exact_whatever_is_trained(pair: Any, listener: Any, module: str, init: dict[str, Any]) -> None:
    plain = [{k: v for k, v in each.items() if k != "entropy_lambda"} for each in (CONSTANT, COLDER)]
    attach = {"layers": "auto"} if module == "Stock" else None
    parent, child = pair(*plain, module, init=init, attach=attach)
    assert len(assert_exact_from_every_fork(parent, child, listener)) >= 5


def begun(parent: RunRequest, child: RunRequest, listener: Any, **changes: Any) -> Started:
    """Begin the child from the parent's last checkpoint up to step 12, and return what it says of that."""
    saved = [each for each in kept(parent, listener) if each.step <= 12][-1]
    offered = dataclasses.replace(fork(parent, saved, child), **changes)
    heard = listener()
    Run(dataclasses.replace(child, forks=[offered]), heard).execute()
    (started,) = heard.of(Started)
    return started


@pytest.mark.parametrize("rate", ["plateau step", "plateau epoch"])
@pytest.mark.parametrize("other", [HELD, SHORTER, COLDER], ids=["same", "same end", "another end"])
def test_a_training_whose_rate_goes_by_a_metric_is_no_beginning(
    pair: Any, listener: Any, rate: str, other: dict[str, Any]
) -> None:
    # parts of the metric may be in no checkpoint
    trainer = {"val_check_interval": 1, "check_val_every_n_epoch": 1}
    given: dict[str, Any] = {"init": {"rate": rate}, "trainer": trainer}
    started = begun(*pair(HELD, other, "Scheduled", **given), listener)
    assert (started.step, started.forked) == (0, None)
    assert "may go by what was validated" in started.notes[0]


def test_a_module_that_looks_at_validations_is_no_beginning_for_one_that_is_validated_otherwise(
    pair: Any, listener: Any
) -> None:
    started = begun(*pair(HELD, COLDER, "Watching"), listener)
    assert (started.step, started.forked) == (0, None)
    assert "looks at what was validated" in started.notes[0]
    assert max(assert_exact_from_every_fork(*pair(HELD, SHORTER, "Watching"), listener)) > 4


@pytest.mark.long
def test_what_begins_at_a_value_of_the_plan_has_to_begin_alike(pair: Any, listener: Any) -> None:
    given: dict[str, Any] = {"validate_at": "current"}
    assert begun(*pair(HELD, COLDER, **given), listener).step > 0
    started = begun(*pair(HELD, COLDER, "LearnsEnd", **given), listener)
    assert (started.step, started.forked) == (0, None)
    assert max(assert_exact_from_every_fork(*pair(HELD, SHORTER, "LearnsEnd"), listener)) > 4


def test_what_two_codes_have_trained_is_no_beginning(
    pair: Any, listener: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent, child = pair(HELD, HELD)
    first = kept(parent, listener)[0]
    monkeypatch.setattr("tempopt.training.run.code_identity", lambda module, data: "changed")
    heard = listener()
    again = dataclasses.replace(parent, attempt=2, resume=[first], checkpoint_every=0.0)
    Run(again, heard).execute()
    offered = fork(parent, heard.saved[0], child)
    child_heard = listener()
    Run(dataclasses.replace(child, forks=[offered]), child_heard).execute()
    assert child_heard.of(Started)[0].step == 0
    assert "trained by other code" in child_heard.of(Started)[0].notes[0]


@pytest.mark.parametrize(
    ("module", "trainer"), [("OwnCallbacks", {}), ("Toy", {"callbacks": [IMPATIENT]})], ids=["own", "given"]
)
def test_a_training_with_callbacks_of_others_is_no_beginning_for_one_that_is_validated_otherwise(
    pair: Any, listener: Any, module: str, trainer: dict[str, Any]
) -> None:
    parent, child = pair(HELD, COLDER, module, trainer=trainer)
    started = begun(parent, child, listener)
    assert (started.step, started.forked) == (0, None)
    assert "may go by what was validated" in started.notes[0]


def test_what_is_not_of_the_same_seed_parameters_and_code_is_not_begun_from(
    pair: Any, listener: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent, child = pair(HELD, SHORTER)
    assert begun(parent, child, listener).step == 12
    reseeded = dataclasses.replace(child, seed=6)
    for unlike, changes in (
        (reseeded, {}),
        (child, {"ticket": 3}),
        (child, {"parameters": {**HELD, "lr": 0.02}}),
    ):
        started = begun(parent, unlike, listener, **changes)
        assert (started.step, started.forked) == (0, None)
        assert "is of another run" in started.notes[0]
    saved = [each for each in kept(parent, listener) if each.step <= 12][-1]
    monkeypatch.setattr("tempopt.training.run.code_identity", lambda module, data: "changed")
    heard = listener()
    Run(dataclasses.replace(child, forks=[fork(parent, saved, child)]), heard).execute()
    assert "trained by other code" in heard.of(Started)[0].notes[0]


def test_what_is_missing_or_damaged_is_passed_over_and_changes_nothing(pair: Any, listener: Any) -> None:
    parent, child = pair(HELD, SHORTER)
    _, expected = trained(dataclasses.replace(child, checkpoints=None), listener)
    saved = {each.step: each for each in kept(parent, listener)}
    Path(saved[6].url).unlink()
    Path(saved[5].url).write_bytes(b"x")
    for steps, begins in (((6, 5, 4), 4), ((6, 5), 0)):
        heard = listener()
        run = Run(
            dataclasses.replace(child, forks=[fork(parent, saved[step], child) for step in steps]), heard
        )
        assert same(everything(run, run.execute()), expected)
        (started,) = heard.of(Started)
        assert started.step == begins
        then = "another one is used" if begins else "the run begins at its beginning"
        assert started.notes[0] == (
            "The checkpoint step-6-1.ckpt of step 6 is not there, for this run to begin from: " + then + "."
        )


def test_its_own_checkpoint_comes_before_any_of_anothers(pair: Any, listener: Any) -> None:
    parent, child = pair(HELD, SHORTER)
    of_parent = kept(parent, listener)
    channel = listener(die_at=6)
    with pytest.raises(SystemExit):
        Run(child, channel).execute()
    heard = listener()
    forks = [fork(parent, each, child) for each in of_parent if each.step == 7]
    again = dataclasses.replace(child, attempt=2, resume=channel.saved, forks=forks)
    Run(again, heard).execute()
    (started,) = heard.of(Started)
    assert (started.step, started.forked) == (4, None)


@pytest.mark.parametrize("links", [True, False])
def test_the_other_may_be_deleted_as_soon_as_a_run_has_begun_from_it(
    pair: Any, listener: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    if not links:

        def refused(self: Path, target: Path) -> None:
            raise OSError(errno.EXDEV, "Invalid cross-device link")

        monkeypatch.setattr(Path, "hardlink_to", refused)
    parent, child = pair(HELD, SHORTER)
    saved = [each for each in kept(parent, listener) if each.step <= 7][-1]
    newest = Run._newest

    def and_gone(self: Run) -> Path | None:
        found = newest(self)
        Path(saved.url).unlink()
        return found

    monkeypatch.setattr(Run, "_newest", and_gone)
    heard = listener()
    Run(dataclasses.replace(child, forks=[fork(parent, saved, child)]), heard).execute()
    assert heard.of(Started)[0].step == saved.step
    # what it was begun from is its own to remove
    assert not [path for path in (tmp_path / "2").iterdir() if not path.name.startswith("step-")]


def test_a_fork_of_a_fork_is_known_as_its_own(pair: Any, listener: Any) -> None:
    parent, child = pair(HELD, SHORTER)
    saved = [each for each in kept(parent, listener) if each.step <= 4][-1]
    channel = listener()
    forked = dataclasses.replace(child, forks=[fork(parent, saved, child)], checkpoint_every=0.0)
    Run(forked, channel).execute()
    own = [message.saved for message in channel.of(Kept)]
    assert min(each.step for each in own) > 4
    grandchild = dataclasses.replace(parent, ticket=3, checkpoints=None)
    _, expected = trained(grandchild, listener)
    last = [each for each in own if each.step <= 7][-1]
    grandchild = dataclasses.replace(parent, ticket=3)
    run = Run(dataclasses.replace(grandchild, forks=[fork(child, last, grandchild)]), listener())
    assert same(everything(run, run.execute()), expected)


def test_a_run_is_logged_from_where_it_begins_as_it_would_be_else(
    pair: Any, listener: Any, tmp_path: Path
) -> None:
    logger = {"class_path": "CSVLogger", "init_args": {"save_dir": str(tmp_path / "logs")}}
    trainer = {"logger": logger, "log_every_n_steps": 1}
    runs = ("one", "two", "three")
    labels = [Label(study="toy", begun="now", run=run, kind="search", arm="search") for run in runs]
    parent, child = (
        dataclasses.replace(request, label=label)
        for request, label in zip(pair(HELD, COLDER, trainer=trainer), labels, strict=False)
    )
    saved = next(each for each in kept(parent, listener) if each.step == 6)
    Run(dataclasses.replace(child, label=labels[2], checkpoints=None), listener()).execute()
    Run(dataclasses.replace(child, forks=[fork(parent, saved, child)]), listener()).execute()
    rows = {}
    for run in ("two", "three"):
        with (tmp_path / "logs" / "toy" / run / "metrics.csv").open(newline="") as file:
            rows[run] = list(csv.DictReader(file))
    assert rows["two"] and min(int(row["step"]) for row in rows["two"]) == 6
    assert rows["two"] == [row for row in rows["three"] if int(row["step"]) >= 6]


def test_identity_and_messages(pair: Any) -> None:
    parent, child = pair(HELD, COLDER)
    saved = Saved(step=4, url="s3://a/b", digest="d", size=9)
    forked = dataclasses.replace(child, forks=[fork(parent, saved, child)])
    assert run_identity(forked) == run_identity(child) != run_identity(parent)
    assert decode(encode(forked)) == forked


def test_a_checkpoint_says_whether_its_training_is_judged(pair: Any, listener: Any) -> None:
    for module, init, judged in (("Toy", {}, False), ("Scheduled", {"rate": "plateau step"}, True)):
        trainer = {"val_check_interval": 1, "check_val_every_n_epoch": 1}
        (request, _) = pair(HELD, HELD, module, init=init, trainer=trainer)
        (first, *_) = kept(request, listener)
        assert torch.load(first.url, weights_only=True)[JUDGED] is judged
