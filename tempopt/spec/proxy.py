"""The key ``study.proxy``: smaller trainings that the search is carried out on, and how τ goes over.

Which tickets train which size is model_sizes.py's; who goes over is confirmation/transfer.py's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, product
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, get_args

from pydantic import Field, PrivateAttr, field_validator, model_validator

from tempopt.errors import SpecError, unknown
from tempopt.spec.domains import Choices, Domain, Range
from tempopt.spec.lightning_sections import UNSEARCHED
from tempopt.spec.model_sizes import full_size, shifted_temperatures
from tempopt.spec.sections import Section
from tempopt.spec.temperatures import tempered
from tempopt.spec.validation_errors import FaultySpecError
from tempopt.spec.yaml_source import FaultsError, Override, apply
from tempopt.temperature.named import join_name
from tempopt.temperature.parameters import TEMPERATURE_PARAMETERS
from tempopt.temperature.ranges import HIGHEST, LOWEST
from tempopt.temperature.scaling import head_dim_shift, length_shift

if TYPE_CHECKING:
    from tempopt.spec.study_spec import StudySpec

Rule = Literal["same", "head_dim", "length", "measured"]
RULES: tuple[Rule, ...] = get_args(Rule)
"""How ln τ moves with size: not at all, with the dimension of heads, the number of keys, or as runs show."""

PATH = "study.proxy"
SET = f"{PATH}.set"
MOST_FINALISTS = 20
MOST_PROXIES = 5
_FARTHEST = 10.0
_RULE = f"same, head_dim, length, measured, or a shift of ln τ from {-_FARTHEST:g} to {_FARTHEST:g}"
TRY_SHIFTS = (-0.4, 0.4)
_MOST_SHIFTS = 4
_EXAMPLE = "{set: {model.d_model: 32, trainer.max_steps: 300}}"
_SEVERAL = "set: [{model.d_model: 32}, {model.d_model: 128}]"
_SET = f"a mapping of paths to values, as in {_EXAMPLE}, or a list of them, the smallest first: {_SEVERAL}"
_SECTIONS = ("model", "data", "trainer")
_LEVELS = ("temperature_init", "temperature_final", "warmup_start")
_FEWEST = 2
_BY_SIZE = ("head_dim", "length", "steps", "parameters")
"""What a section says of each size, the proxies first and full size last."""

_Sizes = Annotated[list[int], Field(min_length=_FEWEST, max_length=MOST_PROXIES + 1)]


class ProxySection(Section):
    """``study.proxy``: what smaller trainings differ in, and how what they find goes over to full size.

    Args:
        set: Values that are written over the spec for the small training, by path as in ``--set``. A list of
            such mappings: several proxies, the smallest first, on which the search is.
        temperature: How ln τ moves from a size to the next: ``same`` not at all, ``head_dim`` by
            ½ ln(d_next / d), ``length`` by −ln(ln n_next / ln n), ``measured`` by that of ``try_shifts``, or
            0, with which the winner of the proxy is best at the next size, or by a number that is added; with
            several proxies a list of such numbers, one from each of them to the next size.
        try_shifts: Shifts of ln τ that are tried at the first larger size, read by ``temperature: measured``;
            None: :data:`TRY_SHIFTS`.
        finalists: Candidates that are compared at each larger size at most, beside τ = 1; 1: none is at full
            size, and what has come so far is confirmed.
        head_dim: Dimension of the heads of each proxy and at full size; None: the dry run finds it.
        length: Number of keys of each proxy and at full size; read by ``temperature: length``.
        steps: Steps of a run of each proxy and at full size, as the dry run has found.
        parameters: Number of parameters of all these models, as the dry run has found.
    """

    set: Annotated[dict[str, Any] | list[dict[str, Any]], Field(description=_SET)]
    temperature: Annotated[Rule | float | list[float], Field(description=_RULE)] = "same"
    try_shifts: Annotated[
        list[float] | None,
        Field(description=f"one to {_MOST_SHIFTS} shifts of ln τ that are not 0, as in [-0.4, 0.4], or null"),
    ] = None
    finalists: Annotated[
        int, Field(ge=1, le=MOST_FINALISTS, description=f"a whole number from 1 to {MOST_FINALISTS}")
    ] = 3
    head_dim: Annotated[
        _Sizes | None,
        Field(description="the dimension of a head of each proxy and at full size, as in [8, 32], or null"),
    ] = None
    length: Annotated[
        _Sizes | None,
        Field(description="the number of keys of each proxy and at full size, as in [64, 256], or null"),
    ] = None
    steps: Annotated[_Sizes | None, Field(description="a whole number for each size, or null")] = None
    parameters: Annotated[_Sizes | None, Field(description="a whole number for each size, or null")] = None
    # runs measure it, so it is no part of what a person writes
    _measured: float | None = PrivateAttr(default=None)

    @field_validator("set", mode="before")
    @classmethod
    def _mappings(cls, given: object) -> object:
        each = given if isinstance(given, list) else [given]
        if not each or not all(isinstance(one, Mapping) for one in each):
            raise ValueError(f"given {given!r}. Give {_SET}.")
        if len(each) > MOST_PROXIES:
            raise ValueError(f"given {len(each)} proxies. Give at most {MOST_PROXIES}.")
        return each[0] if len(each) == 1 else given

    @field_validator("temperature", mode="before")
    @classmethod
    def _rule(cls, given: Any) -> object:
        each = given if isinstance(given, list) and given else [given]
        if all(_is_shift(one) for one in each):
            numbers = [float(one) for one in each]
            return numbers[0] if len(numbers) == 1 else numbers
        if given in RULES:
            return given
        if isinstance(given, str):
            raise ValueError(unknown("rule", given, RULES, f"Or give {_RULE.partition('or ')[2]}."))
        raise ValueError(f"given {given!r}. Give {_RULE}, with several proxies a list of such shifts.")

    @field_validator("try_shifts", mode="before")
    @classmethod
    def _shifts_to_try(cls, given: Any) -> object:
        if given is None:
            return None
        each = given if isinstance(given, list) else [given]
        if not 1 <= len(each) <= _MOST_SHIFTS or not all(_is_shift(one) and one for one in each):
            raise ValueError(
                f"given {given!r}. Give one to {_MOST_SHIFTS} shifts of ln τ from {-_FARTHEST:g} to "
                f"{_FARTHEST:g}, as in [-0.4, 0.4]. 0 is tried anyway."
            )
        numbers = [float(one) for one in each]
        if len(set(numbers)) < len(numbers):
            raise ValueError(f"given {given!r}, with one shift twice. Give each once.")
        return numbers

    @field_validator("head_dim", "length")
    @classmethod
    def _sizes(cls, given: list[int] | None, info: Any) -> list[int] | None:
        fewest = _FEWEST if info.field_name == "length" else 1
        if given is not None and min(given) < fewest:
            raise ValueError(
                f"given {given}. Give whole numbers of at least {fewest}: proxies first, full size last."
            )
        return given

    @model_validator(mode="after")
    def _counted(self) -> Self:
        proxies = len(self.sets)
        lines = [
            (
                name,
                f"given {len(given)} numbers, but there {_are(proxies)} and full size. Give "
                f"{proxies + 1}: proxies first, full size last.",
            )
            for name in _BY_SIZE
            if (given := getattr(self, name)) is not None and len(given) != proxies + 1
        ]
        shifts = self._given_shifts
        if shifts is not None and len(shifts) != proxies:
            text = ", ".join(f"{each:g}" for each in shifts)
            message = f"given {text}, but there {_are(proxies)}. Give a shift from each to the next size."
            lines.append(("temperature", message))
        if lines:
            raise FaultsError(lines)
        return self

    @property
    def sets(self) -> list[dict[str, Any]]:
        """What is written over the spec for each proxy, the smallest first."""
        return self.set if isinstance(self.set, list) else [self.set]

    def path_of(self, size: int) -> str:
        """Return the path at which a spec has what makes a proxy small."""
        return f"{SET}.{size}" if isinstance(self.set, list) else SET

    def settings(self, size: int) -> list[Override]:
        """Return what is written over the spec for a proxy."""
        return [Override.of(path, value) for path, value in self.sets[size].items()]

    @property
    def _given_shifts(self) -> list[float] | None:
        if isinstance(self.temperature, str):
            return None
        return self.temperature if isinstance(self.temperature, list) else [self.temperature]

    @property
    def shifts(self) -> list[float] | None:
        """What is added to ln τ from each proxy to the next size; None: dimensions are not known yet.

        0 where it is to be measured and is not yet.
        """
        if (given := self._given_shifts) is not None:
            return given
        if self.temperature in ("same", "measured"):
            return [self._measured or 0.0] * len(self.sets)
        by, sizes = (
            (head_dim_shift, self.head_dim) if self.temperature == "head_dim" else (length_shift, self.length)
        )
        return None if sizes is None else [by(*each) for each in pairwise(sizes)]

    @property
    def is_unmeasured(self) -> bool:
        """Whether runs are still to measure the shift."""
        return self.temperature == "measured" and self._measured is None

    @property
    def shifts_to_try(self) -> list[float]:
        """The shifts of ln τ beside 0 that are tried at the first larger size; none with another rule."""
        if self.temperature != "measured":
            return []
        return list(TRY_SHIFTS) if self.try_shifts is None else self.try_shifts

    def measured_as(self, shift: float) -> Self:
        """Return the section with the shift of ln τ that runs have measured."""
        found = self.model_copy()
        found._measured = shift
        return found

    @property
    def races(self) -> bool:
        """Whether anything is compared at a larger size before it is confirmed."""
        return self.finalists > 1 or len(self.sets) > 1 or self.temperature == "measured"

    def shift_to(self, size: int) -> float | None:
        """Return what is added to ln τ from the smallest proxy to a size; None: not known yet."""
        return None if self.shifts is None else sum(self.shifts[:size])

    @property
    def cost_ratios(self) -> list[float] | None:
        """How many times as much a run of each size is expected to cost as one of the smallest, unmeasured.

        By steps, times the number of parameters where it is known; None: not even the steps are.
        """
        if self.steps is None:
            return None
        parameters = self.parameters or [1] * len(self.steps)
        return [
            steps / self.steps[0] * max(1.0, count / max(1, parameters[0]))
            for steps, count in zip(self.steps, parameters, strict=True)
        ]

    @property
    def sizes(self) -> dict[str, list[int]]:
        """What a dry run finds of each proxy and at full size, as far as it is known, by name."""
        sizes = {name: getattr(self, name) for name in ("head_dim", "steps", "parameters")}
        return {name: each for name, each in sizes.items() if each is not None}

    def with_sizes(self, found: Mapping[str, Sequence[int]]) -> Self:
        """Return the section with what a dry run has found, where it does not say it and reads it."""
        read = [name for name in found if name != "head_dim" or self.temperature == "head_dim"]
        return self.model_copy(update={name: list(found[name]) for name in read if name not in self.sizes})


def _is_shift(given: object) -> bool:
    number = isinstance(given, int | float) and not isinstance(given, bool)
    return number and abs(given) <= _FARTHEST  # type: ignore[arg-type]


def _are(proxies: int) -> str:
    return "is one proxy" if proxies == 1 else f"are {proxies} proxies"


def one_proxy(given: object) -> object:
    """Return what ``study.proxy`` is given, if that is a section.

    Raises:
        ValueError: It is a list, or no mapping.
    """
    if isinstance(given, list):
        raise ValueError(f"given a list of {len(given)}. Several proxies go under set, as in {{{_SEVERAL}}}.")
    if given is not None and not isinstance(given, Mapping | ProxySection):
        raise ValueError(f"given {given!r}. Give a mapping, as in proxy: {_EXAMPLE}, or null.")
    return given


def small_data(spec: StudySpec, size: int) -> dict[str, Any]:
    """Return a spec with what makes a proxy small written over it, as plain data without ``study.proxy``.

    Raises:
        SpecError: A path goes through something that is no mapping.
    """
    assert spec.study.proxy is not None
    data = spec.to_json()
    data["study"]["proxy"] = None
    # one training has no budget to split
    data["study"]["limits"]["split"] = []
    return apply(data, spec.study.proxy.settings(size), option="path")


def overrides_of_proxy(spec: StudySpec, local: Sequence[Override], size: int) -> tuple[Override, ...]:
    """Return this machine's own settings as far as a proxy of a spec does not set the same."""
    proxy = spec.study.proxy
    assert proxy is not None
    own = proxy.settings(size)
    return tuple(each for each in local if not any(_overlap(each.path, other.path) for other in own))


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
    lines = [line for size in range(len(proxy.sets)) for line in _set_problems(spec, proxy, size)]
    return lines or [*_rule_problems(spec, proxy), *_price_problems(spec, proxy), *_unfit(spec, proxy)]


