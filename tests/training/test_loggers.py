"""What each of Lightning's loggers holds of a run in the end, read with the tracker's own tools."""

from __future__ import annotations

import csv
import dataclasses
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from lightning.pytorch.callbacks import LearningRateMonitor
from lightning.pytorch.loggers import Logger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
from wandb.proto.wandb_internal_pb2 import Record

from tempopt.errors import SpecError
from tempopt.training import trackers
from tempopt.training.build import check_space
from tempopt.training.dry_run import dry_run
from tempopt.training.identity import run_identity
from tempopt.training.loggers import parse_loggers
from tempopt.training.messages import Evaluation, RunLabel, RunRequest, Started
from tempopt.training.run import LightningRun
from tempopt.training.trackers import Trackers
from tests.training.shared_trainings import assert_same_state

HOT = {"temperature_init": 4.0, "temperature_final": 0.25, "schedule": "exponential", "lr": 0.02}
LABEL = RunLabel(study="warm", study_created_at="2026-01-01", run="search-0012", kind="search", arm="search")
LOGGERS = "lightning.pytorch.loggers"
# MLflow asks SQLAlchemy for a way of loading that the newest one deprecates.
OLD_SQL = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy")


def tensorboard(folder: Path) -> dict[str, Any]:
    return {"class_path": f"{LOGGERS}.TensorBoardLogger", "init_args": {"save_dir": str(folder)}}


def csv_logger(folder: Path) -> dict[str, Any]:
    return {"class_path": f"{LOGGERS}.CSVLogger", "init_args": {"save_dir": str(folder)}}


@pytest.fixture
def request_for(request_for: Any) -> Callable[..., RunRequest]:
    """Requests for runs that are logged, at every eighth step."""

    def make(*args: Any, logger: Any = None, trainer: Any = None, **options: Any) -> RunRequest:
        logged = {"log_every_n_steps": 8, **({} if logger is None else {"logger": logger}), **(trainer or {})}
        options = {"parameters": HOT, "label": LABEL, **options}
        request: RunRequest = request_for(*args, trainer=logged, **options)
        return request

    return make


def rows_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def curve(rows: list[dict[str, str]], name: str) -> list[tuple[int, float]]:
    return [(int(row["step"]), float(row[name])) for row in rows if row.get(name)]


def events(folder: Path) -> EventAccumulator:
    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    accumulator.Reload()
    return accumulator


def hyperparameters(accumulator: EventAccumulator) -> dict[str, Any]:
    data = HParamsPluginData.FromString(
        accumulator.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    )
    values = {}
    for name, value in data.session_start_info.hparams.items():
        values[name] = getattr(value, value.WhichOneof("kind"))
    return values


def wandb_records(file: Path) -> list[Record]:
    """Return what W&B has written to the end; its own process may still be about it."""
    for _ in range(600):
        records = list(records_in(file.read_bytes()))
        if any(record.HasField("exit") for record in records):
            return records
        time.sleep(0.1)
    raise AssertionError(f"{file} has no end")


def records_in(data: bytes) -> Iterator[Record]:
    """Read what W&B has written: a log as LevelDB's, in blocks of 32 KiB, after a header of 7 bytes."""
    position, record_bytes = 7, b""
    while position + 7 <= len(data):
        if 32768 - position % 32768 < 7:
            position += 32768 - position % 32768
            continue
        length, kind = int.from_bytes(data[position + 4 : position + 6], "little"), data[position + 6]
        if position + 7 + length > len(data):
            return
        record_bytes += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):
            yield Record.FromString(record_bytes)
            record_bytes = b""


def json_by_name(items: Any) -> dict[str, str]:
    return {".".join(entry.nested_key) or entry.key: entry.value_json for entry in items}


def test_a_run_is_bit_equal_with_and_without_loggers(request_for: Any, listener: Any, tmp_path: Path) -> None:
    runs = [
        LightningRun(request_for(logger=logger, observe=True), listener())
        for logger in (None, [tensorboard(tmp_path), csv_logger(tmp_path / "csv")])
    ]
    alone, logged = (run.execute() for run in runs)
    assert alone.reports == logged.reports
    assert (alone.curves, alone.measurements) == (logged.curves, logged.measurements)
    assert_same_state(runs[0].module, runs[1].module)


