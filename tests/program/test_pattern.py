"""The value in a command's output: every float in usual forms, no longer name, the last, in any pieces."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tempopt.program.output import ValueReader, find_near_misses

FORMS = (
    "val_bpb: {}",
    "val_bpb={}",
    "val_bpb {}",
    "val_bpb = {} after 3 steps",
    '{{"step": 3, "val_bpb": {}, "lr": 0.1}}',
    "{{'val_bpb': {}}}",
    "| val_bpb | {} |",
    "val_bpb: tensor({})",
    "val_bpb -> {}",
    "\x1b[1mval_bpb\x1b[0m: \x1b[32m{}\x1b[0m",
    "step 7, loss 3.5, val_bpb {}, lr 2e-4",
)
STYLES = ("{!r}", "{:.4f}", "{:+.3e}", "{:.6g}", "{:E}")


def read(text: str, pattern: str = "val_bpb") -> float | None:
    reader = ValueReader(pattern)
    reader.feed(text.encode())
    reader.feed(b"", is_last=True)
    return reader.last and reader.last[0]


@given(st.floats(), st.sampled_from(FORMS), st.sampled_from(STYLES), st.sampled_from(["\n", ".\n", ""]))
def test_every_float_in_usual_forms_is_read_back(value: float, form: str, style: str, end: str) -> None:
    text = style.format(value)
    found_value = read(f"val_bpb 111\n{form.format(text)}{end}")
    assert found_value is not None
    assert found_value == float(text) or (math.isnan(found_value) and math.isnan(value))


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-INF", "+.5", "5.", "-0.0", "1e5"])
def test_numbers_are_read_as_python_reads_them(text: str) -> None:
    value = read(f"val_bpb: {text}")
    assert value is not None and repr(value) == repr(float(text))


@pytest.mark.parametrize(
    "text",
    [
        "train_val_bpb: 1",
        "val_bpb_ema: 1",
        "val_bpb2 1",
        "eval/val_bpb: 1",
        "val_bpb/ema: 1",
        "val_bpb.ema 1",
        "best.val_bpb 1",
        "my-val_bpb 1",
        "val_bpb: 1.2.3",
        "val_bpb: 12abc",
        "val_bpb: 1,234.5",
        "val_bpb: none",
        "val_bpb\n1",
    ],
)
def test_what_is_no_value_of_that_name_is_not_read(text: str) -> None:
    assert read(text) is None


def test_a_name_may_have_signs_of_regular_expressions() -> None:
    assert read("acc@1: 0.5 acc+: 0.7", "acc+") == 0.7
    assert read("val/loss: 0.5", "val/loss") == 0.5


def test_a_name_that_is_a_regular_expression_is_read_as_a_name_first() -> None:
    assert read("f(x): 0.5", "f(x)") == 0.5
    assert read("loss(a|b) = 0.5 lossb 3", "loss(a|b)") == 0.5


def test_lines_come_near_a_name_in_another_case_or_with_other_signs() -> None:
    output = "Val_Loss: 1\nstep 3\nval-loss/ema: 2\nval_loss: 1,234.5\nloss: 3"
    assert find_near_misses("val_loss", output) == ["Val_Loss: 1", "val-loss/ema: 2", "val_loss: 1,234.5"]
    assert find_near_misses("(.+)", output) == []


def test_a_regular_expression_gives_its_group() -> None:
    assert read("epoch 1 -> 0.4 (best)\nepoch 2 -> 0.3\n", r"epoch \d+ -> (\S+)$") == 0.3
    assert read("epoch 2 -> nothing\n", r"epoch \d+ -> (\S+)$") is None


@given(st.lists(st.integers(0, 120), max_size=6))
@example([12])
def test_the_last_value_counts_however_the_output_is_cut(cuts: list[int]) -> None:
    data = "é val_bpb: 1.25\rval_bpb: 2.5\ntrain_val_bpb: 9\nval_bpb: -3.125e-1\nval_bpb_ema: 4\nend".encode()
    reader = ValueReader("val_bpb")
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for start, end in itertools.pairwise(places):
        reader.feed(data[start:end])
    reader.feed(b"", is_last=True)
    assert reader.last == (-0.3125, "val_bpb: -3.125e-1")


def test_a_line_without_an_end_takes_constant_memory_and_is_searched() -> None:
    reader = ValueReader("val_bpb")
    for _ in range(50):
        reader.feed(b"x" * 10_000 + b" val_bpb: 0.5 ")
    assert reader.last is not None and reader.last[0] == 0.5
