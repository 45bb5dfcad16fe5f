"""What the report says, section by section, before it is markup: words, plots, code.

Everything here is plain text and plain data; whatever escapes is the template's, or the plots' own.
"""

from __future__ import annotations

import json
import platform
import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import yaml

from tempopt.confirmation.verdict import Verdict
from tempopt.errors import NothingToPlot, StudyFailed, without_passwords
from tempopt.records.run_code import run_codes
from tempopt.report.plots import PLOTS, Table
from tempopt.report.plots.style import number
from tempopt.results import export
from tempopt.results.study_result import StudyResult
from tempopt.results.wording import (
    baseline_label,
    baseline_name,
    duration,
    rounded,
)
from tempopt.statistics.paired_tests import ALPHA

_MOST_TILES = 4
_MAX_CODES = 5
_PACKAGES = ("tempopt", "torch", "lightning", "torchmetrics", "optuna", "numpy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One plot on the page, or why it is not there.

    Args:
        key: Its key in PLOTS.
        figure: It as JSON; empty if there is none.
        absent: Why there is none.
    """

    key: str
    title: str
    caption: str = ""
    table: Table | None = None
    figure: str = ""
    absent: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """Text to copy, or why there is none."""

    key: str
    title: str
    text: str = ""
    absent: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One section of the page.

    Args:
        key: What links lead to.
        lead: A sentence before everything else.
        facts: What is short: name and value.
    """

    key: str
    title: str
    lead: str = ""
    facts: tuple[tuple[str, str], ...] = ()
    pictures: tuple[Picture, ...] = ()
    codes: tuple[Code, ...] = ()


# key, title, lead, plots
_OF_A_COMPARISON: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    (
        "confirmation",
        "Comparison on fresh seeds",
        "Every parameter set was trained on the same seeds, which chose nothing.",
        ("differences",),
    ),
    ("use", "How to use the better set", "", ()),
    ("cost", "What it took", "", ("cost",)),
    ("reproduce", "Environment, and how to do it again", "", ()),
)
_SECTIONS: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    (
        "confirmation",
        "Confirmation on fresh seeds",
        "The winner of the search was trained again, side by side with {baseline}, on seeds that chose "
        "nothing.",
        ("differences",),
    ),
    ("inference", "Another temperature at inference", "", ("inference",)),
    ("schedule", "The schedule of the search's winner", "", ("schedule", "depth")),
    ("learned", "Learned temperatures", "", ("learned",)),
    (
        "use",
        "",
        "Either is all that is needed: no database and no service of tempopt.",
        (),
    ),
    ("history", "Search history", "", ("history",)),
    ("schedules", "Every schedule that was tried", "", ("schedules",)),
    ("landscape", "First and last temperature", "", ("landscape",)),
    ("importance", "What mattered", "", ("importance",)),
    ("entropy", "Attention entropy during training", "", ("entropy", "heads")),
    ("maps", "What heads attend to", "", ("maps",)),
    ("pruning", "Pruning", "", ("pruned", "pruning_check")),
    ("cost", "What it took", "", ("cost",)),
    ("reproduce", "Environment, and how to do it again", "", ()),
)

_OF_ATTENTION = ("depth", "entropy", "maps")
"""Sections and plots that are about attention alone."""


def sections(result: StudyResult, storage: str) -> tuple[Section, ...]:
    """Return the sections after the verdict, in their order.

    Args:
        result: The study, loaded as a whole.
        storage: Option that leads to its database, ` --storage URL`, for the commands; empty: they have none.
    """
    titles = {"use": _title_of_use(result)}
    codes = {"use": tuple(_use(result)), "reproduce": tuple(_reproduce(result, storage))}
    facts = {"cost": tuple(_cost_facts(result)), "reproduce": tuple(_environment(result))}
    found = []
    for key, title, lead, plots in _sections(result):
        pictures = tuple(_picture(result, plot, alone=len(plots) == 1) for plot in plots)
        shown = codes.get(key, ())
        there = any(picture.figure for picture in pictures) or any(code.text for code in shown)
        found.append(
            Section(
                key=key,
                title=titles.get(key, title),
                lead=lead.format(baseline=baseline_name(result.spec)) if there else "",
                facts=facts.get(key, ()),
                pictures=pictures,
                codes=shown,
            )
        )
    return tuple(found)