def test_csv_has_the_curves_and_tensorboard_the_same(request_for: Any, listener: Any, tmp_path: Path) -> None:
    loggers = [csv_logger(tmp_path / "csv"), tensorboard(tmp_path / "board")]
    run = LightningRun(request_for(logger=loggers, observe=True), listener())
    finished = run.execute()
    rows = rows_of(tmp_path / "csv" / "warm" / "search-0012")
    assert [value for _, value in curve(rows, "val_loss")] == pytest.approx(
        [value for _, value in finished.reports]
    )
    # by definition: exponential from 4 to 1/4 over steps 0 to 23
    temperatures = curve(rows, "temperature/0")
    assert temperatures == [(step, pytest.approx(4.0 * (1 / 16) ** (step / 23))) for step, _ in temperatures]
    assert len(temperatures) == 24, "as often as the attention is looked at, which here is at each step"
    assert curve(rows, "entropy/0/0") == [(int(s), v) for s, v in finished.curves["entropy/0/0"]]
    assert curve(rows, "measured/validate") == [(23, finished.measurements["validate"])]
    accumulator = events(tmp_path / "board" / "warm" / "search-0012")
    for name in ("val_loss", "temperature/0", "entropy/0/0", "measured/validate"):
        assert [(e.step, e.value) for e in accumulator.Scalars(name)] == [
            (step, pytest.approx(value)) for step, value in curve(rows, name)
        ]


@pytest.mark.parametrize(("module", "attach"), [("Toy", None), ("Stock", {"layers": "auto"})])
def test_hyperparameters_are_the_five_and_the_tickets_whatever_the_module_knows_of_them(
    request_for: Any, listener: Any, tmp_path: Path, module: str, attach: Any
) -> None:
    loggers = [csv_logger(tmp_path / "csv"), tensorboard(tmp_path / "board")]
    LightningRun(request_for(module, attach=attach, logger=loggers), listener()).execute()
    expected_params = {
        **HOT,
        "layer_pattern": "uniform",
        "entropy_lambda": 0.0,
        "seed": 5,
        "kind": "search",
        "arm": "search",
        "tempopt.outcome": "complete",
    }
    of_csv = yaml.safe_load((tmp_path / "csv/warm/search-0012/hparams.yaml").read_text())
    of_board = hyperparameters(events(tmp_path / "board" / "warm" / "search-0012"))
    for logged_params in (of_csv, of_board):
        assert {name: logged_params[name] for name in expected_params} == expected_params


def test_evaluations_under_other_temperatures_are_not_in_the_curve_of_the_metric(
    request_for: Any, listener: Any, tmp_path: Path
) -> None:
    test_evaluation = Evaluation(name="test", on="test", temperature={"temperature_init": 9.0})
    run = LightningRun(request_for(logger=csv_logger(tmp_path), evaluations=[test_evaluation]), listener())
    finished = run.execute()
    rows = rows_of(tmp_path / "warm" / "search-0012")
    assert len(curve(rows, "val_loss")) == len(finished.reports)
    assert [step for step, _ in curve(rows, "temperature/0")] == [0, 3, 7, 11, 15, 19, 23]
    assert curve(rows, "measured/test") == [(23, finished.measurements["test"])]


@pytest.mark.parametrize(
    ("how", "init", "outcome"),
    [
        ({"stop_at": 9}, {}, "pruned"),
        ({"stop_at": 9, "keep": True}, {}, "interrupted"),
        ({}, {"diverge_at": 9}, "diverged"),
    ],
)
def test_a_run_that_ends_early_ends_in_good_order(
    request_for: Any, listener: Any, tmp_path: Path, how: Any, init: Any, outcome: str
) -> None:
    loggers = [csv_logger(tmp_path / "csv"), tensorboard(tmp_path / "board")]
    request = request_for(logger=loggers, init=init, checkpoints=str(tmp_path / "kept"))
    finished = LightningRun(request, listener(**how)).execute()
    accumulator = events(tmp_path / "board" / "warm" / "search-0012")
    assert hyperparameters(accumulator)["tempopt.outcome"] == outcome
    assert [e.value for e in accumulator.Scalars("hp_metric")] == [pytest.approx(finished.reports[-1][1])]
    assert "measured/validate" not in accumulator.Tags()["scalars"]
    saved = yaml.safe_load((tmp_path / "csv/warm/search-0012/hparams.yaml").read_text())
    assert saved["tempopt.outcome"] == outcome


