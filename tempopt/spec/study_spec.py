"""StudySpec, a validated study: what is asked of a search, in the words of its YAML file.

Reading the file is yaml_source.py's, the search space is search_space.py's; no class is imported here, so
that a spec can be loaded, compared and shown without torch or Lightning.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from pydantic import PrivateAttr, model_validator

from tempopt.errors import SpecError
from tempopt.spec import yaml_source as document
from tempopt.spec.alpha_levels import Direction
from tempopt.spec.compared_sets import with_sets
from tempopt.spec.constants import constant_grid
from tempopt.spec.cross_checks import find_inconsistencies
from tempopt.spec.identity import identity_fields
from tempopt.spec.program import Program
from tempopt.spec.resources import Need, Resources
from tempopt.spec.search_checks import notes_on
from tempopt.spec.search_space import Arm, arm_parameters, arm_space, distributions
from tempopt.spec.sections import PRUNERS, SAMPLERS, SamplerOrPrunerConfig
from tempopt.spec.spec_fields import SpecFields
from tempopt.spec.temperature_checks import with_found
from tempopt.spec.validation_errors import format_error_list, validated
from tempopt.spec.yaml_source import CollectedSpecError, Override, YamlDocument
from tempopt.version import __version__

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution


__all__ = ["PRUNERS", "SAMPLERS", "Direction", "SamplerOrPrunerConfig", "StudySpec"]


class StudySpec(SpecFields):
    """A study: a LightningCLI config (``model``, ``data``, ``trainer``) plus tempopt's own sections.

    Raises:
        SpecError: from :func:`tempopt.spec.load.load_spec`, :meth:`parse` and :meth:`from_json`, with a line
            for everything that is wrong.
    """

    # Overrides of this machine: they are in force here, and are neither stored nor compared.
    _local: tuple[Override, ...] = PrivateAttr(default=())

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        lines = find_inconsistencies(self)
        if lines:
            raise CollectedSpecError(lines)
        return self

    @property
    def learns(self) -> bool:
        """Whether runs with learned temperatures are confirmed beside the winner."""
        return bool(self.study.learned) and not self.study.not_learned and self.about_temperature

    def with_dry_run_results(self, temperatures: Mapping[str, float], **kwargs: Any) -> StudySpec:
        """Return the spec with what a dry run has found; arguments as for ``temperatures.with_found``."""
        return self._with(with_found(self, temperatures, **kwargs))

    @property
    def resources_here(self) -> Resources:
        """The section ``resources:`` with this machine's ``--set`` in force."""
        return self._in_force().resources

    def resource_need(self, *, gpus: bool) -> Need:
        """Return what a trial takes.

        Args:
            gpus: Whether there are cards where it runs, for a spec that does not say how many it wants.
        """
        local_spec = self._in_force()
        return local_spec.resources.need(ranks=local_spec.ranks, on_cards=local_spec.uses_gpu, gpus=gpus)

    @property
    def notes(self) -> list[str]:
        """What is allowed and may yet be a slip, one sentence each, to be shown before a study begins."""
        return notes_on(self.study, self.search)

    def with_stored_dry_run_results(self, stored_spec: StudySpec) -> StudySpec:
        """Return the spec with what the dry run had found when the study was created."""
        sections = stored_spec.temperatures
        return self.with_dry_run_results(
            {name: section.as_found for name, section in sections.items() if section.as_found is not None},
            not_learned=stored_spec.study.not_learned,
            evaluated=[name for name, section in sections.items() if section.evaluated],
            trained=[name for name, section in sections.items() if section.trained],
        )

    def _with(self, spec: StudySpec) -> StudySpec:
        copy = spec.model_copy()
        copy._local = self._local
        return copy

    def space(self, arm: Arm = "search") -> dict[str, BaseDistribution]:
        """Return Optuna's distributions of what an arm samples."""
        return arm_space(distributions(self.search), arm, self.other_names)

    def constants(self) -> list[dict[str, float]]:
        """Return the temperatures of the constant arm by parameter, in the order of their runs."""
        return constant_grid(self.space(), self.num_constant)

    def parameters(self, arm: Arm, sampled: Mapping[str, Any]) -> dict[str, Any]:
        """Return the whole parameter set that an arm trains with, given the values of its own space."""
        fixed = self.fixed_temperatures
        return arm_parameters(arm, sampled, search=self.search, fixed=fixed)

    def enqueued(self, sets: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return parameter sets that a person wants tried, as Optuna's distributions hold their values.

        Args:
            sets: Mappings of searched names to values; what a set leaves out is sampled. At most
                ``study.trials`` of them.

        Raises:
            SpecError: A name is not searched, or a value is not in its range or among its choices.
        """
        try:
            return self.enqueued_at(sets, path="enqueue")
        except CollectedSpecError as error:
            raise SpecError(format_error_list("These parameter sets have", str(error).splitlines())) from None

    def comparing(self, sets: Sequence[Mapping[str, Any]] | None) -> Self:
        """Return the spec with these parameter sets to be compared; None: those that it has, if any.

        Raises:
            SpecError: A set is wrong, or the spec has sets of its own.
        """
        spec = self.parse(with_sets(self.to_json(), sets), source="the study spec")
        spec._local = self._local
        return spec

    def with_overrides(self, overrides: Sequence[str]) -> Self:
        """Return the spec with ``a.b=c`` settings in force.

        Settings of ``data.*`` (its class aside), ``resources.*`` and ``trainer.accelerator`` are this
        machine's own: neither stored nor compared.

        Raises:
            SpecError: A setting cannot be read, or does not fit.
        """
        parsed_overrides = [document.parse_override(text) for text in overrides]
        stored_document = YamlDocument(source="the study spec with --set", data=self.to_json())
        written_document = stored_document.with_settings(
            [override for override in parsed_overrides if not override.local]
        )
        spec = self.parse(written_document.data, source=written_document)
        spec._local = (*self._local, *(override for override in parsed_overrides if override.local))
        spec._in_force()
        return spec

    @property
    def local_overrides(self) -> list[str]:
        """The ``a.b=c`` settings that are this machine's own."""
        return [f"{override.written}={json.dumps(override.value)}" for override in self._local]

    def _in_force(self) -> Self:
        """Return the spec with this machine's overrides written into it."""
        if not self._local:
            return self
        stored_document = YamlDocument(source="the study spec with --set", data=self.to_json())
        written_document = stored_document.with_settings(self._local)
        return self.parse(written_document.data, source=written_document)

    def resolved(self) -> Self:
        """Return the spec as it holds on this machine: ``--set`` in force and ``${NAME}`` replaced.

        Raises:
            SpecError: An environment variable is not set, or an override does not fit.
        """
        data = self._in_force().to_json()
        for section in ("model", "data", "trainer"):
            data[section] = document.resolve(data[section], path=section)
        return self.parse(data, source="the study spec with the environment's values")

    def program(self, *overrides: str) -> Program:
        """Return what a trainer on this machine needs to know.

        Raises:
            SpecError: As in :meth:`with_overrides` and :meth:`resolved`.
        """
        local_spec = (self.with_overrides(overrides) if overrides else self).resolved()
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
            compared=local_spec.compare is not None,
            compile=local_spec.study.compile,
        )

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Return the spec that :meth:`to_json` wrote.

        Raises:
            SpecError: Another version of tempopt wrote it, in a way that this one does not read.
        """
        try:
            return cls.parse(data, source="the stored study spec")
        except SpecError as error:
            raise SpecError(
                f"{error}\nAnother version of tempopt than this one ({__version__}) has stored it. Go on "
                "with that version, or install the newest: pip install --upgrade tempopt"
            ) from None

    @classmethod
    def parse(cls, data: Mapping[str, Any], *, source: str | YamlDocument) -> Self:
        """Return the spec that plain data describes.

        Args:
            data: The sections by name.
            source: What the data was read from, for messages; a Document gives them line numbers.

        Raises:
            SpecError: Something is wrong; there is a line for each thing.
        """
        origin = source if isinstance(source, YamlDocument) else YamlDocument(source=source, data=dict(data))
        return validated(cls, data, origin)

    def identity(self) -> str:
        """Return a hash that is equal for specs that ask the same (:func:`tempopt.spec.identity.diff`)."""
        text = json.dumps(identity_fields(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()
