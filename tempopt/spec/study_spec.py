"""StudySpec: a validated study, with the sections of its YAML file.

``yaml_source.py`` reads the file and ``search_space.py`` has the search space. No class is imported here, so
that a spec can be loaded, compared and shown without torch or Lightning.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import Field, PrivateAttr, ValidationInfo, field_serializer, field_validator, model_validator

from tempopt.errors import SpecError, UsageError
from tempopt.spec import yaml_source
from tempopt.spec.alpha_levels import Direction
from tempopt.spec.compared_sets import NO_SEARCH, ComparedSet, add_sets, check_sets, normalize_comparison
from tempopt.spec.conditions import active_params
from tempopt.spec.cross_checks import find_inconsistencies, find_likely_mistakes
from tempopt.spec.domains import UNSET, Domain, domain_to_yaml
from tempopt.spec.identity import identity_fields
from tempopt.spec.lightning_config import parse_class_section, parse_trainer
from tempopt.spec.program import AnyProgram, Program
from tempopt.spec.program_section import ProgramSection, normalize_program
from tempopt.spec.resources import Need, Resources
from tempopt.spec.search_space import (
    SamplingArm,
    arm_parameters,
    arm_space,
    constant_grid,
    distributions,
    parse_search,
    parse_sets,
)
from tempopt.spec.sections import (
    PRUNERS,
    SAMPLERS,
    AttachSection,
    SamplerOrPrunerConfig,
    SpecSection,
    StudySection,
)
from tempopt.spec.temperatures import TemperatureSection, searched_temperatures
from tempopt.spec.validation_errors import format_error_list, validate_spec
from tempopt.spec.yaml_source import CollectedSpecError, Override, YamlDocument
from tempopt.temperature.generation import GENERATION
from tempopt.temperature.named import AS_FOUND, join_name
from tempopt.temperature.parameters import TEMPERATURE_PARAMETERS
from tempopt.temperature.plan import flatten_schedule_args
from tempopt.temperature.plan_parts import CREDITED, NORMALISATION, to_neutral
from tempopt.temperature.training_equivalence import same_training
from tempopt.version import __version__

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution


__all__ = ["PRUNERS", "SAMPLERS", "Direction", "SamplerOrPrunerConfig", "StudySpec"]


class StudySpec(SpecSection):
    """A study: a LightningCLI config (``model``, ``data``, ``trainer``) or a program, and how it is searched.

    Raises:
        SpecError: By :func:`tempopt.spec.load.load_spec`, :meth:`parse` and :meth:`from_json`; it lists all
            errors.
    """

    study: StudySection
    program: ProgramSection | None = None
    model: Annotated[
        dict[str, Any],
        Field(
            default_factory=dict, description="the LightningModule, as in {class_path: package.module.Class}"
        ),
    ]
    data: dict[str, Any] | None = None
    trainer: Annotated[dict[str, Any], Field(default_factory=dict)]
    temperatures: Annotated[
        dict[str, TemperatureSection],
        Field(
            default_factory=dict, description="a mapping, as in {contrast: {value: criterion.temperature}}"
        ),
    ]
    compare: Annotated[
        list[ComparedSet] | None,
        Field(description="a list of parameter sets, as in [{name: A, parameters: {}}, ...]"),
    ] = None
    search: Annotated[
        dict[str, Any], Field(description="what is searched, as in {temperature_init: {low: 0.25, high: 4}}")
    ]
    attach: AttachSection | None = None
    resources: Resources = Resources()

    # Overrides for this machine: in effect here, but neither stored nor compared.
    _local: tuple[Override, ...] = PrivateAttr(default=())

    @model_validator(mode="before")
    @classmethod
    def _normalize(cls, data: object) -> object:
        return normalize_comparison(normalize_program(data))

    @field_validator("model", "data", mode="before")
    @classmethod
    def _class(cls, value: object, info: ValidationInfo) -> dict[str, Any] | None:
        name = str(info.field_name)
        if not value and info.data.get("program") is not None:
            return {} if name == "model" else None
        return None if value is None and name == "data" else parse_class_section(value, section=name)

    @field_validator("trainer", mode="before")
    @classmethod
    def _trainer(cls, value: object) -> dict[str, Any]:
        return parse_trainer(value)

    @field_validator("compare")
    @classmethod
    def _sets(cls, sets: list[ComparedSet] | None, info: ValidationInfo) -> list[ComparedSet] | None:
        if sets is not None:
            check_sets(sets, **_valid_names(info))
        return sets

    @field_validator("search", mode="before")
    @classmethod
    def _search(cls, value: object, info: ValidationInfo) -> dict[str, Domain]:
        if value is NO_SEARCH:
            return {}
        return parse_search(value, **_valid_names(info))

    @field_serializer("search")
    def _domains(self, search: dict[str, Domain]) -> dict[str, Any]:
        return {name: domain_to_yaml(domain) for name, domain in search.items()}

    @property
    def attends(self) -> bool:
        """Whether attention's temperature is searched or set, not only named ones."""
        if self.program is not None:
            return any(name in CREDITED for _, name, _ in self.written_parameters())
        return not self.temperatures or self.attach is not None or "" in searched_temperatures(self.search)

    @property
    def ordinary_names(self) -> list[str]:
        """Searched names that every arm tunes: parameters of generation, and ordinary parameters."""
        return [
            name
            for name, domain in self.search.items()
            if name in GENERATION or (name not in TEMPERATURE_PARAMETERS and domain.baseline == UNSET)
        ]

    @property
    def method_parameter_names(self) -> list[str]:
        """Searched names of method parameters: not temperatures, and with a baseline for runs at τ = 1."""
        return [
            name for name, domain in self.search.items() if name in NORMALISATION or domain.baseline != UNSET
        ]

    @property
    def has_temperature(self) -> bool:
        """Whether there is a temperature, of attention or a named one; a program may have none."""
        return self.attends or bool(self.temperatures)

    @property
    def searches_temperature(self) -> bool:
        """Whether a temperature is searched, so that its gain is what the verdict is about."""
        return any(name in CREDITED for name in self.search)

    @property
    def baselines(self) -> dict[str, Any]:
        """The values at which the baseline holds searched names that are no temperature parameters."""
        return {name: domain.baseline for name, domain in self.search.items() if domain.baseline != UNSET}

    def to_baseline(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return parameters with the tested ones at the baseline, and the others unchanged."""
        if self.searches_temperature:
            return to_neutral(parameters)
        baselines = {name: value for name, value in self.baselines.items() if name in parameters}
        return active_params(self.search, {**parameters, **baselines})

    def is_baseline(self, parameters: Mapping[str, Any]) -> bool:
        """Return whether parameters train at the baseline already."""
        return same_training(parameters, self.to_baseline(parameters))

    @property
    def has_twin(self) -> bool:
        """Whether the winner is compared with its own other parameters at the baseline as well."""
        return bool(self.ordinary_names or (self.searches_temperature and self.method_parameter_names))

    @property
    def num_trials(self) -> int:
        """Number of search trials; the default is larger if ordinary parameters are searched."""
        return self.study.trials or (16 if self.ordinary_names else 12)

    @property
    def num_constant(self) -> int:
        """Number of constant temperatures in the first design of the search."""
        return (self.study.arms.constant or 4) if self.searches_temperature else 0

    @property
    def num_baseline(self) -> int:
        """Number of runs at the baseline's temperature in the first design."""
        return self.study.arms.baseline or (4 if self.ordinary_names else 2)

    @property
    def num_tuning(self) -> int:
        """Number of runs that tune the ordinary parameters at the baseline after the search."""
        num_tuned = len(self.ordinary_names)
        return 4 + 2 * num_tuned if num_tuned else 0

    @property
    def compared_sets(self) -> list[ComparedSet]:
        """The parameter sets of a comparison, the reference first."""
        assert self.compare is not None, "the spec of a search has no sets to compare"
        return self.compare

    @property
    def is_about_temperature(self) -> bool:
        """Whether the verdict is about temperature; otherwise parameter sets are compared."""
        return self.compare is None

    @property
    def counts_failures(self) -> bool:
        """Whether a run that failed on every attempt counts in a verdict like one that diverged.

        Compared sets and programs may fail by themselves; for other runs it is a fault of a machine.
        """
        return self.compare is not None or self.program is not None

    @property
    def ranks(self) -> int:
        """Number of processes that train a run together."""
        devices = self.trainer.get("devices", 1)
        return devices if isinstance(devices, int) and devices > 1 else 1

    @property
    def uses_gpu(self) -> bool:
        """Whether trainings may use GPUs."""
        return self.trainer.get("accelerator") != "cpu"

    @property
    def fixed_temperatures(self) -> dict[str, Any]:
        """Temperature parameters in the model's init arguments, and named temperatures as found.

        A module that is attached to has arguments with its own meaning; only the temperature of its output
        belongs to tempopt.
        """
        names = TEMPERATURE_PARAMETERS if self.attach is None else ("output_temperature",)
        fixed_values = {name: value for name, value in self.model_args.items() if name in names}
        initial_values = {
            join_name(name, AS_FOUND): section.as_found
            for name, section in self.temperatures.items()
            if section.as_found is not None
        }
        return flatten_schedule_args(fixed_values) | initial_values

    @property
    def model_args(self) -> dict[str, Any]:
        """Init arguments that the section ``model:`` sets."""
        arguments: dict[str, Any] = self.model.get("init_args", {})
        return arguments

    @property
    def evaluated(self) -> list[str]:
        """Temperatures that the evaluation of a trained model reads; attention's is the empty text.

        None of a program, which is not evaluated apart from its training.
        """
        if self.program is not None:
            return []
        names = [name for name, section in self.temperatures.items() if section.evaluated]
        return [*([""] if self.attends else []), *names]

    def written_parameters(self) -> Iterator[tuple[str, str, Sequence[Any]]]:
        """Yield path, name and values of searched and compared parameters; of a range some values."""
        for name, domain in self.search.items():
            yield f"search.{name}", name, domain.probes
        for compared_set in self.compare or ():
            for name, value in compared_set.parameters.items():
                yield f"compare.{compared_set.name}.{name}", name, (value,)

    def to_json(self) -> dict[str, Any]:
        """Return the spec as plain data, with ``${NAME}`` unresolved and without this machine's ``--set``."""
        return self.model_dump(mode="json")

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if lines := find_inconsistencies(self):
            raise CollectedSpecError(lines)
        return self

    @property
    def learns(self) -> bool:
        """Whether runs with learned temperatures are confirmed beside the winner."""
        can_learn = self.program is None and self.is_about_temperature
        return bool(self.study.learned) and not self.study.not_learned and can_learn

    def with_dry_run_results(
        self,
        temperatures: Mapping[str, float],
        *,
        not_learned: str | None = None,
        not_resumed: str | None = None,
        evaluated: Collection[str] | None = None,
        trained: Collection[str] | None = None,
    ) -> StudySpec:
        """Return the spec completed with the results of a dry run of its module; values in the spec take
        precedence.

        Args:
            temperatures: The named temperatures that the module has.
            not_learned: Why they cannot be learned; None if they can, or if this was not tested.
            not_resumed: Why a resumed run starts again; None: it goes on, or it was not tried.
            evaluated: Names of those that the metric reads in evaluation; None if this was not tested.
            trained: Names of those that the module's own optimizers train; None if this was not tested.
        """
        sections = {}
        for name, section in self.temperatures.items():
            looked_up = {
                "as_found": temperatures.get(name),
                "evaluated": None if evaluated is None else name in evaluated,
                "trained": None if trained is None else name in trained,
            }
            updates = {key: value for key, value in looked_up.items() if getattr(section, key) is None}
            sections[name] = section.model_copy(update=updates)
        reasons = {
            "not_learned": self.study.not_learned or not_learned,
            "not_resumed": self.study.not_resumed or not_resumed,
        }
        study = self.study.model_copy(update=reasons)
        return self.model_copy(update={"temperatures": sections, "study": study})

    @property
    def resources_here(self) -> Resources:
        """The section ``resources:`` with this machine's ``--set`` applied."""
        return self._apply_local_overrides().resources

    def resource_need(self, *, gpus: bool) -> Need:
        """Return the resources of a trial.

        Args:
            gpus: Whether the machine has GPUs, for a spec that does not set their number.
        """
        local_spec = self._apply_local_overrides()
        need = local_spec.resources.need(ranks=local_spec.ranks, can_use_gpus=local_spec.uses_gpu, gpus=gpus)
        return replace(need, loads_torch=self.program is None)

    @property
    def notes(self) -> list[str]:
        """Hints at valid settings that may be mistakes, one sentence each."""
        return find_likely_mistakes(self)

    def with_stored_dry_run_results(self, stored_spec: StudySpec) -> StudySpec:
        """Return the spec with the dry run's results that were stored when the study was created."""
        sections = stored_spec.temperatures
        return self.with_dry_run_results(
            {name: section.as_found for name, section in sections.items() if section.as_found is not None},
            not_learned=stored_spec.study.not_learned,
            not_resumed=stored_spec.study.not_resumed,
            evaluated=[name for name, section in sections.items() if section.evaluated],
            trained=[name for name, section in sections.items() if section.trained],
        )

    def space(self, arm: SamplingArm = "search") -> dict[str, BaseDistribution]:
        """Return Optuna's distributions of an arm's space."""
        if arm == "constant" and not self.searches_temperature:
            arm = "baseline"
        return arm_space(distributions(self.search), arm, self.ordinary_names)

    def constants(self) -> list[dict[str, float]]:
        """Return the temperatures of the constant arm by parameter, in the order of its runs."""
        return constant_grid(self.space(), self.num_constant)

    def parameters(self, arm: SamplingArm, sampled: Mapping[str, Any]) -> dict[str, Any]:
        """Return the complete parameter set that an arm trains with, from the values of its space."""
        return arm_parameters(arm, sampled, search=self.search, fixed=self.fixed_temperatures)

    def parse_enqueued_sets(self, sets: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return enqueued parameter sets with their values as in Optuna's distributions.

        Args:
            sets: Mappings of searched names to values; missing names are sampled. At most ``study.trials``
                sets.

        Raises:
            SpecError: A name is not searched, or a value is not in its range or among its choices.
        """
        try:
            return parse_sets(sets, search=self.search, max_sets=self.num_trials, path="enqueue")
        except CollectedSpecError as error:
            raise SpecError(format_error_list("These parameter sets have", str(error).splitlines())) from None

    def with_compared_sets(self, sets: Sequence[Mapping[str, Any]] | None) -> Self:
        """Return the spec with these parameter sets to compare; None keeps its own sets, if any.

        Raises:
            SpecError: A set is wrong, or the spec has sets as well.
        """
        spec = self.parse(add_sets(self.to_json(), sets), source="the study spec")
        spec._local = self._local
        return spec

    def with_overrides(self, overrides: Sequence[str]) -> Self:
        """Return the spec with ``a.b=c`` settings applied.

        Settings of ``data.*`` (except its class), ``resources.*`` and ``trainer.accelerator`` apply to this
        machine only: they are neither stored nor compared.

        Raises:
            SpecError: A setting cannot be parsed, or does not fit.
        """
        parsed_overrides = [yaml_source.parse_override(text) for text in overrides]
        spec = self._apply_overrides([override for override in parsed_overrides if not override.local])
        spec._local = (*self._local, *(override for override in parsed_overrides if override.local))
        spec._apply_local_overrides()
        return spec

    def _apply_overrides(self, overrides: Sequence[Override]) -> Self:
        stored_document = YamlDocument(source="the study spec with --set", data=self.to_json())
        written_document = stored_document.with_settings(overrides)
        return self.parse(written_document.data, source=written_document)

    @property
    def local_overrides(self) -> list[str]:
        """The ``a.b=c`` settings that apply to this machine only."""
        return [f"{override.written}={json.dumps(override.value)}" for override in self._local]

    def _apply_local_overrides(self) -> Self:
        """Return the spec with this machine's overrides applied."""
        return self._apply_overrides(self._local) if self._local else self

    def resolve_environment(self) -> Self:
        """Return the spec for this machine: with ``--set`` applied and ``${NAME}`` replaced.

        Raises:
            SpecError: An environment variable is not set, or an override does not fit.
        """
        data = self._apply_local_overrides().to_json()
        for section in ("model", "data", "trainer"):
            data[section] = yaml_source.resolve(data[section], path=section)
        return self.parse(data, source="the study spec with the environment's values")

    def build_program(self, *overrides: str) -> AnyProgram:
        """Return what a worker on this machine runs.

        Raises:
            SpecError: As in :meth:`lightning_program`.
        """
        return self.lightning_program(*overrides) if self.program is None else self.program.build(self)

    def lightning_program(self, *overrides: str) -> Program:
        """Return what a worker on this machine needs for training.

        Raises:
            SpecError: As in :meth:`with_overrides` and :meth:`resolve_environment`.
            UsageError: The spec has a program and no LightningModule.
        """
        if self.program is not None:
            raise UsageError("This is for LightningModules, and the spec has a section program:.")
        local_spec = (self.with_overrides(overrides) if overrides else self).resolve_environment()
        return Program(
            model=local_spec.model,
            data=local_spec.data,
            trainer=local_spec.trainer,
            attach=None if local_spec.attach is None else local_spec.attach.model_dump(),
            metric_reads_temperature=local_spec.study.metric_reads_temperature,
            values={name: section.model_dump() for name, section in local_spec.temperatures.items()},
            metric=local_spec.study.metric,
            validate_at=local_spec.study.validate_at,
            data_seed=local_spec.study.seed,
            identity=self.identity(),
            not_resumed=local_spec.study.not_resumed,
            compared=local_spec.compare is not None,
            compile=local_spec.study.compile,
        )

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Return the spec that :meth:`to_json` wrote.

        Raises:
            SpecError: The spec is from another version of tempopt whose form this version does not read.
        """
        try:
            return cls.parse(data, source="the stored study spec")
        except SpecError as error:
            raise SpecError(
                f"{error}\nAnother version of tempopt than this one ({__version__}) has stored it. Continue "
                "with that version, or install the newest: pip install --upgrade tempopt"
            ) from None

    @classmethod
    def parse(cls, data: Mapping[str, Any], *, source: str | YamlDocument) -> Self:
        """Return the spec that plain data describes.

        Args:
            data: The sections by name.
            source: Source of the data for messages; a YamlDocument adds line numbers.

        Raises:
            SpecError: The data are invalid; it lists all errors.
        """
        document = (
            source if isinstance(source, YamlDocument) else YamlDocument(source=source, data=dict(data))
        )
        return validate_spec(cls, data, document)

    def identity(self) -> str:
        """Return a hash that is equal for specs that define the same study (``diff_specs``)."""
        text = json.dumps(identity_fields(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def _valid_names(info: ValidationInfo) -> dict[str, Any]:
    """Return the init arguments and the named temperatures of other sections; None for invalid sections.

    A program has no init arguments.
    """
    model = info.data.get("model") or {}
    model_args = None if info.data.get("program") is not None else model.get("init_args", {})
    return {"model_args": model_args, "temperatures": info.data.get("temperatures")}
