"""Search temperatures at inference and generation parameters of trained weights, and estimate their gain.

Each evaluation is a trial of an ordinary Optuna study in the same database, which Optuna's dashboard shows.
The best set is chosen on the validation data, and its gain over the unchanged spec is estimated on the test
data, if there are any.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from tempopt.agent.dry_run import start_workers
from tempopt.agent.study_runner import claim_local_placements
from tempopt.errors import StorageError, StudyChanged, StudyFailed, StudyNotFound, UsageError
from tempopt.sampling.optuna_factories import make_sampler
from tempopt.seeds import derive
from tempopt.service.evaluation.result import EvaluationResult, Gain
from tempopt.service.evaluation.space import EvaluationSpec, evaluation_spec
from tempopt.service.evaluation.trained_model import Measured, TrainedModel, digest_of, weights_path
from tempopt.spec.sections import SamplerOrPrunerConfig
from tempopt.spec.study_spec import StudySpec
from tempopt.storage.http.address import is_server
from tempopt.storage.opening import open_store
from tempopt.storage.ticket_queries import to_maximize
from tempopt.storage.urls import DEFAULT_STORAGE
from tempopt.temperature import GENERATION, training_key
from tempopt.verdict.run_evaluations import On
from tempopt.verdict.statistics.bootstrap import MIN_UNITS, Interval, paired_bootstrap
from tempopt.verdict.statistics.paired_tests import Direction

_QUESTION = "tempopt:question"
_PARAMETERS = "tempopt:parameters"
_IS_REFERENCE = "tempopt:reference"
_HASH_DIGITS = 6


def evaluate(
    spec: StudySpec | Mapping[str, Any] | str | Path,
    weights: str | Path,
    *,
    storage: str = DEFAULT_STORAGE,
    trials: int | None = None,
    name: str | None = None,
    overrides: Sequence[str] = (),
    on_progress: Callable[[str], None] = lambda line: None,
) -> EvaluationResult:
    """Evaluate trained weights at other temperatures and generation parameters; nothing is trained.

    An existing study of that name with the same spec and weights is continued.

    Args:
        spec: A study spec: loaded, as plain data, the path of a YAML file or the name of a bundled one. Names
            in its ``search:`` that act only in training are left out.
        weights: A checkpoint, a state dict or a folder written by ``save_pretrained``.
        storage: URL of the database.
        trials: Total number of parameter sets, the first of which is that of the unchanged spec; None:
            ``study.trials``.
        name: Name of the Optuna study; None: that of the spec with a short hash of spec and weights.
        overrides: Settings ``a.b=c`` that replace those of the spec.
        on_progress: Called with a line on each evaluation.

    Raises:
        SpecError: The spec is invalid, or the weights do not fit it.
        UsageError: The weights do not exist, or the storage is a server.
        StudyChanged: The storage has a different study of that name.
        StudyFailed: Nothing could be evaluated.
    """
    request, path = evaluation_spec(spec, overrides=overrides, trials=trials), weights_path(weights)
    question = _hash_question(request, path)
    name = f"{request.spec.study.name}-evaluate-{question[:_HASH_DIGITS]}" if name is None else name
    with (
        _open_study(storage, name, request, question) as study,
        claim_local_placements(request.spec, 1) as places,
    ):
        with start_workers(places) as workers:
            model = TrainedModel(request, path, workers[0])
            model.check()
            _search(study, request, model, on_progress)
            return _conclude(study, request, model)


def _hash_question(request: EvaluationSpec, path: Path) -> str:
    """Return a hash of the evaluated spec and weights."""
    data = request.spec.to_json()
    study = [data["study"][name] for name in ("metric", "direction", "seed")]
    sections = [data["model"], data["data"], study, request.written_search]
    text = json.dumps([*sections, digest_of(path)], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


@contextlib.contextmanager
def _open_study(storage: str, name: str, request: EvaluationSpec, question: str) -> Any:
    """Yield the Optuna study of a name, created if it does not exist."""
    if is_server(storage):
        raise UsageError(
            "tempopt evaluate works on a database, and a server was given. Give the URL of a database, as in "
            f"--storage {DEFAULT_STORAGE}"
        )
    with open_store(storage, create=True) as store:
        url = store.url
        with contextlib.suppress(StudyNotFound):
            store.load_study(name)
            raise StudyChanged(
                f'"{name}" is a search or a comparison in this database. Give the evaluation another name: '
                "--name"
            )
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        rows = optuna.storages.RDBStorage(url, engine_kwargs={"pool_pre_ping": True})
    except RuntimeError as error:
        raise StorageError(f"Optuna cannot use this database: {error}") from error
    try:
        study = optuna.create_study(
            storage=rows, study_name=name, direction=request.spec.study.direction, load_if_exists=True
        )
        before = study.user_attrs.get(_QUESTION)
        if before is None and not study.trials:
            study.set_user_attr(_QUESTION, question)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
                study.set_metric_names([request.spec.study.metric])
        elif before != question:
            raise StudyChanged(
                f'The Optuna study "{name}" evaluates other weights, another model or another search. Give '
                "this one another name: --name"
            )
        yield study
    finally:
        rows.remove_session()
        rows.engine.dispose()


def _search(
    study: optuna.Study, request: EvaluationSpec, model: TrainedModel, on_progress: Callable[[str], None]
) -> None:
    for abandoned_trial in study.get_trials(deepcopy=False, states=[TrialState.RUNNING]):
        # left by a program that was ended
        study.tell(abandoned_trial.number, state=TrialState.FAIL)
    complete = [trial for trial in study.trials if trial.state == TrialState.COMPLETE]
    value_by_key = {_to_key(_read_parameters(trial)): trial.value for trial in complete}
    number, failed = len(complete), 0

    def report_value(value: float | None, about: str = "") -> None:
        text = "no finite value" if value is None else f"{request.spec.study.metric} {value:.5g}"
        on_progress(f"evaluation {number + failed} of {request.trials}{about}: {text}")

    if not any(trial.user_attrs.get(_IS_REFERENCE) for trial in complete):
        value_by_key |= _evaluate_reference(study, request, model)
        number += 1
        report_value(value_by_key[_to_key(request.parameters({}))], " (the spec as it stands)")
    while number + failed < request.trials:
        seed = derive(request.spec.study.seed, "evaluate", len(study.get_trials(deepcopy=False)))
        study.sampler = make_sampler(SamplerOrPrunerConfig(name="tpe"), seed=seed) or study.sampler
        trial = study.ask(request.distributions)
        parameters = request.parameters(trial.params)
        trial.set_user_attr(_PARAMETERS, parameters)
        key = _to_key(parameters)
        if key not in value_by_key:
            try:
                value_by_key[key] = model.evaluate(parameters).values.get("validate")
            except BaseException:
                study.tell(trial, state=TrialState.FAIL)
                raise
        value = value_by_key[key]
        if value is None:
            failed += 1
            study.tell(trial, state=TrialState.FAIL)
        else:
            number += 1
            study.tell(trial, value)
        report_value(value)


def _evaluate_reference(
    study: optuna.Study, request: EvaluationSpec, model: TrainedModel
) -> dict[str, float | None]:
    parameters = request.parameters({})
    value = model.evaluate(parameters).values.get("validate")
    if value is None:
        raise StudyFailed(
            f"The evaluation of the spec as it stands has no finite {request.spec.study.metric}, so there is "
            "nothing to compare with. Check that the weights and the data are those of this spec."
        )
    attributes = {_IS_REFERENCE: True, _PARAMETERS: parameters}
    study.add_trial(optuna.trial.create_trial(value=value, user_attrs=attributes))
    return {_to_key(parameters): value}


def _read_parameters(trial: FrozenTrial) -> dict[str, Any]:
    return dict(trial.user_attrs.get(_PARAMETERS, {}))


def _to_key(parameters: Mapping[str, Any]) -> str:
    return json.dumps(parameters, sort_keys=True)


def _conclude(study: optuna.Study, request: EvaluationSpec, model: TrainedModel) -> EvaluationResult:
    direction = request.spec.study.direction
    complete = [trial for trial in study.trials if trial.state == TrialState.COMPLETE]
    reference = next(trial for trial in complete if trial.user_attrs.get(_IS_REFERENCE))
    # first, so that the reference wins ties
    ranked = [reference, *(trial for trial in complete if trial is not reference)]
    best = max(ranked, key=lambda trial: to_maximize(trial.value or 0.0, direction))
    params = _read_parameters(best)
    evaluations = {"reference": model.evaluate(_read_parameters(reference), on_test=True)}
    is_reference = training_key(params) == training_key(_read_parameters(reference))
    evaluations["best"] = evaluations["reference"] if is_reference else model.evaluate(params, on_test=True)
    generation = {name: value for name, value in params.items() if name in GENERATION}
    if request.searches_both and not is_reference:
        evaluations["generation"] = model.evaluate(
            {**_read_parameters(reference), **generation}, on_test=True
        )
    is_tested = all("test" in evaluation.values for evaluation in evaluations.values())
    on: On = "test" if is_tested else "validate"
    seed = derive(request.spec.study.seed, "bootstrap")

    def gain(name: str, reference_name: str) -> Gain:
        return _estimate_gain(
            evaluations[name], evaluations[reference_name], on, direction=direction, seed=seed
        )

    return EvaluationResult(
        name=study.study_name,
        metric=request.spec.study.metric,
        direction=direction,
        params=params,
        reference_params=_read_parameters(reference),
        is_reference=is_reference,
        chosen_value=float(best.value or 0.0),
        chosen_reference=float(reference.value or 0.0),
        on=on,
        gain=gain("best", "reference"),
        generation=gain("generation", "reference") if "generation" in evaluations else None,
        temperature=gain("best", "generation") if "generation" in evaluations else None,
        trials=len(complete),
        left_out=request.left_out,
    )


def _estimate_gain(best: Measured, reference: Measured, on: On, *, direction: Direction, seed: int) -> Gain:
    """Return the gain of a parameter set over another on the same data, with its interval if there is one."""
    value, reference_value = best.values.get(on, math.nan), reference.values.get(on, math.nan)
    best_units, units = best.units.get(on), reference.units.get(on)
    interval: Interval | None = None
    num_changed: int | None = None
    if best_units is not None and units is not None and best_units.is_paired_with(units):
        pairs = list(zip(best_units.values, units.values, strict=True))
        num_changed = sum(a != b for a, b in pairs)
        differences = [to_maximize(a - b, direction) for a, b in pairs]
        if len(differences) >= MIN_UNITS and all(map(math.isfinite, differences)):
            (interval,) = paired_bootstrap([differences], units.sizes, seed=seed)
    return Gain(
        value=value,
        reference_value=reference_value,
        gain=to_maximize(value - reference_value, direction) if interval is None else interval.difference,
        interval=interval,
        unit=None if units is None else units.kind,
        num_units=0 if units is None else len(units.values),
        num_items=0 if units is None else round(sum(units.sizes)),
        num_changed=num_changed,
    )
