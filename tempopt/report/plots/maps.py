"""What the heads of the winner and of the baseline attend to, at three moments of their training."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray
from plotly.subplots import make_subplots

from tempopt.errors import NothingToPlot
from tempopt.report.plots.base import Cell, Table
from tempopt.report.plots.style import FAINT, GROUND, INK, QUIET, SEQUENTIAL, TEMPLATE, evenly, plain, scale
from tempopt.results.heads_text import head_runs, heads_text, named_heads, shades_of
from tempopt.results.study_result import StudyResult
from tempopt.results.wording import baseline_label, baseline_name
from tempopt.workers.messages import MOMENTS

_MOST = 6
"""Layers, and heads of a layer, that are drawn."""
_CELLS = 18_000
"""Cells of all pictures that are drawn; a page holds few numbers."""
_GAP = 2
_PAGE, _WIDEST = 560, 150
_ROOM = 0.14
"""Room for a name above a tile, as a share of its height."""
Shades = NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class MapsShown:
    """Maps of the heads of one or two runs of the same seed.

    Args:
        names: ``winner`` and ``baseline`` to what they are called, as far as there are such.
        baseline: What the baseline is called in a sentence.
        maps: The same to what their heads attend to.
        moments: Moments at which they were looked at, and the step of each.
        layers: Layers that are drawn.
        heads: Heads of a layer that are drawn.
        out_of: Number of heads of the model.
    """

    names: Mapping[str, str]
    baseline: str
    maps: Mapping[str, dict[str, Any]]
    moments: Mapping[str, int]
    layers: tuple[int, ...]
    heads: tuple[int, ...]
    out_of: int

    def caption(self) -> str:
        """Return how to read it and what it says."""
        text = (
            "Each tile is a head: queries from top to bottom, keys from left to right, the darker the more "
            "of its attention (on dark ground: the lighter), each tile by its own greatest weight. All are "
            "of the first input of the batch of that step, which both trainings have in common. A head is "
            "named where it follows a position far above chance, or is uniform beside heads that are not."
        )
        for name, maps in self.maps.items():
            who = "the winner" if name == "winner" else self.baseline
            text += f" At the end of {who}: {heads_text(maps)}."
        drawn = len(self.layers) * len(self.heads)
        if drawn < self.out_of:
            text += f" {drawn} of {self.out_of} heads are drawn."
        notes = dict.fromkeys(note for maps in self.maps.values() for note in maps["notes"])
        return " ".join([text, *(f"{note[0].upper()}{note[1:]}." for note in notes)])

    def table(self) -> Table:
        """Return the named heads at each moment."""
        rows: list[tuple[Cell, ...]] = []
        for name, maps in self.maps.items():
            for moment in self.moments:
                named = named_heads(maps, moment)
                rows += [
                    (
                        self.names[name],
                        moment,
                        each["layer"],
                        each["head"],
                        each["measure"].replace("_", " "),
                        each["score"],
                        each["low"],
                        each["high"],
                    )
                    for each in named
                ] or [(self.names[name], moment, None, None, "no head is named", None, None, None)]
        columns = ("models", "moment", "layer", "head", "is", "above chance", "95 % from", "to")
        return Table(columns=columns, rows=tuple(rows))

    def tiles(self, name: str, moment: str) -> dict[tuple[int, int], Shades]:
        """Return the shades of each head by layer and head, 255 at its greatest weight."""
        heads = self.maps[name]["moments"].get(moment, {}).get("heads", [])
        return {
            (each["layer"], each["head"]): np.frombuffer(shades_of(each), dtype=np.uint8).reshape(
                each["rows"], each["columns"]
            )
            for each in heads
        }

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the largest map."""
        every = [
            each for maps in self.maps.values() for seen in maps["moments"].values() for each in seen["heads"]
        ]
        return max(each["rows"] for each in every), max(each["columns"] for each in every)


