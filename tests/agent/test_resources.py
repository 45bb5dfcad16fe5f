"""What a trial takes of a machine, as the section ``resources:`` says it."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from tempopt.errors import SpecError
from tempopt.spec.resources import Need
from tempopt.spec.study_spec import StudySpec


def spec_of(trainer: dict[str, Any] | None = None, resources: dict[str, Any] | None = None) -> StudySpec:
    data = {
        "study": {"name": "mine", "metric": "val_accuracy", "direction": "maximize"},
        "model": {"class_path": "my_module.MyModel"},
        "trainer": trainer or {"max_steps": 100},
        "search": {"temperature_init": {"low": 0.25, "high": 4.0}},
        "resources": resources or {},
    }
    return StudySpec.parse(data, source="s.yaml")


FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"gpu": 1}, 'resources.gpu: Unknown key "gpu". Did you mean "gpus"?'),
    ({"workers": "all"}, "resources.workers: given 'all'. Give a whole number of at"),
    (
        {"gpus": 1.5},
        "resources.gpus: given 1.5. Give a share of a GPU below 1, a whole number",
    ),
    ({"gpus": math.nan}, "resources.gpus: given nan. Give a share of a GPU below 1"),
    ({"gpus": "2"}, 'resources.gpus: given the text "2". Give a share of a GPU below 1'),
    ({"gpus": 2}, "resources.gpus: given 2, but trainer.devices is 1: one would idle. Give"),
    ({"cpus": 0}, "resources.cpus: given 0. Give a whole number of at least 1, or null."),
    ({"memory": "8 gigs"}, "resources.memory: given '8 gigs'. Give bytes, a size with a unit"),
    ({"memory": 0}, "resources.memory: given 0. Give bytes, a size with a unit"),
    ({"memory": 8.5}, "resources.memory: given 8.5. Give bytes, a size with a unit"),
]


@pytest.mark.parametrize(("resources", "message"), FAULTS)
def test_a_fault_is_said_in_one_line(resources: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as error:
        spec_of(resources=resources)
    heading, line = str(error.value).splitlines()
    assert heading == "This study spec has a fault:"
    assert message in line


@pytest.mark.parametrize(
    ("memory", "size"),
    [("8GB", 8 * 10**9), ("500MB", 5 * 10**8), ("16GiB", 2**34), ("1.5 kb", 1500), (77, 77), (None, None)],
)
def test_memory_is_bytes_however_it_is_written_and_reads_again(memory: Any, size: int | None) -> None:
    spec = spec_of(resources={"memory": memory, "gpus": 0.25})
    assert spec.resource_need(gpus=True).memory == size
    assert StudySpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


@pytest.mark.parametrize(
    ("trainer", "resources", "with_cards", "without_cards"),
    [
        ({}, {}, Need(gpus=1.0), Need()),
        ({"accelerator": "gpu"}, {}, Need(gpus=1.0), Need()),
        ({"accelerator": "cpu"}, {}, Need(), Need()),
        ({"accelerator": "cpu"}, {"gpus": 0.5}, Need(), Need()),
        ({}, {"gpus": 0}, Need(), Need()),
        ({}, {"gpus": 0.25, "cpus": 3}, Need(gpus=0.25, cpus=3), Need(gpus=0.25, cpus=3)),
        ({"devices": 4}, {}, Need(gpus=4.0, cpus=4, ranks=4), Need(cpus=4, ranks=4)),
        ({"devices": 4}, {"gpus": 4, "cpus": 8}, Need(gpus=4.0, cpus=8, ranks=4), None),
        ({"devices": 4}, {"gpus": 0}, Need(cpus=4, ranks=4), Need(cpus=4, ranks=4)),
    ],
)
def test_what_a_trial_takes_follows_from_what_is_said_and_what_there_is(
    trainer: dict[str, Any], resources: dict[str, Any], with_cards: Need, without_cards: Need | None
) -> None:
    spec = spec_of(trainer={"max_steps": 5, **trainer}, resources=resources)
    assert spec.resource_need(gpus=True) == with_cards
    assert spec.resource_need(gpus=False) == (without_cards or with_cards)


@pytest.mark.parametrize(
    ("gpus", "devices", "message"),
    [
        (0.5, 2, "given 0.5, but trainer.devices is 2: two processes of a trial cannot share a GPU"),
        (1, 2, "Give resources.gpus: 2, or trainer.devices: 1."),
        (4, 2, "given 4, but trainer.devices is 2: some would idle"),
    ],
)
def test_cards_that_do_not_fit_the_devices_are_refused_with_both_keys(
    gpus: float, devices: int, message: str
) -> None:
    with pytest.raises(SpecError) as error:
        spec_of(trainer={"max_steps": 5, "devices": devices}, resources={"gpus": gpus})
    assert message in str(error.value)
    # where no cards are used, they cannot be too few
    spec_of(trainer={"max_steps": 5, "devices": devices, "accelerator": "cpu"}, resources={"gpus": gpus})


def test_this_machines_resources_are_in_force_and_no_part_of_the_study() -> None:
    spec = spec_of(resources={"workers": "auto", "gpus": 0.5})
    local_spec = spec.with_overrides(["resources.workers=2", "resources.gpus=0.25", "resources.threads=3"])
    assert (local_spec.resources_here.workers, local_spec.resources_here.threads) == (2, 3)
    assert local_spec.resource_need(gpus=True).gpus == 0.25
    assert local_spec.to_json() == spec.to_json()
    assert local_spec.identity() == spec.identity() == spec_of().identity()
