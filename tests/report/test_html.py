"""The page as text: what it says, what it escapes, what it weighs; how it looks is test_browser_report's."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shlex
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest
import yaml
from markupsafe import Markup

from tempopt.report.page.html import Site, file_name, render_report
from tempopt.report.page.sections import codes_to_reproduce
from tempopt.report.plots import PLOTS
from tempopt.report.study_result import StudyResult
from tempopt.spec.study_spec import StudySpec
from tests.report.made_study import World, make

SCRIPT = "<script>alert(1)</script>"
SECTIONS = ("verdict", "progress", "use", "plots", "details")


class PageParser(HTMLParser):
    """A page as its reader's browser takes it: elements, attributes, and text by where it stands."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self._in = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._in = tag

    def handle_data(self, data: str) -> None:
        self.texts.setdefault(self._in, []).append(data)

    def handle_endtag(self, tag: str) -> None:
        self._in = ""

    def ids(self, tag: str) -> list[str]:
        """Return the ids of the elements of a kind."""
        return [attrs["id"] or "" for name, attrs in self.elements if name == tag and "id" in attrs]

    def all_text(self) -> str:
        """Return all text that a person reads."""
        return " ".join(
            text for tag, texts in self.texts.items() if tag not in ("script", "style") for text in texts
        )


def figures(text: str) -> dict[str, Any]:
    """Return the figures of a page."""
    match = re.search(r'<script type="application/json" id="figures">(.*?)</script>', text, re.DOTALL)
    assert match is not None
    figures_data: dict[str, Any] = json.loads(match[1])
    return figures_data


def hostile(result: StudyResult, **study: Any) -> StudyResult:
    """Return the study under a name, or on a metric, that no spec would take."""
    section = result.spec.study.model_copy(update=study)
    return replace(result, spec=result.spec.model_copy(update={"study": section}))


@pytest.fixture(scope="module")
def page(confirmed_result: StudyResult) -> str:
    return render_report(confirmed_result, plotlyjs="cdn", storage="postgresql://me:***@host/db")


def test_the_page_has_every_section_in_order_and_every_plot_in_words_too(page: str) -> None:
    parsed_page = PageParser(page)
    assert parsed_page.ids("section") == list(SECTIONS)
    plots = {attrs["data-plot"]: attrs for _, attrs in parsed_page.elements if "data-plot" in attrs}
    assert list(figures(page)) == list(plots) == list(PLOTS)
    assert all(attrs["role"] == "img" and len(attrs["aria-label"] or "") > 40 for attrs in plots.values())