def maps_data(result: StudyResult) -> MapsShown:
    """Return the maps of the runs whose heads were looked at.

    Raises:
        NothingToPlot: There are none.
    """
    runs = head_runs(result)
    maps = {name: result.maps[run.id] for name, run in runs.items()}
    places = sorted(
        {
            (each["layer"], each["head"])
            for found in maps.values()
            for seen in found["moments"].values()
            for each in seen["heads"]
        }
    )
    if not places:
        raise NothingToPlot("No confirming run has had its heads looked at.")
    layers, heads = (sorted({place[axis] for place in places}) for axis in (0, 1))
    steps = {moment: seen["step"] for found in maps.values() for moment, seen in found["moments"].items()}
    return MapsShown(
        names={name: "winner" if name == "winner" else baseline_label(result.spec) for name in maps},
        baseline=baseline_name(result.spec),
        maps=maps,
        moments={moment: steps[moment] for moment in MOMENTS if moment in steps},
        layers=tuple(layers[place] for place in evenly(len(layers), _MOST)),
        heads=tuple(heads[place] for place in evenly(len(heads), _MOST)),
        out_of=len(places),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Grid:
    """Where the tiles of a mosaic are, in cells.

    Args:
        height: Rows of a tile.
        width: Its columns.
        factor: So many rows, and columns, of a map are one, where there are many maps.
    """

    height: int
    width: int
    factor: int

    @classmethod
    def of(cls, data: MapsShown) -> _Grid:
        rows, columns = data.shape
        pictures = len(data.maps) * len(data.moments) * len(data.layers) * len(data.heads)
        factor = max(1, math.ceil(math.sqrt(pictures * rows * columns / _CELLS)))
        return cls(height=math.ceil(rows / factor), width=math.ceil(columns / factor), factor=factor)

    def top(self, place: int) -> int:
        """Return the first row of the tiles of a layer, above which there is room for a name."""
        return place * (self.height + max(_GAP, math.ceil(_ROOM * self.height)))

    def left(self, place: int) -> int:
        """Return the first column of the tiles of a head."""
        return place * (self.width + _GAP)

    def pooled(self, tile: Shades) -> Shades:
        """Return a map at the size of a tile; its greatest is 255 again."""
        if self.factor == 1:
            return tile
        edges = [np.arange(0, length, self.factor) for length in tile.shape]
        summed = np.add.reduceat(np.add.reduceat(tile.astype(float), edges[0], axis=0), edges[1], axis=1)
        return np.round(255 * summed / max(float(summed.max()), 1.0)).astype(np.uint8)


def plot_maps(data: MapsShown) -> go.Figure:
    """Return a mosaic of heads by layer for each training, with a slider over the moments."""
    grid, last = _Grid.of(data), list(data.moments)[-1]
    made = make_subplots(
        rows=len(data.maps),
        cols=1,
        subplot_titles=[plain(data.names[name]) for name in data.maps],
        vertical_spacing=0.12,
    )
    titles = [
        {**each.to_plotly_json(), "font": {"size": 13, "color": QUIET}} for each in made.layout.annotations
    ]
    told: dict[str, list[dict[str, Any]]] = {}
    for moment in data.moments:
        told[moment] = list(titles)
        for row, name in enumerate(data.maps, start=1):
            mosaic = _mosaic(data, grid, data.tiles(name, moment))
            made.add_trace(_trace(mosaic, visible=moment == last), row=row, col=1)
            told[moment] += _labels(data, grid, named_heads(data.maps[name], moment), row)
    _axes(made, data, grid)
    # about square on a page of usual width
    side = min(_WIDEST, _PAGE // len(data.heads))
    made.update_layout(
        template=TEMPLATE,
        height=160 + len(data.maps) * (64 + side * len(data.layers)),
        margin={"t": 40, "b": 90},
        sliders=[_slider(data, told, last)],
    )
    # to update annotations would merge them with those that are there
    made.layout.annotations = told[last]
    return made


def _trace(mosaic: Shades, *, visible: bool) -> go.Heatmap:
    return go.Heatmap(
        z=mosaic,
        zmin=0,
        zmax=255,
        colorscale=scale((GROUND, *SEQUENTIAL)),
        showscale=False,
        hoverinfo="skip",
        visible=visible,
    )


def _mosaic(data: MapsShown, grid: _Grid, tiles: Mapping[tuple[int, int], Shades]) -> Shades:
    mosaic = np.zeros((grid.top(len(data.layers)), grid.left(len(data.heads))), dtype=np.uint8)
    for down, layer in enumerate(data.layers):
        for across, head in enumerate(data.heads):
            if (layer, head) in tiles:
                tile, top, left = grid.pooled(tiles[layer, head]), grid.top(down), grid.left(across)
                mosaic[top : top + tile.shape[0], left : left + tile.shape[1]] = tile
    return mosaic


def _labels(data: MapsShown, grid: _Grid, named: Sequence[dict[str, Any]], row: int) -> list[dict[str, Any]]:
    """Return the names of heads, each above its tile: the clearest where a head has several."""
    # a tile is narrow on a phone
    by_place = {
        (each["layer"], each["head"]): each["measure"].removesuffix("_token") for each in reversed(named)
    }
    return [
        {
            "text": said,
            "x": grid.left(data.heads.index(head)) + grid.width / 2 - 0.5,
            "y": grid.top(data.layers.index(layer)) - 0.5,
            **_refs(row),
            "showarrow": False,
            "yanchor": "bottom",
            "font": {"size": 10, "color": INK},
        }
        for (layer, head), said in by_place.items()
        if layer in data.layers and head in data.heads
    ]


def _refs(row: int) -> dict[str, str]:
    """Return the axes of a panel, as annotations and shapes refer to them."""
    number = "" if row == 1 else str(row)
    return {"xref": f"x{number}", "yref": f"y{number}"}


def _axes(made: go.Figure, data: MapsShown, grid: _Grid) -> None:
    tops = [grid.top(place) - 0.5 for place in range(len(data.layers))]
    lefts = [grid.left(place) - 0.5 for place in range(len(data.heads))]
    plainly = {"showgrid": False, "zeroline": False}
    made.update_xaxes(
        tickvals=[left + grid.width / 2 for left in lefts],
        ticktext=[f"head {head}" for head in data.heads],
        **plainly,
    )
    made.update_yaxes(
        tickvals=[top + grid.height / 2 for top in tops],
        ticktext=[f"layer {layer}" for layer in data.layers],
        range=[grid.top(len(data.layers)) - 0.5, -0.5 - _ROOM * grid.height],
        **plainly,
    )
    for row, top, left in itertools.product(range(1, len(data.maps) + 1), tops, lefts):
        made.add_shape(
            type="rect",
            **_refs(row),
            x0=left,
            x1=left + grid.width,
            y0=top,
            y1=top + grid.height,
            line={"width": 1, "color": FAINT},
        )


def _slider(data: MapsShown, told: Mapping[str, list[dict[str, Any]]], last: str) -> dict[str, Any]:
    moments = list(data.moments)
    return {
        "active": moments.index(last),
        "currentvalue": {"prefix": "", "font": {"size": 12, "color": QUIET}},
        "pad": {"t": 36},
        "len": 0.6,
        "x": 0.2,
        "steps": [
            {
                "label": f"{moment}, step {data.moments[moment]}",
                "method": "update",
                "args": [
                    {"visible": [each == moment for each in moments for _ in data.maps]},
                    {"annotations": told[moment]},
                ],
            }
            for moment in moments
        ],
    }
