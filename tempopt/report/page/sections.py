"""The content of the report before markup: numbers, stages, plots, code and facts.

It is plain text and plain data; the template and the plots escape it.
"""

from __future__ import annotations

import json
import platform
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import yaml

from tempopt.errors import NothingToPlot, StudyFailed, without_passwords
from tempopt.report import export
from tempopt.report.decision import deciding_answer, is_winner_replaced
from tempopt.report.formatting import (
    baseline_label,
    baseline_name,
    confidence,
    duration,
    format_ci_and_p,
    shorten,
    value_text,
)
from tempopt.report.heads_text import heads_text, named_runs
from tempopt.report.plots import PLOTS, Table
from tempopt.report.plots.style import number
from tempopt.report.study_data import RunCounts
from tempopt.report.study_result import StudyResult
from tempopt.storage.rows import Kind
from tempopt.storage.run_code import run_codes
from tempopt.verdict.statistics.paired_tests import PairedTest

_MOST_TILES = 4
_MAX_CODES = 5
_PACKAGES = ("tempopt", "torch", "lightning", "torchmetrics", "optuna", "numpy")
_PLOTS_OF_A_COMPARISON = ("differences", "cost")
_PLOTS_OF_ATTENTION = ("entropy",)
_PLOTS_OF_TEMPERATURE = ("schedule", "landscape", "constant")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlotSection:
    """One plot on the page, or the reason for its absence.

    Args:
        key: Its key in PLOTS.
        figure: Figure as JSON; empty if there is none.
        absent: Reason for the absence.
    """

    key: str
    title: str
    caption: str = ""
    table: Table | None = None
    figure: str = ""
    absent: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeBlock:
    """Text to copy, or the reason for its absence."""

    key: str
    title: str
    text: str = ""
    absent: str = ""


def stages(result: StudyResult) -> dict[Kind, RunCounts]:
    """Return the stages that have runs, in the order of work."""
    return {kind: count for kind, count in result.tickets.items() if count.requested}


def pictures(result: StudyResult) -> list[PlotSection]:
    """Return the plots of a study in the order of the report, or the reasons for their absence."""
    sections = []
    for key in plot_keys(result):
        plot = PLOTS[key]
        try:
            data = plot.data(result)
        except NothingToPlot as reason:
            sections.append(PlotSection(key=key, title=plot.title, absent=str(reason)))
            continue
        figure: str = plot.figure(data).to_json()
        text, table = data.caption(), data.table()
        sections.append(PlotSection(key=key, title=plot.title, caption=text, table=table, figure=figure))
    return sections


def plot_keys(result: StudyResult) -> tuple[str, ...]:
    """Return the keys in PLOTS for a report of this kind of study, in their order."""
    if result.spec.compare is not None:
        return _PLOTS_OF_A_COMPARISON
    spec, left_out = result.spec, set[str]()
    # what attention does inside of a program is not seen
    if spec.program is not None or not spec.attends:
        left_out |= {*_PLOTS_OF_ATTENTION}
    if not spec.has_temperature:
        left_out |= {*_PLOTS_OF_TEMPERATURE}
    return tuple(key for key in PLOTS if key not in left_out)


def title_of_use(result: StudyResult) -> str:
    """Return the heading of the code to copy."""
    if result.spec.compare is not None:
        return "How to use the better set"
    advice = result.recommendation
    if advice is None:
        return "The best so far, not confirmed"
    at_baseline = f"The configuration at {baseline_name(result.spec)}"
    return at_baseline if advice.action_without_training == "change_nothing" else "How to use it"


def codes_to_use(result: StudyResult) -> Iterator[CodeBlock]:
    """Yield the recommended configuration as YAML and as Python."""
    yaml_title, python_title = "YAML, for LightningCLI", "Python, for a plain Trainer"
    if result.spec.program is not None:
        yaml_title, python_title = "YAML", "Python"
    for key, title, write in (
        ("yaml", yaml_title, export.to_yaml),
        ("python", python_title, export.to_python),
    ):
        try:
            yield CodeBlock(key=key, title=title, text=write(result))
        except StudyFailed as reason:
            yield CodeBlock(key=key, title=title, absent=str(reason))


def heads_facts(result: StudyResult) -> Iterator[tuple[str, str]]:
    """Yield the heads of winner and baseline that follow a position, by name of the run."""
    for name, run, maps in named_runs(result):
        yield f"heads of {name} ({run.name})", heads_text(maps)