def test_every_link_leads_to_something_on_the_page(page: str) -> None:
    parsed_page = PageParser(page)
    ids = [attrs["id"] for _, attrs in parsed_page.elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    links = [attrs["href"] or "" for tag, attrs in parsed_page.elements if tag == "a"]
    assert links and {link.removeprefix("#") for link in links} <= set(ids)
    for name in ("aria-labelledby", "data-copy"):
        assert {attrs[name] for _, attrs in parsed_page.elements if name in attrs} <= set(ids)


def test_the_page_is_small_without_plotly_and_fetches_exactly_that(page: str) -> None:
    assert len(page.encode()) < 300_000
    sources = [attrs for tag, attrs in PageParser(page).elements if tag == "script" and "src" in attrs]
    (library,) = sources
    assert re.fullmatch(r"https://cdn\.plot\.ly/plotly-[\d.]+\.min\.js", library["src"] or "")
    assert (library["integrity"] or "").startswith("sha256-")


def test_the_spec_on_the_page_has_no_password_of_an_url_and_else_is_as_it_was(
    confirmed_result: StudyResult,
) -> None:
    data = {"class_path": "own.Data", "init_args": {"url": "http://bob:hunter22@host/x", "hub": "a:b/c@v1"}}
    text = render_report(
        replace(confirmed_result, spec=confirmed_result.spec.model_copy(update={"data": data})),
        plotlyjs="cdn",
    )
    block = text[text.index('id="reproduce"') :]
    assert "hunter22" not in block
    assert "url: http://bob:***@host/x" in block and "hub: a:b/c@v1" in block


@pytest.mark.long
def test_a_large_study_keeps_within_its_weight() -> None:
    result = make(World(trials=1000, reports=20, layers=12, heads=12)).result()
    assert len(render_report(result, plotlyjs="cdn").encode()) < 2_000_000
    html = render_report(result)
    assert len(html.encode()) < 6_000_000
    assert html.count("plotly.js v") >= 1
    assert not [attrs for tag, attrs in PageParser(html).elements if "src" in attrs or tag == "link"]


def test_scripts_are_held_to_those_that_tempopt_wrote(confirmed_result: StudyResult) -> None:
    text = render_report(confirmed_result)
    policy = next(attrs["content"] for tag, attrs in PageParser(text).elements if "http-equiv" in attrs) or ""
    assert "default-src 'none'" in policy
    allowed = set(re.findall(r"'sha256-([^']+)'", policy))
    scripts = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    assert {
        base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts
    } == allowed


def test_what_people_wrote_does_not_change_the_direction_of_a_line(confirmed_result: StudyResult) -> None:
    reversing = "a\u202eb\u2066c"
    result = hostile(confirmed_result, name=reversing, metric=reversing)
    failed_runs = [replace(run, state="failed", error=reversing) for run in result.runs[:2]]
    text = render_report(replace(result, lost=failed_runs), plotlyjs="cdn", storage=reversing)
    assert "\u202e" not in text and "\u2066" not in text
    assert r"a\u202eb\u2066c" in PageParser(text).texts["h1"]


def test_what_people_wrote_is_text_wherever_it_stands(confirmed_result: StudyResult) -> None:
    result = hostile(confirmed_result, name=SCRIPT, metric=SCRIPT)
    runs = [replace(run, machine=SCRIPT, device=SCRIPT, code=SCRIPT, error=SCRIPT) for run in result.runs]
    failed_runs = [replace(run, state="failed", failures=3) for run in runs[:2]]
    text = render_report(replace(result, runs=tuple(runs), lost=failed_runs), plotlyjs="cdn", storage=SCRIPT)
    parsed_page = PageParser(text)
    assert SCRIPT in parsed_page.texts["h1"]
    assert SCRIPT in parsed_page.texts["title"][0]
    assert [tag for tag, _ in parsed_page.elements].count("script") == 3
    assert "alert(1)" not in "".join(re.findall(r"<script>(.*?)</script>", text, re.DOTALL))
    # plotly shows a small part of HTML: what people wrote must not be that, either
    assert "<script>" not in json.dumps(figures(text))


def test_long_names_are_shortened_and_the_page_stays_small() -> None:
    result = make(World(trials=60, search={"p" * 500: {"low": 0.0, "high": 1.0}})).result()
    text = render_report(result, plotlyjs="cdn")
    assert len(text.encode()) < 500_000
    assert max(len(label) for label in figures(text)["importance"]["layout"]["yaxis"]["ticktext"]) <= 22
    assert "p" * 500 in PageParser(text).all_text()  # in the spec, where it has to be whole


@pytest.mark.parametrize(
    "world",
    [
        World(nan=True),
        World(trials=12, ends=["diverged"], confirmed=False),
        World(trials=12, ends=["pruned"], confirmed=False),
        World(trials=12, ends=["failed"], confirmed=False),
        World(trials=12, ends=["pruned"], nan=True, confirmed=False),
        World(layers=0),
        World(cards=False, gain=0.0),
    ],
)
def test_whatever_a_study_lacks_the_page_is_whole_and_says_why(world: World) -> None:
    text = render_report(make(world).result(), plotlyjs="cdn")
    parsed_page = PageParser(text)
    assert parsed_page.ids("section") == [key for key in SECTIONS if key != "plots" or figures(text)]
    absent = [attrs for _, attrs in parsed_page.elements if attrs.get("class") == "absent"]
    num_codes = 2 if world.confirmed or world.ends is None else 0
    assert len(figures(text)) + len(absent) == len(PLOTS) + (2 - num_codes)
    assert "NaN" not in json.dumps(figures(text))
    assert "nan" not in re.findall(r"\w+", parsed_page.all_text())


def test_a_study_that_has_only_been_asked_for_has_a_page(untouched_result: StudyResult) -> None:
    text = render_report(untouched_result, plotlyjs="cdn")
    assert figures(text) == {}
    assert "No verdict yet" in text
    assert PageParser(text).ids("section") == ["verdict", "progress", "use", "details"]
    assert "No run is planned yet." in text


def test_a_server_adds_its_parts_and_its_policy(
    searching_result: StudyResult, confirmed_result: StudyResult
) -> None:
    actions = Markup('<form method="post" action="/studies/pairs/pause"></form>')
    site = Site(home_url="/", library_url="/assets/plotly.js", refresh_seconds=7, actions=actions)
    text = render_report(searching_result, site=site)
    parsed_page = PageParser(text)
    assert ("body", {"data-refresh": "7"}) in parsed_page.elements
    assert ("script", {"src": "/assets/plotly.js"}) in parsed_page.elements and actions in text
    policy = next(attrs["content"] for _, attrs in parsed_page.elements if "http-equiv" in attrs) or ""
    assert "connect-src 'self'" in policy and "form-action 'self'" in policy and "cdn" not in policy
    # a study that is done does not change
    assert "data-refresh=" not in render_report(confirmed_result, site=site)


def test_the_spec_on_the_page_asks_the_same_question(page: str, confirmed_result: StudyResult) -> None:
    code = re.search(r'<pre id="code-spec"[^>]*><code>(.*?)</code>', page, re.DOTALL)
    assert code is not None
    (text,) = PageParser(f"<code>{code[1]}</code>").texts["code"]
    assert (
        StudySpec.parse(yaml.safe_load(text), source="the page").identity()
        == confirmed_result.spec.identity()
    )


def test_the_winner_on_the_page_is_what_export_writes(page: str, confirmed_result: StudyResult) -> None:
    from tempopt.report import export

    parsed_page = PageParser(page)
    texts = parsed_page.texts["code"]
    assert export.to_yaml(confirmed_result) in texts
    assert export.to_python(confirmed_result) in texts


def test_a_command_can_be_typed_whatever_is_in_the_path_of_the_store(confirmed_result: StudyResult) -> None:
    url = "sqlite:///it's mine.db"
    (commands,) = [
        code
        for code in codes_to_reproduce(confirmed_result, f" --storage {shlex.quote(url)}")
        if code.key == "commands"
    ]
    assert shlex.split((commands.text or "").splitlines()[-1]) == [
        *("tempopt", "report", "pairs", "--storage", url)
    ]


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("max_retrieval", "max_retrieval.html"),
        ("a.b-c", "a.b-c.html"),
        ("../../etc/passwd", "etc_passwd.html"),
        (SCRIPT, "script_alert_1_script.html"),
        ("...", "study.html"),
        ("x" * 300, f"{'x' * 100}.html"),
    ],
)
def test_a_studys_name_makes_a_safe_file_name(name: str, file: str) -> None:
    assert file_name(name) == file
