"""The key ``study.proxy``: a smaller training that the search is carried out on, and how τ goes over.

Which tickets train the proxy is ``records.rows.AT_PROXY``; who goes over is confirmation/transfer.py's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, get_args

from pydantic import Field, field_validator

from tempopt.errors import SpecError, unknown
from tempopt.spec.domains import Choices, Domain, Range
from tempopt.spec.lightning_sections import UNSEARCHED
from tempopt.spec.sections import Section
from tempopt.spec.temperatures import tempered
from tempopt.spec.validation_errors import FaultySpecError
from tempopt.spec.yaml_source import Override, apply
from tempopt.temperature.groups import CREDITED
from tempopt.temperature.named import join_name, split_name
from tempopt.temperature.parameters import TEMPERATURE_PARAMETERS
from tempopt.temperature.ranges import HIGHEST, LOWEST
from tempopt.temperature.scaling import head_dim_shift, length_shift, scales_with_length, shifted

if TYPE_CHECKING:
    from tempopt.spec.study_spec import StudySpec

Rule = Literal["same", "head_dim", "length"]
RULES: tuple[Rule, ...] = get_args(Rule)
"""How ln τ moves with size: not at all, with the dimension of the heads, with the number of keys."""

PATH = "study.proxy"
SET = f"{PATH}.set"
MOST_FINALISTS = 20
_FARTHEST = 10.0
_RULE = f"same, head_dim, length, or a shift of ln τ from {-_FARTHEST:g} to {_FARTHEST:g}"
_EXAMPLE = "{set: {model.d_model: 32, trainer.max_steps: 300}}"
_SECTIONS = ("model", "data", "trainer")
_LEVELS = ("temperature_init", "temperature_final", "warmup_start")

_Sizes = Annotated[list[int], Field(min_length=2, max_length=2)]


class ProxySection(Section):
    """``study.proxy``: what the small training differs in, and how what it finds goes over to full size.

    Args:
        set: Values that are written over the spec for the small training, by path as in ``--set``.
        temperature: How ln τ moves from the proxy to full size: ``same`` not at all, ``head_dim`` by
            ½ ln(d_full / d_proxy), ``length`` by −ln(ln n_full / ln n_proxy), or by a number that is added.
        finalists: Candidates of the proxy that are compared at full size, beside τ = 1; 1: none is, and the
            winner of the proxy is confirmed.
        head_dim: Dimension of the heads of the proxy and at full size; None: the dry run finds it.
        length: Number of keys of the proxy and at full size; read by ``temperature: length``.
        steps: Steps of a run of the proxy and at full size, as the dry run has found.
        parameters: Number of parameters of both models, as the dry run has found.
    """

    set: Annotated[dict[str, Any], Field(description=f"a mapping of paths to values, as in {_EXAMPLE}")]
    temperature: Annotated[Rule | float, Field(description=_RULE)] = "same"
    finalists: Annotated[
        int, Field(ge=1, le=MOST_FINALISTS, description=f"a whole number from 1 to {MOST_FINALISTS}")
    ] = 3
    head_dim: Annotated[
        _Sizes | None,
        Field(description="the dimension of a head of the proxy and at full size, as in [8, 32], or null"),
    ] = None
    length: Annotated[
        _Sizes | None,
        Field(description="the number of keys of the proxy and at full size, as in [64, 256], or null"),
    ] = None
    steps: Annotated[_Sizes | None, Field(description="two whole numbers, or null")] = None
    parameters: Annotated[_Sizes | None, Field(description="two whole numbers, or null")] = None

    @field_validator("temperature", mode="before")
    @classmethod
    def _rule(cls, given: object) -> object:
        number = isinstance(given, int | float) and not isinstance(given, bool)
        if number and abs(given) <= _FARTHEST:  # type: ignore[arg-type]
            return float(given)  # type: ignore[arg-type]
        if given in RULES:
            return given
        if isinstance(given, str):
            raise ValueError(unknown("rule", given, RULES, f"Or give {_RULE.partition('or ')[2]}."))
        raise ValueError(f"given {given!r}. Give {_RULE}.")

    @field_validator("head_dim", "length")
    @classmethod
    def _sizes(cls, given: list[int] | None, info: Any) -> list[int] | None:
        fewest = 2 if info.field_name == "length" else 1
        if given is not None and min(given) < fewest:
            raise ValueError(f"given {given}. Give two whole numbers of at least {fewest}: proxy, full size.")
        return given

    @property
    def settings(self) -> list[Override]:
        """What is written over the spec for the small training."""
        return [Override.of(path, value) for path, value in self.set.items()]

    @property
    def shift(self) -> float | None:
        """What is added to ln τ on the way to full size; None: a size is not known yet."""
        if isinstance(self.temperature, float):
            return self.temperature
        if self.temperature == "head_dim":
            return None if self.head_dim is None else head_dim_shift(*self.head_dim)
        if self.temperature == "length":
            return None if self.length is None else length_shift(*self.length)
        return 0.0

    @property
    def cost_ratio(self) -> float | None:
        """How many times as much a run at full size is expected to cost as one of the proxy, unmeasured.

        By steps, times the number of parameters where it is known; None: not even the steps are.
        """
        if self.steps is None:
            return None
        small, large = self.parameters or (1, 1)
        return self.steps[1] / self.steps[0] * max(1.0, large / max(1, small))

    @property
    def sizes(self) -> dict[str, list[int]]:
        """What a dry run finds of the proxy and at full size, as far as it is known, by name."""
        sizes = {name: getattr(self, name) for name in ("head_dim", "steps", "parameters")}
        return {name: each for name, each in sizes.items() if each is not None}

    def with_sizes(self, found: Mapping[str, Sequence[int]]) -> Self:
        """Return the section with what a dry run has found, where it does not say it and reads it."""
        read = [name for name in found if name != "head_dim" or self.temperature == "head_dim"]
        return self.model_copy(update={name: list(found[name]) for name in read if name not in self.sizes})


def one_proxy(given: object) -> object:
    """Return what ``study.proxy`` is given, if that is one proxy.

    Raises:
        ValueError: It is a list, or no mapping.
    """
    if isinstance(given, list):
        raise ValueError(
            f"given a list of {len(given)}, but a study has one proxy, and no sizes in between. Give "
            f"one mapping, as in proxy: {_EXAMPLE}."
        )
    if given is not None and not isinstance(given, Mapping | ProxySection):
        raise ValueError(f"given {given!r}. Give a mapping, as in proxy: {_EXAMPLE}, or null.")
    return given


def small_data(spec: StudySpec) -> dict[str, Any]:
    """Return a spec that has a proxy with ``proxy.set`` written over it, as plain data without the proxy.

    Raises:
        SpecError: A path goes through something that is no mapping.
    """
    assert spec.study.proxy is not None
    data = spec.to_json()
    data["study"]["proxy"] = None
    # one training has no budget to split
    data["study"]["limits"]["split"] = []
    return apply(data, spec.study.proxy.settings, option="path")


def overrides_of_proxy(spec: StudySpec, local: Sequence[Override]) -> tuple[Override, ...]:
    """Return this machine's own settings as far as the proxy of a spec does not set the same."""
    proxy = spec.study.proxy
    assert proxy is not None
    return tuple(each for each in local if not any(_overlap(each.path, own.path) for own in proxy.settings))