def test_a_run_that_raises_is_said_to_have_failed(request_for: Any, listener: Any, tmp_path: Path) -> None:
    request = request_for(logger=csv_logger(tmp_path), init={"raise_at": 9})
    with pytest.raises(RuntimeError, match="the toy breaks"):
        LightningRun(request, listener()).execute()
    saved = yaml.safe_load((tmp_path / "warm/search-0012/hparams.yaml").read_text())
    assert saved["tempopt.outcome"] == "failed"


def test_a_resumed_run_goes_on_in_its_own_curves_with_no_step_twice(
    request_for: Any, listener: Any, tmp_path: Path
) -> None:
    def make_request(folder: str, **overrides: Any) -> RunRequest:
        loggers = [csv_logger(tmp_path / folder / "csv"), tensorboard(tmp_path / folder / "board")]
        options = {"observe": True, "checkpoint_every": 1e-9, **overrides}
        request: RunRequest = request_for(logger=loggers, checkpoints=str(tmp_path / folder), **options)
        return request

    LightningRun(make_request("whole"), listener()).execute()
    killed_channel = listener(die_at=10)
    with pytest.raises(SystemExit):
        LightningRun(make_request("torn"), killed_channel).execute()
    assert 0 < killed_channel.saved[0].step
    # what was logged last came after the checkpoint
    saved = killed_channel.saved[-2:]
    # TensorBoard reads a run's files in the order of the seconds in which they were begun
    time.sleep(1.0)
    LightningRun(make_request("torn", attempt=2, resume=saved), listener()).execute()
    full_log, torn_log = (rows_of(tmp_path / name / "csv/warm/search-0012") for name in ("whole", "torn"))
    names = ("val_loss", "temperature/0", "entropy/0/0", "measured/validate")
    for name in names:
        assert curve(torn_log, name) == curve(full_log, name)
    full_log, torn_log = (events(tmp_path / name / "board/warm/search-0012") for name in ("whole", "torn"))
    for name in names:
        assert [(e.step, e.value) for e in torn_log.Scalars(name)] == [
            (e.step, e.value) for e in full_log.Scalars(name)
        ]


@OLD_SQL
@pytest.mark.long
def test_mlflow_has_one_run_for_all_attempts(request_for: Any, listener: Any, tmp_path: Path) -> None:
    from mlflow.tracking import MlflowClient

    init_args = {"tracking_uri": f"sqlite:///{tmp_path}/mlflow.db", "artifact_location": str(tmp_path)}
    logger = {"class_path": f"{LOGGERS}.MLFlowLogger", "init_args": init_args}
    options = {"logger": logger, "checkpoints": str(tmp_path / "kept")}
    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")

    def find_run() -> Any:
        experiment = client.get_experiment_by_name("warm")
        (run,) = client.search_runs([experiment.experiment_id])
        return run

    killed_channel = listener(die_at=10)
    with pytest.raises(SystemExit):
        LightningRun(request_for(**options), killed_channel).execute()
    assert find_run().info.status == "FAILED"
    stopped_channel = listener(stop_at=17)
    LightningRun(request_for(**options, attempt=2, resume=killed_channel.saved), stopped_channel).execute()
    run = find_run()
    assert (run.info.status, run.info.run_name) == ("FINISHED", "search-0012")
    assert run.data.tags["tempopt.outcome"] == "pruned"
    assert run.data.params["schedule"] == "exponential"
    assert run.data.params["lr"] == "0.02"
    values = client.get_metric_history(run.info.run_id, "val_loss")
    # what was logged after the checkpoint is there once more
    assert sorted({metric.step for metric in values}) == [3, 7, 11, 15]
    taus = client.get_metric_history(run.info.run_id, "temperature/0")
    assert {metric.step: metric.value for metric in taus}[0] == 4.0