def stat_tiles(result: StudyResult) -> tuple[tuple[str, str, str], ...]:
    """Return the most important numbers: name, value, and detail."""
    gpu = result.cost.gpu_seconds
    cards = "no GPU" if gpu is None else f"{number(gpu / 3600)} GPU-hours"
    training = ("training", duration(result.cost.train_seconds), cards)
    if result.spec.compare is not None:
        return (*_variant_tiles(result), training)
    rows = []
    verdict = result.deciding_verdict
    if verdict is not None:
        test = deciding_answer(verdict).paired
        subject = " of the winner" if is_winner_replaced(verdict) else ""
        gain = f"gain{subject} in {shorten(result.metric, 32)}"
        rows.append((gain, value_text(test.gain, test), _interval(test)))
        rows.append(("p, two-sided", f"{test.p_value:.2g}", f"{test.n_pairs} fresh seeds"))
        rows.append(("level, two-sided", f"{100 * verdict.alpha:.3g} %", f"verdict {verdict.verdict_number}"))
    elif result.best is not None:
        rows.append(("best trial", number(result.best.value), "not the gain to expect"))
    best_baseline = result.best_baseline
    if (baseline := best_baseline or result.baseline) is not None:
        spread = "" if baseline.sd is None else f"± {baseline.sd:.2g} over seeds"
        name = f"{'best ' if best_baseline else ''}{baseline_label(result.spec)} in the search"
        rows.append((name, number(baseline.mean), spread))
    num_over = sum(count for name, count in result.trials.items() if name != "running")
    rows.append(("search trials", f"{num_over:,}".replace(",", " "), f"{result.trials['pruned']} pruned"))
    return (*rows, training)


def _interval(test: PairedTest) -> str:
    ends = f"{value_text(test.ci_low, test)} to {value_text(test.ci_high, test)}"
    return f"{confidence(test)} interval {ends}"


def _variant_tiles(result: StudyResult) -> Iterator[tuple[str, str, str]]:
    """Yield the gain of each variant of a comparison over the reference."""
    if (comparison := result.comparison) is None:
        return
    for variant in comparison.variants[:_MOST_TILES]:
        if (answer := variant.answer_by_values) is not None:
            test = answer.paired
            numbers = value_text(test.gain, test), format_ci_and_p(test)
            yield f"{variant.name} over {comparison.reference}", *numbers


def codes_to_reproduce(result: StudyResult, storage: str) -> Iterator[CodeBlock]:
    """Yield the study spec and the commands.

    Args:
        result: The study.
        storage: Option for its database, `` --storage URL``, in commands; empty for none.
    """
    spec, command = result.spec.model_dump(mode="json", exclude_defaults=True), "search"
    if result.spec.compare is not None:
        command = "compare"
        del spec["search"]
    text: str = yaml.safe_dump(spec, sort_keys=False, allow_unicode=True)
    # the page may be passed on to people who must not know passwords
    text = without_passwords(text)
    yield CodeBlock(key="spec", title=f"The study spec ({shorten(result.name, 32)}.yaml)", text=text)
    name = shlex.quote(result.name)
    lines = [
        "# ask the same question again, in another database",
        f"tempopt {command} {shlex.quote(f'{result.name}.yaml')} --storage sqlite:///again.db",
        "# look at this study",
        f"tempopt show {name}{storage}",
        f"tempopt report {name}{storage}",
    ]
    yield CodeBlock(key="commands", title="The commands", text="\n".join(lines) + "\n")


def cost_facts(result: StudyResult) -> Iterator[tuple[str, str]]:
    """Yield time, GPU-hours and memory, by name."""
    cost = result.cost
    yield "training", duration(cost.train_seconds)
    if cost.gpu_seconds is not None:
        yield "GPU-hours", number(cost.gpu_seconds / 3600)
    if cost.peak_memory is not None:
        yield "most memory of one GPU in use", f"{number(cost.peak_memory / 1e9)} GB"
    if cost.checkpoint_seconds >= 1:
        yield "spent on writing checkpoints", duration(cost.checkpoint_seconds)


def environment_facts(result: StudyResult) -> Iterator[tuple[str, str]]:
    """Yield the identities of code, spec, devices and packages, by name."""
    yield "study begun", f"{result.created:%Y-%m-%d %H:%M} UTC"
    codes = run_codes(run.code for run in result.runs)
    for code, count in codes[:_MAX_CODES]:
        yield "trained by", f"{code.words} ({count} runs)"
    if len(codes) > 1:
        yield "mixture", f"runs were trained by {len(codes)} versions of the code or its packages"
    devices = Counter(run.device for run in result.runs if run.device is not None)
    if devices:
        yield "devices", ", ".join(f"{device} ({count} runs)" for device, count in devices.most_common(8))
    yield "seed of the study", str(result.spec.study.seed)
    yield "identity of the spec", result.spec.identity()[:12]
    packages = ", ".join(f"{name} {version}" for name in _PACKAGES if (version := _version(name)))
    yield "where this page was written", f"Python {platform.python_version()}, {packages}"


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def figures_json(pictures: Sequence[PlotSection]) -> str:
    """Return all figures as one JSON object by key, safe inside a script element."""
    figures = ",".join(
        f"{json.dumps(picture.key)}:{picture.figure}" for picture in pictures if picture.figure
    )
    # "</script>" and "<!--" inside a text would end it
    return "{" + figures.replace("<", "\\u003c").replace("\u2028", "\\u2028") + "}"
