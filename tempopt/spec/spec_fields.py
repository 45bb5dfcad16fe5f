"""The sections of a study spec, each valid in itself, and what follows from them without further checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field, ValidationInfo, field_serializer, field_validator, model_validator

from tempopt.spec.compared_sets import NO_SEARCH, ComparedSet, check_sets, normalize_comparison
from tempopt.spec.domains import UNSET, Domain, domain_to_yaml
from tempopt.spec.lightning_config import parse_class_section, parse_trainer
from tempopt.spec.resources import Resources
from tempopt.spec.search_space import parse_search, parse_sets
from tempopt.spec.sections import AttachSection, SpecSection
from tempopt.spec.study_section import StudySection
from tempopt.spec.temperatures import TemperatureSection, searched_temperatures, with_attention
from tempopt.spec.yaml_source import CollectedSpecError
from tempopt.temperature.generation import GENERATION
from tempopt.temperature.named import AS_FOUND, join_name
from tempopt.temperature.parameters import TEMPERATURE_PARAMETERS
from tempopt.temperature.plan import flatten_schedule_args
from tempopt.temperature.plan_parts import NORMALISATION


class SpecFields(SpecSection):
    """The sections of a study spec; :class:`.StudySpec` adds checks of how they fit together."""

    study: StudySection
    model: Annotated[
        dict[str, Any], Field(description="the LightningModule, as in {class_path: package.module.Class}")
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

    @model_validator(mode="before")
    @classmethod
    def _compares(cls, data: object) -> object:
        return normalize_comparison(with_attention(data))

    @field_validator("model", "data", mode="before")
    @classmethod
    def _class(cls, value: object, info: ValidationInfo) -> dict[str, Any] | None:
        name = str(info.field_name)
        return None if value is None and name == "data" else parse_class_section(value, section=name)

    @field_validator("trainer", mode="before")
    @classmethod
    def _trainer(cls, value: object) -> dict[str, Any]:
        return parse_trainer(value)

    @field_validator("compare")
    @classmethod
    def _sets(cls, sets: list[ComparedSet] | None, info: ValidationInfo) -> list[ComparedSet] | None:
        if sets is not None:
            model = info.data.get("model") or {}
            names = info.data.get("temperatures")
            check_sets(sets, model_args=model.get("init_args", {}), temperatures=names)
        return sets

    @field_validator("search", mode="before")
    @classmethod
    def _search(cls, value: object, info: ValidationInfo) -> dict[str, Domain]:
        if value is NO_SEARCH:
            return {}
        model = info.data.get("model") or {}
        names = info.data.get("temperatures")
        return parse_search(value, model_args=model.get("init_args", {}), temperatures=names)

    @field_serializer("search")
    def _domains(self, search: dict[str, Domain]) -> dict[str, Any]:
        return {name: domain_to_yaml(domain) for name, domain in search.items()}

    @property
    def attends(self) -> bool:
        """Whether attention's temperature is searched or set, and not only others."""
        return not self.temperatures or self.attach is not None or "" in searched_temperatures(self.search)

    @property
    def other_names(self) -> list[str]:
        """Searched names that every arm tunes: parameters of generation, and what has no baseline."""
        return [
            name
            for name, domain in self.search.items()
            if name in GENERATION or (name not in TEMPERATURE_PARAMETERS and domain.baseline == UNSET)
        ]

    @property
    def method_names(self) -> list[str]:
        """Searched names that are no temperature, and that runs at τ = 1 hold at a baseline."""
        return [
            name for name, domain in self.search.items() if name in NORMALISATION or domain.baseline != UNSET
        ]

    @property
    def num_trials(self) -> int:
        """Number of search trials: more by default where ordinary parameters are searched, too."""
        return self.study.trials or (16 if self.other_names else 12)

    @property
    def num_constant(self) -> int:
        """Number of constant temperatures in the first design of the search."""
        return self.study.arms.constant or 4

    @property
    def num_baseline(self) -> int:
        """Number of runs at the baseline's temperature in the first design."""
        return self.study.arms.baseline or (4 if self.other_names else 2)

    @property
    def num_tuning(self) -> int:
        """Number of runs that tune the ordinary parameters at the baseline once the search is over."""
        num_tuned = len(self.other_names)
        return 4 + 2 * num_tuned if num_tuned else 0

    @property
    def compared_sets(self) -> list[ComparedSet]:
        """The parameter sets of a comparison, the reference first."""
        assert self.compare is not None, "the spec of a search has no sets to compare"
        return self.compare

    @property
    def about_temperature(self) -> bool:
        """Whether the verdict is about temperature; else parameter sets are compared."""
        return self.compare is None

    @property
    def ranks(self) -> int:
        """Number of processes that train a run together."""
        devices = self.trainer.get("devices", 1)
        return devices if isinstance(devices, int) and devices > 1 else 1

    @property
    def uses_gpu(self) -> bool:
        """Whether trainings may take cards."""
        return self.trainer.get("accelerator") != "cpu"

    @property
    def fixed_temperatures(self) -> dict[str, Any]:
        """Temperature parameters that the model's init arguments set, and named temperatures as found.

        A module that is attached to has arguments of its own, of whatever name; of these only the temperature
        of its output is tempopt's.
        """
        names = TEMPERATURE_PARAMETERS if self.attach is None else ("output_temperature",)
        fixed_values = {name: value for name, value in self.model["init_args"].items() if name in names}
        initial_values = {
            join_name(name, AS_FOUND): section.as_found
            for name, section in self.temperatures.items()
            if section.as_found is not None
        }
        return flatten_schedule_args(fixed_values) | initial_values

    @property
    def evaluated(self) -> list[str]:
        """The temperatures that the evaluation of a trained model reads; attention's is the empty text."""
        names = [name for name, section in self.temperatures.items() if section.evaluated]
        return [*([""] if self.attends else []), *names]

    def enqueued_at(self, sets: Sequence[Mapping[str, Any]], *, path: str) -> list[dict[str, Any]]:
        """Return what :meth:`enqueued` does; CollectedSpecError names what is wrong below a path."""
        if len(sets) > self.num_trials:
            message = (
                f"given {len(sets)} parameter sets, but study.trials is {self.num_trials}. "
                "Give at most that many, or more trials."
            )
            raise CollectedSpecError([(path, message)])
        return parse_sets(sets, search=self.search, path=path)

    def to_json(self) -> dict[str, Any]:
        """Return the spec as plain data, with ``${NAME}`` as written and without this machine's ``--set``."""
        return self.model_dump(mode="json")
