"""``tempopt compare --command``: a verdict on a command without a spec, exit codes, and refusals."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tempopt import cli

# the value is the parameter and noise of less than a thousandth that follows from the seed
SCRIPT = """\
[ "$1" -lt 2147483648 ] || exit 9
echo "seed $1"
echo "val_bpb: $2$(printf '00%04d' $(($1 % 9973)))"
"""
COMMAND = "sh noisy.sh {seed} {gain}"
WITHOUT_EFFECT = "sh noisy.sh {seed} 1. {gain}"
# the length of the parameter's text changes the seed alone
NOISE_ALONE = "sh -c 'sh noisy.sh $(($0 * ${{#1}} % 2147483647)) 1.' {seed} {gain}"
WITHOUT_SEED = "sh noisy.sh 1 {gain} {seed}"
# fails on the first and the third seed, whatever the parameter
FAILING = (
    "sh -c 'touch seeds; grep -qx $0 seeds || echo $0 >> seeds; "
    "case $(grep -nx $0 seeds) in 1:*|3:*) exit 7;; esac; sh noisy.sh $0 $1' {seed} {gain}"
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "noisy.sh").write_text(SCRIPT, encoding="utf-8")
    return tmp_path


def compare(command: str, *words: str, direction: str = "minimize") -> int:
    options = ["--vary", "gain=1.5,1.25", "--metric", "val_bpb", "--direction", direction, "--workers", "1"]
    return cli.main(["compare", "--command", command, *options, "--no-report", *words])


@pytest.mark.parametrize(
    ("command", "direction", "code"),
    [
        (COMMAND, "minimize", 0),
        (COMMAND, "maximize", 4),
        (WITHOUT_EFFECT, "minimize", 3),
        (WITHOUT_SEED, "minimize", 3),
    ],
)
def test_the_exit_code_says_which_value_is_better(
    command: str, direction: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare(command, "--pairs", "4..8", "--name", "mine", direction=direction) == code
    text = capsys.readouterr().out
    assert {0: "Gain shown", 3: "No gain shown", 4: "is worse"}[code] in text and "tempopt show mine" in text
    assert ("tempopt logs mine confirm-0" in text) == (code == 3)


def test_each_command_begins_a_study_of_its_own_which_it_names(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare(COMMAND, "--pairs", "4") == 0
    (folder / "noisy.sh").write_text(SCRIPT.replace("$2$", "2.$"), encoding="utf-8")
    # what was edited has lost its gain, and is trained anew
    assert compare(COMMAND, "--pairs", "4", "--json") == 3
    captured_output = capsys.readouterr()
    stated_names = re.findall(r"noisy-\d+-\d+-\w+", captured_output.out + captured_output.err)
    result = json.loads(captured_output.out[captured_output.out.index("\n{") :])
    assert result["comparison"]["outcome"] == "not_shown"
    assert cli.main(["list", "--json"]) == 0
    assert {study["study"] for study in json.loads(capsys.readouterr().out)} == set(stated_names)
    assert len(set(stated_names)) == 2
    assert cli.main(["resume", stated_names[0], "--pairs", "+2", "--no-report"]) in (0, 3)
    assert "has changed since this study began" in capsys.readouterr().out


def test_values_reach_the_program_as_they_are_typed(capsys: pytest.CaptureFixture[str]) -> None:
    command = "sh -c 'echo word $1; echo val_bpb 1' {seed} {word}"
    options = ["--vary", "word=on,007,3.10,1.0,1e-3", "--metric", "val_bpb", "--direction", "minimize"]
    assert cli.main(["compare", "--command", command, *options, "--pairs", "2", "--no-report"]) == 3
    capsys.readouterr()
    typed_words = {text.split()[1] for path in Path().rglob("log.txt") if (text := path.read_text())}
    assert typed_words == {"on", "007", "3.10", "1.0", "0.001"}


def test_a_failure_is_json_on_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert compare("sh -c 'exit 7' {seed} {gain}", "--json", "--pairs", "2") == 1
    captured_output = capsys.readouterr()
    assert "exit code 7" in json.loads(captured_output.out)["error"] and "exit code 7" in captured_output.err


def test_nothing_is_advised_to_be_resumed_before_a_study_exists(capsys: pytest.CaptureFixture[str]) -> None:
    assert compare("sh missing.sh {seed} {gain}") == 2
    captured_output = capsys.readouterr()
    assert "no file missing.sh" in captured_output.err
    assert "tempopt resume" not in captured_output.out + captured_output.err


def test_the_first_test_is_after_the_fewest_pairs_and_the_last_after_the_most(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert compare(COMMAND, "--pairs", "5..20") == 0
    assert "; 5 fresh seeds" in capsys.readouterr().out
    assert compare(WITHOUT_EFFECT, "--pairs", "5..12") == 3
    assert "; 5 fresh seeds" in capsys.readouterr().out
    assert compare(NOISE_ALONE, "--pairs", "5..12") == 3
    assert "; 12 fresh seeds" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["1..4", "4..", "8..4", "4..1001", "four"])
def test_pairs_that_are_no_range_are_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(COMMAND, "--pairs", text) == 2
    assert capsys.readouterr().err
    assert not Path("tempopt.db").exists()


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        ("sh -c 'echo at fault >&2; exit 7' {seed} {gain}", 1, "exit code 7. It printed last:\nat fault"),
        ("echo loss 1 {seed} {gain}", 2, "without a value behind 'val_bpb' in its output"),
        ("sh noisy.sh {gain}", 2, "{seed} is missing"),
        ("sh noisy.sh {seed} {gains}", 2, 'Unknown placeholder "{gains}". Did you mean "{gain}"?'),
        ("sh noisy.sh {seed}", 2, "gain never reached the program"),
        ("no-such-program {seed} {gain}", 2, 'there is no program "no-such-program"'),
        ("sh 'noisy.sh {seed} {gain}", 2, "Check the quotes"),
        ("sh noisy.sh {seed} {gain} | tail", 2, "sh -c 'sh noisy.sh {seed} {gain} | tail'"),
        ("./noisy.sh {seed} {gain}", 2, "./noisy.sh is not executable"),
        ("echo Val_BPB 1 {seed} {gain}", 2, "Near it are:\nVal_BPB 1"),
    ],
)
def test_a_command_that_gives_no_value_is_answered_in_words(
    command: str, code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare(command) == code
    assert message in capsys.readouterr().err


def test_values_that_are_not_finite_are_no_gain(capsys: pytest.CaptureFixture[str]) -> None:
    command = "sh -c 'test $1 = 1.5 && echo val_bpb 2 || echo val_bpb nan' - {gain} {seed}"
    assert compare(command, "--pairs", "4") == 4
    assert "gain=1.25 failed or diverged on 4 of 4 seeds" in capsys.readouterr().out
    assert compare("echo val_bpb nan {gain} {seed}") == 1
    assert "No verdict: no run of any set has a finite value of val_bpb" in capsys.readouterr().out


def test_seeds_on_which_all_sets_fail_end_in_a_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(FAILING, "--pairs", "8") == 1
    (resume,) = re.findall(r"other seeds: tempopt (resume \S+)", capsys.readouterr().err)
    assert cli.main([*resume.split(), "--workers", "1", "--no-report"]) == 0
    text = capsys.readouterr().out
    assert "Gain shown" in text and "gain=1.25 failed or diverged on 2 of 8 seeds, gain=1.5 on 2" in text


@pytest.mark.parametrize(
    ("end", "num_attempts"),
    [
        ("echo at fault; exit 7", 1),
        ("echo at fault; exit 0", 1),
        ("echo CUDA out of memory; exit 1", 3),
        ("kill -SEGV $$", 3),
        ("exit 139", 3),
    ],
)
def test_a_set_that_always_fails_is_worse_and_repeated_only_if_something_may_have_ended_it(
    end: str, num_attempts: int, capsys: pytest.CaptureFixture[str]
) -> None:
    command = f"sh -c 'echo >> begun; test $1 = 1.5 || {{{{ {end}; }}}}; sh noisy.sh $0 $1' {{seed}} {{gain}}"
    assert compare(command, "--pairs", "3") == 4
    text = capsys.readouterr().out
    assert "No gain shown: gain=1.25 failed or diverged on 3 of 3 seeds" in text
    # when it happens, and among the findings
    assert text.count("at fault") == 2 * ("at fault" in end)
    assert len(Path("begun").read_text().splitlines()) == 3 + 3 * num_attempts


def test_a_misspelt_metric_ends_the_study_at_its_first_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert compare("echo step 3: loss 5, val_bbp 1 {seed} {gain}") == 2
    captured_output = capsys.readouterr()
    assert "Did you mean val_bbp, as in the line: step 3: loss 5, val_bbp 1" in captured_output.err
    assert "tempopt resume" not in captured_output.out + captured_output.err
    assert len([*Path().rglob("log.txt")]) == 1


def test_a_command_that_prints_very_much_is_read_to_its_last_value(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = "sh -c 'yes val_bpb 7 | head -c 6000000; sh noisy.sh $0 $1' {seed} {gain}"
    assert compare(command, "--pairs", "4", "--json") == 0
    (variant,) = json.loads(capsys.readouterr().out)["comparison"]["variants"]
    assert 0.2 < abs(variant["gain"]) < 0.3
    assert all(path.stat().st_size < 4_000_000 for path in folder.rglob("log.txt"))


@pytest.mark.long
def test_a_command_that_hangs_is_ended_and_named(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--set", "study.lease=1", "--set", "study.max_attempts=1", "--pairs", "2"]
    assert compare("sleep 1000{seed}{gain}", *words) == 1
    captured_output = capsys.readouterr()
    assert "has made no progress" in captured_output.out
    assert "No verdict: no run of any set has a finite value" in captured_output.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--vary", "gain=1,2"], "Give a study spec, or --command"),
        (["recall", "--metric", "loss", "--vary", "lr=1,2"], "are for --command"),
        (["recall", "--command", COMMAND], "recall was given as well"),
        (["--command", COMMAND, "--from", "mine"], "--from mine was given as well"),
        (["--command", COMMAND], "--command needs --metric, --direction, --vary as well"),
        (
            ["--command", COMMAND, "--metric", "loss", "--direction", "minimize", "--vary", "gain=1"],
            "gain was given one value",
        ),
    ],
)
def test_a_command_and_a_spec_exclude_each_other(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["compare", *words]) == 2
    assert message in capsys.readouterr().err