def proxy_problems(spec: StudySpec) -> list[tuple[str, str]]:
    """Return what is wrong with the proxy of a spec that is right else: paths and messages."""
    proxy = spec.study.proxy
    if proxy is None:
        return []
    for path, is_given, why in (
        ("study.evaluate_only", spec.study.evaluate_only is not None, "nothing is trained"),
        ("compare", spec.compare is not None, "the given sets are trained at full size"),
        ("study.compare", spec.study.compare is not None, "each value searches by itself, at full size"),
    ):
        if is_given:
            return [(PATH, f"given with {path}, where {why}. Take one of the two out.")]
    if not proxy.set:
        return [
            (SET, f"is empty, so that the proxy is the model itself. Give what makes it small: {_EXAMPLE}.")
        ]
    lines = [(f"{SET}.{name}", text) for name in proxy.set if (text := _path_problem(name, spec))]
    lines += _twice(proxy)
    return lines or [*_rule_problems(spec, proxy), *_unfit(spec, proxy)]


def _path_problem(name: str, spec: StudySpec) -> str | None:
    """Return what is wrong with a path of ``proxy.set``, as far as data alone can tell."""
    segments = name.split(".")
    section, rest = segments[0], segments[1:]
    if section not in _SECTIONS:
        why = f"A proxy differs below {', '.join(_SECTIONS)} alone, as in model.d_model."
        return unknown("section", section, _SECTIONS, why)
    path = Override.of(name, None).path
    if not all(segments) or not rest or path[1:] == ("init_args",):
        return f"no single value is named. Give what is below {section}, as in {_example(section)}."
    if path[1] == "class_path":
        return "a proxy is the same class at another size. Give arguments of it, as in model.d_model."
    if section == "data" and spec.data is None:
        return "the spec has no section data:. Take it out."
    if section == "trainer" and (reason := UNSEARCHED.get(rest[0])):
        return f"{rest[0]} is the same for the proxy and at full size: {reason}"
    if section == "trainer" and rest[0] == "callbacks":
        return "a callback may change what a run is, so both sizes have the same ones. Take it out."
    if section == "model" and spec.attach is None and path[2] in TEMPERATURE_PARAMETERS:
        return "temperatures go over by study.proxy.temperature, and are no size of a model. Take it out."
    for searched in spec.search:
        if _overlap(path, _searched_path(searched)):
            return f"{searched} is searched, so the proxy cannot set it. Take one of the two out."
    return None


