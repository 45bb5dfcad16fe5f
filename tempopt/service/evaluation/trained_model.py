"""A worker with trained weights that evaluates parameter sets, one after another."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tempopt.agent.dry_run import explain_failure
from tempopt.agent.process import WorkerProcess
from tempopt.errors import StudyFailed, UsageError
from tempopt.files import absolute
from tempopt.seeds import derive
from tempopt.service.evaluation.space import EvaluationSpec
from tempopt.training.messages import (
    UNIT_KINDS,
    Evaluation,
    Failed,
    Finished,
    RunRequest,
    UnitKind,
    sizes_name,
    units_name,
)
from tempopt.verdict.run_evaluations import On

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Units:
    """The metric of each item or batch of an evaluation.

    Args:
        kind: Items or batches.
        values: Metric of each unit.
        sizes: Number of items of each unit; many items are grouped.
    """

    kind: UnitKind
    values: tuple[float, ...]
    sizes: tuple[float, ...]

    def is_paired_with(self, reference: Units) -> bool:
        """Return whether two evaluations saw the same data in the same order, judged by kind and sizes."""
        return (self.kind, self.sizes) == (reference.kind, reference.sizes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Measurements of one parameter set.

    Args:
        values: The metric by data, ``validate`` and ``test``; empty if it is not finite.
        units: The metric of each item or batch by data, if the metric is their mean.
    """

    values: dict[str, float]
    units: dict[str, Units]


def weights_path(weights: str | Path) -> Path:
    """Return the absolute path of the weights.

    Raises:
        UsageError: The path does not exist.
    """
    path = absolute(str(weights), "--weights").resolve()
    if not path.exists():
        raise UsageError(
            f'--weights is "{weights}", but there is no file {path}. Give the path of a checkpoint that '
            "Lightning or tempopt wrote, of a state dict (torch.save or safetensors), or of a folder that "
            "save_pretrained wrote."
        )
    return path


def digest_of(path: Path) -> str:
    """Return a hash of the weights in a file or folder."""
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.relative_to(path).as_posix().encode())
        with file.open("rb") as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                digest.update(chunk)
    return digest.hexdigest()


class TrainedModel:
    """The model of a spec with trained weights.

    Args:
        request: Spec of the evaluation.
        path: File or folder with the weights.
        worker: The worker.
    """

    def __init__(self, request: EvaluationSpec, path: Path, worker: WorkerProcess) -> None:
        self._request = request
        self._worker = worker
        self._program = dataclasses.replace(request.spec.lightning_program(), weights=str(path), compile=None)
        self._seed = derive(request.spec.study.seed, "evaluate")

    def check(self) -> None:
        """Load the weights and evaluate one batch, to find errors early.

        Raises:
            SpecError: The weights do not fit the spec.
            StudyFailed: The worker died.
        """
        space = {name: list(domain.probes) for name, domain in self._request.search.items()}
        sampled = {name: values[-1] for name, values in space.items()}
        self._run(self._request.parameters(sampled), ["validate", "test"], is_check=True, space=space)

    def evaluate(self, parameters: Mapping[str, Any], *, on_test: bool = False) -> Measured:
        """Evaluate a parameter set on the validation data and, if requested and available, the test data.

        Raises:
            SpecError: The parameters do not fit the model.
            StudyFailed: The worker died.
        """
        data: list[On] = ["validate", "test"] if on_test else ["validate"]
        finished = self._run(parameters, data)
        if finished.state != "complete":
            return Measured(values={}, units={})
        units = {on: _read_units(finished, on) for on in data}
        return Measured(
            values={on: finished.measurements[on] for on in data if on in finished.measurements},
            units={on: unit for on, unit in units.items() if unit is not None},
        )

    def _run(
        self,
        parameters: Mapping[str, Any],
        data: list[On],
        *,
        is_check: bool = False,
        space: Mapping[str, list[Any]] | None = None,
    ) -> Finished:
        self._worker.send(
            RunRequest(
                ticket=0,
                attempt=0,
                program=self._program,
                parameters=dict(parameters),
                seed=self._seed,
                evaluations=[Evaluation(name=on, on=on) for on in data],
                task="dry_run" if is_check else "train",
                space=dict(space or {}),
            )
        )
        while (message := self._worker.receive()) is not None:
            if isinstance(message, Failed):
                raise explain_failure(message, "evaluation")
            if isinstance(message, Finished):
                return message
        raise StudyFailed(f"The evaluation crashed: {self._worker.exit_description()}.")


def _read_units(finished: Finished, on: On) -> Units | None:
    for kind in UNIT_KINDS:
        curve = finished.curves.get(units_name(on, kind))
        if curve:
            values = {int(index): value for index, value in curve}
            sizes = {int(index): size for index, size in finished.curves.get(sizes_name(on), ())}
            return Units(
                kind=kind,
                values=tuple(values[index] for index in sorted(values)),
                sizes=tuple(sizes.get(index, 1.0) for index in sorted(values)),
            )
    return None
