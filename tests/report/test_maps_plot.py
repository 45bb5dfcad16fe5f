"""Maps of heads, as a mosaic: layers whose maps differ in size, of models that have other heads in each."""

from __future__ import annotations

import base64
import copy
import dataclasses

import numpy as np

from tempopt.report.plots.maps import maps_data, plot_maps
from tests.report.made_study import World, make


def test_layers_of_unlike_lengths_and_numbers_of_heads_have_tiles_of_one_size() -> None:
    made = make(World(layers=2, heads=2))
    maps = copy.deepcopy(made.maps)
    short = (255 * np.eye(4, 6)).astype(np.uint8)
    for each in maps.values():
        for moment in each["moments"].values():
            moment["heads"] = [head for head in moment["heads"] if (head["layer"], head["head"]) != (1, 1)]
            (last,) = (head for head in moment["heads"] if head["layer"] == 1)
            last |= {"rows": 4, "columns": 6, "cells": base64.b64encode(short.tobytes()).decode()}
    data = maps_data(dataclasses.replace(made, maps=maps).result())
    assert data.shape == (16, 16)
    assert np.array_equal(data.tiles("winner", "end")[1, 0], short)
    mosaic = np.array(plot_maps(data).data[-1].z)
    below = mosaic[16:, :6]
    begins = np.flatnonzero(below.any(axis=1))[0]
    assert np.array_equal(below[begins : begins + 4], short)
    # where the fourth head would be there is nothing
    assert not mosaic[16:, 16:].any()
