"""``tempopt report``, and the report at the end of a search."""

from __future__ import annotations

import shlex
from html import unescape
from pathlib import Path

import pytest

from tempopt import cli
from tempopt.cli import report
from tempopt.cli.report import write_final_report
from tests.report.made_study import World, make, write

URL = "sqlite:///tempopt.db"


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write(URL, make(World(trials=10, layers=1, heads=2)))
    return tmp_path


def test_the_report_is_written_under_the_studys_name(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", "pairs"]) == 0
    assert capsys.readouterr().out == "Written to pairs.html.\n"
    assert (study / "pairs.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert cli.main(["report", "pairs"]) == 0
    assert {path.name for path in study.iterdir()} == {"pairs.html", "tempopt.db"}


def test_the_report_goes_where_it_is_told(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", "pairs", "-o", "mine.html", "--plotlyjs", "cdn"]) == 0
    capsys.readouterr()
    assert cli.main(["report", "pairs", "-o", "-", "--plotlyjs", "cdn"]) == 0
    page = capsys.readouterr().out
    assert page.startswith("<!DOCTYPE html>") and page.rstrip().endswith("</html>")
    assert not (study / "-").exists()
    assert (study / "mine.html").stat().st_size < 1_000_000


def test_commands_that_a_verdict_names_lead_to_the_store_that_was_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    url = "sqlite:///the lab's.db"
    write(url, make(World(trials=10, layers=0)))
    export = f"tempopt export pairs --storage {shlex.quote(url)}"
    assert cli.main(["show", "pairs", "--storage", url]) == 0
    assert export in capsys.readouterr().out
    assert cli.main(["report", "pairs", "--storage", url, "-o", "-", "--plotlyjs", "cdn"]) == 0
    assert f"<code>{export}</code>" in unescape(capsys.readouterr().out)
    monkeypatch.setenv("TEMPOPT_STORAGE", url)
    assert cli.main(["show", "pairs"]) == 0
    assert "as code: tempopt export pairs\n" in capsys.readouterr().out


def test_the_report_at_the_end_replaces_reports_alone(
    study: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert write_final_report(URL, "pairs") == "pairs.html"
    page = (study / "pairs.html").read_text(encoding="utf-8")
    monkeypatch.setattr(report, "_render_page", lambda *_: page)
    assert write_final_report(URL, "pairs") == "pairs.html"
    assert capsys.readouterr().err == ""
    (study / "pairs.html").write_text("<title>mine</title>\n", encoding="utf-8")
    assert write_final_report(URL, "pairs") == "pairs-tempopt.html"
    assert "pairs.html exists and is not a report of tempopt" in capsys.readouterr().err
    assert write_final_report(URL, "pairs") == "pairs-tempopt.html"
    (study / "pairs-tempopt.html").write_bytes(b"\xff")
    assert write_final_report(URL, "pairs") == "pairs-tempopt-2.html"
    assert (study / "pairs.html").read_text(encoding="utf-8") == "<title>mine</title>\n"
    assert (study / "pairs-tempopt.html").read_bytes() == b"\xff"
    (study / "pairs.html").unlink()
    (study / "pairs.html").mkdir()
    assert write_final_report(URL, "pairs") == "pairs-tempopt-2.html"