def _sections(result: StudyResult) -> tuple[tuple[str, str, str, tuple[str, ...]], ...]:
    if result.spec.compare is not None:
        return _OF_A_COMPARISON
    unread = () if result.spec.evaluated else ("inference",)
    left_out = (*unread, *(() if result.spec.attends else _OF_ATTENTION))
    kept = (each for each in _SECTIONS if each[0] not in left_out)
    return tuple((*each[:3], tuple(plot for plot in each[3] if plot not in left_out)) for each in kept)


def plot_keys(result: StudyResult) -> tuple[str, ...]:
    """Return the keys in PLOTS of the plots that a report of this kind of study has, in their order."""
    return tuple(plot for _, _, _, plots in _sections(result) for plot in plots)


def _title_of_use(result: StudyResult) -> str:
    found = result.recommendation
    if found is None:
        return "The best so far, not confirmed"
    at_baseline = f"The configuration at {baseline_name(result.spec)}"
    return at_baseline if found.now == "change_nothing" else "How to use it"


def tiles(result: StudyResult) -> tuple[tuple[str, str, str], ...]:
    """Return the numbers that people look for first: what it is, its value, and what belongs to it."""
    found = []
    if result.verdict is not None:
        test = result.verdict.total.paired
        interval = f"{rounded(test.ci_low, test)} to {rounded(test.ci_high, test)}"
        sure = f"{100 * test.confidence:.4g} % interval {interval}"
        found.append((f"gain in {_short(result.metric)}", rounded(test.gain, test), sure))
        found.append(("p, two-sided", f"{test.p_value:.2g}", f"{test.n_pairs} fresh seeds"))
        found.append(_ledger(result.verdict))
    elif result.best is not None:
        found.append(("best trial", number(result.best.value), "not the gain to expect"))
    if result.baseline is not None:
        spread = "" if result.baseline.sd is None else f"± {result.baseline.sd:.2g}"
        found.append((f"{baseline_label(result.spec)} in the search", number(result.baseline.mean), spread))
    if result.spec.compare is not None:
        return (*_of_variants(result), _training(result))
    over = sum(count for name, count in result.trials.items() if name != "running")
    found.append(("search trials", f"{over:,}".replace(",", " "), f"{result.trials['pruned']} pruned"))
    return (*found, _training(result))


def _training(result: StudyResult) -> tuple[str, str, str]:
    gpu = result.cost.gpu_seconds
    cards = "no GPU" if gpu is None else f"{number(gpu / 3600)} GPU-hours"
    return "training", duration(result.cost.train_seconds), cards


def _of_variants(result: StudyResult) -> Iterator[tuple[str, str, str]]:
    """Yield what each variant of a comparison gains over the reference."""
    found = result.comparison
    for each in found.variants[:_MOST_TILES] if found is not None else ():
        if found is not None and each.answer is not None:
            test = each.answer.paired
            interval = f"{rounded(test.ci_low, test)} to {rounded(test.ci_high, test)}"
            name = f"{each.name} over {found.reference}"
            more = f"{100 * test.confidence:.4g} % interval {interval}, p = {test.p_value:.2g}"
            yield name, rounded(test.gain, test), more


def _ledger(found: Verdict) -> tuple[str, str, str]:
    """Return which verdict it is, and what it may spend of the level that all verdicts share."""
    of_all = f"verdict {found.looks}; {100 * ALPHA:.2g}\u00a0% for all"
    return "error rate allowed", f"{100 * found.alpha:.2g} %", of_all