def _example(section: str) -> str:
    return {"model": "model.d_model", "data": "data.length"}.get(section, "trainer.max_steps")


def _searched_path(name: str) -> tuple[str, ...]:
    section, dot, rest = name.partition(".")
    if dot and section in ("data", "trainer"):
        return Override.of(name, None).path
    return ("model", "init_args", *(rest if dot and section == "model" else name).split("."))


def _overlap(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    return all(a == b for a, b in zip(one, other, strict=False))


def _twice(proxy: ProxySection) -> list[tuple[str, str]]:
    first: dict[tuple[str, ...], str] = {}
    lines = []
    for name in proxy.set:
        path = Override.of(name, None).path
        if path in first:
            lines.append((f"{SET}.{name}", f"it is the same as {first[path]}. Take one of the two out."))
        first[path] = name
    return lines


def _rule_problems(spec: StudySpec, proxy: ProxySection) -> list[tuple[str, str]]:
    rule, of = proxy.temperature, tempered(spec.search)
    path, lines = f"{PATH}.temperature", []
    if rule in ("head_dim", "length") and "" not in of:
        message = f"given {rule}, a rule about attention, which is not searched. Give same, or a number."
        lines.append((path, message))
    if isinstance(rule, float) and len(of) > 1:
        names = " and ".join(name or "attention" for name in of)
        message = f"given {rule:g}, but {names} are searched. Give same, head_dim or length."
        lines.append((path, message))
    if rule == "length" and proxy.length is None:
        lines.append((f"{PATH}.length", "is missing. Give the number of keys of both, as in [64, 256]."))
    for name in ("head_dim", "length"):
        if getattr(proxy, name) is not None and rule != name:
            message = f"given with temperature: {rule}, which does not read it. Take one of them out."
            lines.append((f"{PATH}.{name}", message))
    return lines or _beyond(spec, proxy)


def _beyond(spec: StudySpec, proxy: ProxySection) -> list[tuple[str, str]]:
    """Return which searched temperatures no training could have at full size."""
    lines = []
    for temperature in shifted_temperatures(spec):
        for level in _LEVELS:
            name = join_name(temperature, level)
            values = [each * factor(spec, temperature) for each in _numbers(spec.search.get(name))]
            if values and not LOWEST <= min(values) <= max(values) <= HIGHEST:
                message = (
                    f"ln τ moves by {proxy.shift:.3g}, so that {name} at full size is {min(values):.3g} to "
                    f"{max(values):.3g}. It may be {LOWEST:g} to {HIGHEST:g}: search a smaller range."
                )
                lines.append((f"{PATH}.temperature", message))
    return lines


def _numbers(domain: Domain | None) -> list[float]:
    if isinstance(domain, Range):
        return [float(domain.low), float(domain.high)]
    given = domain.choices if isinstance(domain, Choices) else ()
    return [float(each) for each in given if isinstance(each, int | float) and not isinstance(each, bool)]


def _unfit(spec: StudySpec, proxy: ProxySection) -> list[tuple[str, str]]:
    """Return why the small training is no valid one, or no other one than that at full size."""
    places = {".".join(each.path): each.written for each in proxy.settings}
    try:
        small = spec.at_proxy()
    except SpecError as error:
        if not isinstance(error, FaultySpecError):
            return [(SET, str(error))]
        return [
            (f"{SET}.{places[path]}", text) if path in places else (SET, f"{path}: {text}")
            for path, text in error.lines
        ]
    if all(getattr(small, name) == getattr(spec, name) for name in _SECTIONS):
        return [(SET, "changes nothing: the spec has these values already. Give smaller ones.")]
    if spec.study.start_from is not None and small.model != spec.model:
        names = ", ".join(name for name in proxy.set if name.partition(".")[0] == "model")
        message = (
            f"{names} given with study.start_from, whose weights are of one model: runs of the proxy start "
            "from them, too. Give a proxy that differs below trainer and data alone, as in "
            "{trainer.max_steps: 300}, or take start_from out."
        )
        return [(SET, message)]
    return []


# ---- from the proxy to full size


def shifted_temperatures(spec: StudySpec) -> list[str]:
    """Return the temperatures whose ln τ the rule moves: attention's is the empty text."""
    proxy = spec.study.proxy
    if proxy is None or proxy.temperature == "same":
        return []
    return tempered(spec.search) if isinstance(proxy.temperature, float) else [""]


def factor(spec: StudySpec, temperature: str) -> float:
    """Return by what the rule multiplies a temperature; 1 where it does not, or a size is not known yet."""
    proxy = spec.study.proxy
    return math.exp(proxy.shift or 0.0) if proxy and temperature in shifted_temperatures(spec) else 1.0


def to_full(spec: StudySpec, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a parameter set of the proxy is at full size; as it is where a study has no proxy.

    What has a length scaling follows the length by itself, and is not moved by ``temperature: length``.
    """
    return _moved(spec, parameters, 1.0)


def to_proxy(spec: StudySpec, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return what :func:`to_full` has made a parameter set of, but for the rounding."""
    return _moved(spec, parameters, -1.0)


def _moved(spec: StudySpec, parameters: Mapping[str, Any], sign: float) -> dict[str, Any]:
    found, proxy = dict(parameters), spec.study.proxy
    if proxy is None or (proxy.temperature == "length" and scales_with_length(parameters)):
        return found
    for temperature in shifted_temperatures(spec):
        assert proxy.shift is not None, "a study has begun whose dry run has found no size"
        found = shifted(found, sign * proxy.shift, temperature)
    return found


def moved_names(spec: StudySpec, parameters: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return which values of a set at full size the rule has moved, and which others were taken over.

    Of the others those that are no temperature, and numbers of keys: whether they transfer, no rule says.
    """
    small = to_proxy(spec, parameters)
    moved = [name for name, value in parameters.items() if small[name] != value]
    kept = [name for name in spec.search if name in parameters and name not in moved and _is_other(name)]
    return moved, kept


def _is_other(name: str) -> bool:
    return name not in CREDITED or split_name(name)[1] in ("n0", "window", "top_k")
