"""Importance of each searched parameter: Optuna's measure, on trials rebuilt in memory."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import optuna
import plotly.graph_objects as go
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.study import StudyDirection
from optuna.trial import TrialState

from tempopt.errors import NothingToPlot
from tempopt.report.formatting import shorten
from tempopt.report.plots import style
from tempopt.report.study_result import StudyResult
from tempopt.sampling.frozen_history import WindowedStorage, make_frozen_trial
from tempopt.storage.ticket_queries import is_usable
from tempopt.temperature import LinearNormaliser, split_name

_MIN_TRIALS = 8
_MOST_BARS = 20
_FEWEST_BEST = 5
_LINE = "<br>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Importances:
    """The searched parameters by importance.

    Args:
        shares: Name and share in [0, 1], the largest first; shares add up to 1.
        trials: Number of complete trials that they are computed from.
        unread: Names of omitted parameters, which most trials do not use.
    """

    shares: tuple[tuple[str, float], ...]
    trials: int
    unread: tuple[str, ...]

    def caption(self) -> str:
        """Return how to read the plot and its result."""
        name, share = self.shares[0]
        text = (
            f"How much each parameter decided whether one of {self.trials} complete trials was among the "
            f"best tenth (PED-ANOVA; shares add up to 100 %). {shorten(name, 60)} has {100 * share:.0f} %. "
            "A small share may also mean that the search kept to one region."
        )
        if self.unread:
            names = ", ".join(shorten(unread_name, 60) for unread_name in self.unread[:_MOST_BARS])
            text += f" Left out, since most of the trials do not read them: {names}."
        best = math.ceil(self.trials / 10)
        if best < _FEWEST_BEST:
            count = "is one trial" if best == 1 else f"are {best} trials"
            text += f" The best tenth {count} here: a hint at most."
        return text

    def table(self) -> style.Table:
        """Return the shares."""
        return style.Table(columns=("parameter", "share"), rows=self.shares[:_MOST_BARS])


def importance_data(result: StudyResult) -> Importances:
    """Return Optuna's importances from the complete search trials.

    A trial counts with the parameters that its plan uses: the sampler draws a final temperature for a
    constant schedule too.

    Raises:
        NothingToPlot: They are too few, all equal, or there is only one parameter.
    """
    space = result.spec.space("search")
    runs = [run for run in result.runs if run.kind == "search" and is_usable(run)]
    if len(space) < 2:
        raise NothingToPlot("One parameter is searched, so there is nothing that it could be compared with.")
    if len(runs) < _MIN_TRIALS:
        raise NothingToPlot(
            f"{len(runs)} search trials are complete; {_MIN_TRIALS} at least can be compared."
        )
    if len({run.value for run in runs}) == 1:
        raise NothingToPlot("All complete trials have the same value, so no parameter made a difference.")
    read_params = [_used_params(run.parameters or {}, space) for run in runs]
    counts = Counter(name for params in read_params for name in params)
    common_space = {name: domain for name, domain in space.items() if 2 * counts[name] >= len(runs)}
    if len(common_space) < 2:
        raise NothingToPlot(
            "Most trials read fewer than two of the parameters, so there is nothing to compare."
        )
    domains = _extend_domains(common_space, read_params)
    trials = [
        make_frozen_trial(
            run.number, state=TrialState.COMPLETE, distributions=domains, params=params, value=run.value
        )
        for run, params in zip(runs, read_params, strict=True)
    ]
    direction = StudyDirection.MAXIMIZE if result.direction == "maximize" else StudyDirection.MINIMIZE
    view = WindowedStorage(
        name=result.name, direction=direction, trials=trials, running_trial=None, number=len(trials)
    )
    with warnings.catch_warnings():
        # a single trial without a parameter is left out of its share, with little effect
        warnings.filterwarnings("ignore", "Some regimes for parameter")
        shares = optuna.importance.get_param_importances(view.study(), params=list(domains))
    if not shares or sum(shares.values()) <= 0:
        raise NothingToPlot("No parameter made a difference that could be measured.")
    unread = tuple(name for name in space if name not in common_space)
    return Importances(shares=tuple(shares.items()), trials=len(trials), unread=unread)


def _used_params(parameters: Mapping[str, Any], space: Mapping[str, BaseDistribution]) -> dict[str, Any]:
    """Return the searched parameters that a plan uses, with their effective values."""
    values = dict(parameters)
    # a constant schedule ends at its start
    if parameters.get("normaliser") != LinearNormaliser.name and "temperature_init" in parameters:
        values.setdefault("temperature_final", parameters["temperature_init"])
    return {
        name: value for name, value in values.items() if name in space and _contains_value(space[name], value)
    }


def _contains_value(domain: BaseDistribution, value: object) -> bool:
    """Return whether a value is in a domain; a flat schedule is ``constant`` even if that is not a choice."""
    return not isinstance(domain, CategoricalDistribution) or value in domain.choices


def _extend_domains(
    space: Mapping[str, BaseDistribution], read_params: Sequence[Mapping[str, Any]]
) -> dict[str, BaseDistribution]:
    """Return the domains, with that of the final temperature extended to the values that it takes."""
    domains = dict(space)
    last = domains.get("temperature_final")
    if isinstance(last, FloatDistribution):
        values = [params["temperature_final"] for params in read_params if "temperature_final" in params]
        low, high = min(last.low, *values), max(last.high, *values)
        if (low, high) != (last.low, last.high) or last.step is not None:
            domains["temperature_final"] = FloatDistribution(low, high, log=last.log)
    return domains


def _break_name(name: str) -> str:
    """Return a name for a narrow axis: a temperature's name is above that of its parameter."""
    return _LINE.join(style.plain(part, 22) for part in split_name(name) if part)


def plot_importance(data: Importances) -> go.Figure:
    """Return a bar for each parameter."""
    shares = data.shares[:_MOST_BARS]
    names = [_break_name(name) for name, _ in shares]
    row_height = 40 if any(_LINE in name for name in names) else 30
    fig = style.figure(x="share", height=110 + row_height * len(shares), margin={"t": 12})
    fig.add_trace(
        go.Bar(
            # by position: truncated names may be equal
            y=list(range(len(shares))),
            x=[share for _, share in shares],
            text=[f"{100 * share:.0f} %" for _, share in shares],
            textposition="outside",
            textangle=0,
            cliponaxis=False,
            orientation="h",
            marker={"color": style.WINNER},
            customdata=[style.plain(name, 200) for name, _ in shares],
            hovertemplate="%{customdata}: %{x:.1%}<extra></extra>",
        )
    )
    style.label_bars(fig, names)
    fig.update_xaxes(tickformat=".0%", range=[0, 1.18 * max(share for _, share in shares)])
    return fig