def _short(text: str, longest: int = 32) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def _picture(result: StudyResult, key: str, *, alone: bool) -> Picture:
    plot = PLOTS[key]
    # a plot that has a section to itself needs no second heading
    title = "" if alone else plot.title
    try:
        data = plot.data(result)
    except NothingToPlot as reason:
        return Picture(key=key, title=title, absent=str(reason))
    figure: str = plot.figure(data).to_json()
    return Picture(key=key, title=title, caption=data.caption(), table=data.table(), figure=figure)


def _use(result: StudyResult) -> Iterator[Code]:
    for key, title, write in (
        ("yaml", "YAML, for LightningCLI", export.to_yaml),
        ("python", "Python, for a plain Trainer", export.to_python),
    ):
        try:
            yield Code(key=key, title=title, text=write(result))
        except StudyFailed as reason:
            yield Code(key=key, title=title, absent=str(reason))


def _reproduce(result: StudyResult, storage: str) -> Iterator[Code]:
    spec = result.spec.model_dump(mode="json", exclude_defaults=True)
    command = "search" if result.spec.compare is None else "compare"
    if result.spec.compare is not None:
        del spec["search"]
    text: str = yaml.safe_dump(spec, sort_keys=False, allow_unicode=True)
    # a page is sent on to people who are to know no password
    text = without_passwords(text)
    yield Code(key="spec", title=f"The study spec ({_short(result.name)}.yaml)", text=text)
    name = shlex.quote(result.name)
    lines = [
        "# ask the same question again, in another database",
        f"tempopt {command} {shlex.quote(f'{result.name}.yaml')} --storage sqlite:///again.db",
        "# look at this study",
        f"tempopt show {name}{storage}",
        f"tempopt report {name}{storage}",
    ]
    yield Code(key="commands", title="The commands", text="\n".join(lines) + "\n")


def _cost_facts(result: StudyResult) -> Iterator[tuple[str, str]]:
    cost = result.cost
    yield "training", duration(cost.train_seconds)
    if cost.gpu_seconds is not None:
        yield "GPU-hours", number(cost.gpu_seconds / 3600)
    if cost.peak_memory is not None:
        yield "most memory of one GPU in use", f"{number(cost.peak_memory / 1e9)} GB"
    if cost.checkpoint_seconds >= 1:
        yield "spent on writing checkpoints", duration(cost.checkpoint_seconds)


def _environment(result: StudyResult) -> Iterator[tuple[str, str]]:
    yield "study begun", f"{result.created:%Y-%m-%d %H:%M} UTC"
    codes = run_codes(run.code for run in result.runs)
    for code, count in codes[:_MAX_CODES]:
        yield "trained by", f"{code.words} ({count} runs)"
    if len(codes) > 1:
        yield "mixture", f"runs were trained by {len(codes)} versions of the code or its packages"
    if (start := result.spec.study.start_from) is not None:
        yield "weights that runs start from", f"{start.path}, SHA-256 {start.sha256}"
    devices = Counter(run.device for run in result.runs if run.device is not None)
    if devices:
        yield "devices", ", ".join(f"{device} ({count} runs)" for device, count in devices.most_common(8))
    yield "seed of the study", str(result.spec.study.seed)
    yield "identity of the spec", result.spec.identity()[:12]
    packages = ", ".join(f"{name} {found}" for name in _PACKAGES if (found := _version(name)))
    yield "where this page was written", f"Python {platform.python_version()}, {packages}"


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def figures_json(found: tuple[Section, ...]) -> str:
    """Return all figures as one JSON object by key, fit to stand inside a script element."""
    figures = ",".join(
        f"{json.dumps(picture.key)}:{picture.figure}"
        for section in found
        for picture in section.pictures
        if picture.figure
    )
    # "</script>" and "<!--" inside a text would end it
    return "{" + figures.replace("<", "\\u003c").replace("\u2028", "\\u2028") + "}"
