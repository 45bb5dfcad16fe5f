"""The jobs that launchers have started, by the name of a study that need not be there yet."""

from __future__ import annotations

from datetime import UTC, datetime

from tempopt.storage import Store


def test_jobs_are_there_before_the_study_is_and_go_with_it(store: Store) -> None:
    store.add_jobs("early", "slurm", {"partition": "gpu"}, ["7_0", "7_1"])
    store.add_jobs("another", "ray", {}, ["a"])
    first, second = store.jobs("early")
    assert (first.id, second.id) == ("7_0", "7_1")
    assert (first.launcher, first.options) == ("slurm", {"partition": "gpu"})
    assert abs((datetime.now(UTC) - first.created).total_seconds()) < 3600
    store.create_study("early", {}, "")
    assert store.jobs("early") == [first, second]
    store.delete_study("early")
    assert store.jobs("early") == []
    assert [job.id for job in store.jobs("another")] == ["a"]


def test_jobs_that_are_told_again_are_no_jobs_more(store: Store) -> None:
    store.add_jobs("x", "ray", {"address": "here"}, ["a", "b", "a"])
    jobs_before = store.jobs("x")
    store.add_jobs("x", "ray", {"address": "there"}, ["b", "c"])
    store.add_jobs("x", "slurm", {}, ["b"])
    assert store.jobs("x")[:2] == jobs_before
    assert [(job.launcher, job.id) for job in store.jobs("x")] == [
        ("ray", "a"),
        ("ray", "b"),
        ("ray", "c"),
        ("slurm", "b"),
    ]


def test_forgotten_jobs_are_gone(store: Store) -> None:
    store.add_jobs("x", "ray", {}, ["a", "b", "c"])
    store.add_jobs("y", "ray", {}, ["a"])
    store.forget_jobs("x", ["a", "c", "never was"])
    assert [job.id for job in store.jobs("x")] == ["b"]
    assert [job.id for job in store.jobs("y")] == ["a"]
    store.forget_jobs("x", [])
    assert [job.id for job in store.jobs("x")] == ["b"]