@pytest.mark.filterwarnings("ignore::DeprecationWarning:wandb")
@pytest.mark.long
def test_wandb_has_a_run_of_its_own_for_each_run_of_a_warm_trainer(
    request_for: Any, listener: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    logger = {"class_path": "WandbLogger", "init_args": {"save_dir": str(tmp_path), "project": "mine"}}
    other_label = dataclasses.replace(LABEL, run="search-0013")
    for label, how in ((LABEL, {}), (other_label, {"stop_at": 9}), (LABEL, {})):
        LightningRun(request_for(logger=logger, label=label), listener(**how)).execute()
    files = sorted(tmp_path.glob("wandb/offline-run-*/*.wandb"), key=lambda file: file.stat().st_mtime)
    runs, summaries, taus, codes = [], [], [], []
    for file in files:
        summary: dict[str, str] = {}
        for record in wandb_records(file):
            match record.WhichOneof("record_type"):
                case "run":
                    runs.append(record.run)
                case "summary":
                    summary |= {
                        entry.key or entry.nested_key[0]: entry.value_json for entry in record.summary.update
                    }
                case "history":
                    row = json_by_name(record.history.item)
                    taus += [float(row["temperature/0"])] if "temperature/0" in row else []
                case "exit":
                    codes.append(record.exit.exit_code)
        summaries.append(summary["tempopt.outcome"])
    assert summaries == ['"complete"', '"pruned"', '"complete"']
    assert codes == [0, 0, 0]
    assert [(run.display_name, run.run_group, run.project) for run in runs[:1]] == [
        ("search-0012", "warm", "mine")
    ]
    names = [file.name for file in files]
    # an attempt continues the run of the one before; another ticket does not
    assert names[0] == names[2] != names[1]
    assert taus[0] == 4.0


class Brittle(Logger):
    """A logger to a server that goes away.

    Args:
        after: Calls that it survives.
    """

    def __init__(self, after: int = 0) -> None:
        super().__init__()
        self.after = after

    @property
    def name(self) -> str:
        return "brittle"

    @property
    def version(self) -> int:
        return 0

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        self._call()

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        self._call()

    def _call(self) -> None:
        self.after -= 1
        if self.after < 0:
            raise ConnectionError("the server\nhttp://bob:hunter22@host/mlflow is away")


@pytest.mark.parametrize("after", [0, 4])
def test_a_logger_that_is_down_is_left_out_and_the_run_goes_on(
    request_for: Any, listener: Any, tmp_path: Path, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = LightningRun(request_for(), listener()).execute()
    monkeypatch.setitem(sys.modules, "brittle", sys.modules[__name__])
    brittle = {"class_path": "brittle.Brittle", "init_args": {"after": after}}
    channel = listener()
    run = LightningRun(request_for(logger=[brittle, csv_logger(tmp_path)]), channel)
    finished = run.execute()
    assert finished.reports == expected.reports
    notes = [*channel.messages_of(Started)[0].notes, *finished.notes]
    assert notes == [
        "trainer.logger.0: Brittle failed (ConnectionError: the server "
        "http://bob:***@host/mlflow is away). The run continues without it."
    ]
    assert len(curve(rows_of(tmp_path / "warm" / "search-0012"), "val_loss")) == 6


def test_without_a_label_nothing_is_logged_and_a_module_still_has_its_loggers(
    request_for: Any, listener: Any, tmp_path: Path
) -> None:
    run = LightningRun(request_for(logger=csv_logger(tmp_path / "csv"), label=None), listener())
    calls = []
    run.module.on_validation_end = lambda: calls.append(run.module.logger.experiment.add_image("a", None))
    run.execute()
    assert len(calls) == 6
    assert not (tmp_path / "csv").exists()


def test_only_the_first_rank_makes_loggers(request_for: Any, listener: Any, tmp_path: Path) -> None:
    (logger_specs, _) = parse_loggers([csv_logger(tmp_path)])
    run = LightningRun(request_for(), listener())
    for rank, count in ((0, 1), (1, 0)):
        trackers = Trackers(
            logger_specs, request_for(), tempered=run.tempered, observations_at=lambda step: {}, rank=rank
        )
        assert len(trackers.callbacks) == count
        assert len(trackers.options({})["logger"]) == 1


def test_a_dry_run_makes_the_loggers_and_logs_nothing(
    request_for: Any, listener: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = [tensorboard(tmp_path / "board"), csv_logger(tmp_path / "csv")]
    path = f"{LearningRateMonitor.__module__}.LearningRateMonitor"
    request = request_for(
        logger=logger, trainer={"callbacks": [{"class_path": path}]}, label=None, task="dry_run"
    )
    dry_run(request, listener())
    assert not list(tmp_path.iterdir())
    # as on a machine on which it is not installed
    monkeypatch.setattr("lightning.fabric.loggers.tensorboard._TENSORBOARD_AVAILABLE", False)
    with pytest.raises(SpecError, match=r"^trainer\.logger\.0: .* \(pip install tensorboard\)"):
        dry_run(request, listener())


@pytest.mark.parametrize(
    ("logger", "message"),
    [
        (True, r"given true, .* Say which: logger: \{class_path"),
        (3, r"given 3\. Give a logger, as in logger: \{class_path"),
        ({"save_dir": "logs"}, "Give a logger, as in logger: "),
        ("TensorboardLogger", 'Did you mean "TensorBoardLogger"'),
        ({"class_path": "lightning.Trainer"}, "is not a Logger"),
        ({"class_path": "CSVLogger", "arguments": {}}, 'Unknown key "arguments"'),
        ({"class_path": "CSVLogger"}, r"needs the argument save_dir .* under trainer\.logger\.init_args"),
        ({"class_path": "CSVLogger", "init_args": {"save_dri": "x"}}, 'Did you mean "save_dir"'),
        (
            {"class_path": "CSVLogger", "init_args": {"save_dir": "x", "version": 1}},
            "version is not the spec's",
        ),
        ({"class_path": "WandbLogger", "dict_kwargs": {"id": "x"}}, "id is not the spec's"),
        ({"class_path": "MLFlowLogger", "init_args": {"run_id": "x"}}, "run_id is not the spec's"),
    ],
)
def test_what_is_wrong_with_a_logger_is_said_before_anything_is_trained(
    request_for: Any, logger: Any, message: str
) -> None:
    with pytest.raises(SpecError, match=message) as error:
        check_space(request_for(logger=logger).program, {})
    assert str(error.value).startswith("trainer.logger")
    with pytest.raises(SpecError, match=r"^trainer\.logger\.1"):
        check_space(request_for(logger=["WandbLogger", logger]).program, {})


@pytest.mark.parametrize("logger", [None, False, []])
def test_no_logger_is_none(logger: Any) -> None:
    assert parse_loggers(logger) == ([], [])


def test_a_name_that_is_given_is_kept_and_runs_of_two_studies_stay_apart() -> None:
    ours = {"class_path": "CSVLogger", "init_args": {"save_dir": "logs", "name": "mine"}}
    ((logger_spec,), _) = parse_loggers(ours)
    logger = logger_spec.make(LABEL)
    assert (logger.name, logger.version) == ("mine", "warm-search-0012")
    wandb = {"class_path": "WandbLogger", "dict_kwargs": {"group": "g", "tags": ["t"]}}
    ((logger_spec,), _) = parse_loggers(wandb)
    init = logger_spec.make(LABEL)._wandb_init
    assert (init["group"], init["tags"], init["name"]) == ("g", ["t"], "search-0012")


def test_how_a_run_is_looked_at_makes_no_other_run_of_it(request_for: Any) -> None:
    assert run_identity(request_for()) == run_identity(request_for(label=None, observe=True))


# ---- a server that says nothing


@pytest.fixture
def silent_server() -> Iterator[str]:
    """The URL of a server that accepts and says nothing."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(64)
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def test_a_server_that_says_nothing_is_waited_for_by_one_run_and_left_out_of_the_next_ones(
    request_for: Any, listener: Any, silent_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setattr(trackers, "_WAITED_SECONDS", 0.5)
    monkeypatch.setattr(trackers, "_away", {})
    logger = {"class_path": "MLFlowLogger", "init_args": {"tracking_uri": silent_server}}
    expected = LightningRun(request_for(), listener()).execute()
    run_notes = []
    for _ in range(2):
        channel = listener()
        finished = LightningRun(request_for(logger=logger), channel).execute()
        assert finished.reports == expected.reports
        run_notes.append([*channel.messages_of(Started)[0].notes, *finished.notes])
    ((first,), (second,)) = run_notes
    assert first.startswith("trainer.logger: MLFlowLogger failed (") and "Max retries exceeded" in first
    assert "MLFlowLogger kept an earlier run waiting, and is asked again after 10 minutes" in second
    trackers._away.update(dict.fromkeys(trackers._away, 0.0))
    later_result = LightningRun(request_for(logger=logger), listener()).execute()
    assert not any("an earlier run" in note for note in later_result.notes), "after a while it is asked again"


def test_tracker_timeouts_are_short_unless_the_environment_sets_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ((logger_spec,), _) = parse_loggers({"class_path": "CSVLogger", "init_args": {"save_dir": str(tmp_path)}})
    # set first, so that both are as they were when the test is over
    for name in ("MLFLOW_HTTP_REQUEST_TIMEOUT", "MLFLOW_HTTP_REQUEST_MAX_RETRIES", "WANDB_FINISH_TIMEOUT"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "5")
    logger_spec.make(LABEL)
    assert os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "10"
    assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "5"