def _set_problems(spec: StudySpec, proxy: ProxySection, size: int) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with the paths that make a proxy small."""
    given, path = proxy.sets[size], proxy.path_of(size)
    if not given:
        yield path, f"is empty, so that the proxy is the model itself. Give what makes it small: {_EXAMPLE}."
    yield from ((f"{path}.{name}", text) for name in given if (text := _path_problem(name, spec)))
    first: dict[tuple[str, ...], str] = {}
    for name in given:
        own = Override.of(name, None).path
        if own in first:
            yield f"{path}.{name}", f"it is the same as {first[own]}. Take one of the two out."
        first[own] = name


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
        return "a callback may change what a run is, so all sizes have the same ones. Take it out."
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


def _rule_problems(spec: StudySpec, proxy: ProxySection) -> list[tuple[str, str]]:
    rule, of = proxy.temperature, tempered(spec.search)
    path, lines = f"{PATH}.temperature", []
    if rule in ("head_dim", "length") and "" not in of:
        message = f"given {rule}, a rule about attention, which is not searched. Give same, or a number."
        lines.append((path, message))
    if (rule == "measured" or not isinstance(rule, str)) and len(of) > 1:
        names = " and ".join(name or "attention" for name in of)
        message = f"given {rule}, but {names} are searched. Give same, head_dim or length."
        lines.append((path, message))
    if rule == "length" and proxy.length is None:
        text = "is missing. Give the number of keys of each proxy and at full size, as in [64, 256]."
        lines.append((f"{PATH}.length", text))
    for name in ("head_dim", "length"):
        if getattr(proxy, name) is not None and rule != name:
            message = f"given with temperature: {rule}, which does not read it. Take one of them out."
            lines.append((f"{PATH}.{name}", message))
    if proxy.try_shifts is not None and rule != "measured":
        message = f"given with temperature: {rule}, which tries none. Take one of them out."
        lines.append((f"{PATH}.try_shifts", message))
    return lines or _beyond(spec, proxy)


def _price_problems(spec: StudySpec, proxy: ProxySection) -> list[tuple[str, str]]:
    prices, proxies = spec.study.limits.proxy_prices, len(proxy.sets)
    if prices is None or len(prices) == proxies:
        return []
    text = f"given {len(prices)}, but there {_are(proxies)}. Give one for each of them, the smallest first."
    return [("study.limits.proxy_gpu_hours", text)]


def _beyond(spec: StudySpec, proxy: ProxySection) -> list[tuple[str, str]]:
    """Return which searched temperatures no training could have at a larger size."""
    lines = []
    for temperature, level in product(shifted_temperatures(spec), _LEVELS):
        name = join_name(temperature, level)
        if (values := _numbers(spec.search.get(name))) and (text := _too_far(spec, proxy, name, values)):
            lines.append((f"{PATH}.temperature", text))
    return lines


def _too_far(spec: StudySpec, proxy: ProxySection, name: str, values: Sequence[float]) -> str | None:
    """Return that a rule moves values of a temperature to where none may be; None: it does not."""
    moves = "may move" if proxy.temperature == "measured" else "moves"
    for size in range(1, full_size(spec) + 1):
        for shift in _possible_shifts(proxy, size):
            low, high = (each * math.exp(shift) for each in (min(values), max(values)))
            if not LOWEST <= low <= high <= HIGHEST:
                where = "full size" if size == full_size(spec) else f"the size of {proxy.path_of(size)}"
                return (
                    f"ln τ {moves} by {shift:.3g}, so that {name} at {where} is {low:.3g} to {high:.3g}. "
                    f"It may be {LOWEST:g} to {HIGHEST:g}: search a smaller range."
                )
    return None


def _possible_shifts(proxy: ProxySection, size: int) -> list[float]:
    """Return by what ln τ may move to a size; 0 where a dimension is not known yet."""
    return [size * each for each in proxy.shifts_to_try] or [proxy.shift_to(size) or 0.0]


def _numbers(domain: Domain | None) -> list[float]:
    if isinstance(domain, Range):
        return [float(domain.low), float(domain.high)]
    given = domain.choices if isinstance(domain, Choices) else ()
    return [float(each) for each in given if isinstance(each, int | float) and not isinstance(each, bool)]


def _unfit(spec: StudySpec, proxy: ProxySection) -> list[tuple[str, str]]:
    """Return why a proxy is no valid training, or no other one than another size."""
    lines: list[tuple[str, str]] = []
    trained: list[tuple[str, tuple[object, ...]]] = []
    full = tuple(getattr(spec, name) for name in _SECTIONS)
    for size in range(len(proxy.sets)):
        path = proxy.path_of(size)
        try:
            small = spec.at_size(size)
        except SpecError as error:
            lines += _refused(error, proxy, size)
            continue
        own = tuple(getattr(small, name) for name in _SECTIONS)
        if own == full:
            text = "changes nothing: the spec has these values already. Give smaller ones."
            lines.append((path, text))
        elif same := [other for other, each in trained if each == own]:
            lines.append((path, f"trains the same as {same[0]}. Take one of the two out."))
        elif spec.study.start_from is not None and small.model != spec.model:
            lines.append((path, _not_of_weights(proxy.sets[size])))
        trained.append((path, own))
    return lines


def _refused(error: SpecError, proxy: ProxySection, size: int) -> list[tuple[str, str]]:
    """Return what is wrong with a proxy, each fault at the place where a person has written the value."""
    path = proxy.path_of(size)
    if not isinstance(error, FaultySpecError):
        return [(path, str(error))]
    places = {".".join(each.path): f"{path}.{each.written}" for each in proxy.settings(size)}
    return [
        (places[fault], text) if fault in places else (path, f"{fault}: {text}")
        for fault, text in error.lines
    ]


def _not_of_weights(given: Mapping[str, Any]) -> str:
    names = ", ".join(name for name in given if name.partition(".")[0] == "model")
    return (
        f"{names} given with study.start_from, whose weights are of one model: runs of the proxy start "
        "from them, too. Give a proxy that differs below trainer and data alone, as in "
        "{trainer.max_steps: 300}, or take start_from out."
    )
