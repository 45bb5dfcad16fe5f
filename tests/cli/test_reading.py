"""What a database can do to a process that reads it: nothing is run, fetched or told that its rows name."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import create_engine, update

from tempopt.spec.study_spec import StudySpec
from tempopt.storage.checkpoints import run_name
from tempopt.storage.models import TICKET
from tempopt.storage.opening import open_store
from tests.report.made_study import World, make, write

URL = "sqlite:///tempopt.db"
READING = (
    *("list", "list --json", "show pairs", "show pairs --json", "show pairs --watch", "show own"),
    *("logs pairs", "logs pairs search-0", "export pairs", "export pairs --format python", "report pairs"),
    *("export own", "report own", "show scheduled", "gc --dry-run", "gc", "pause own", "stop own"),
    *("stop scheduled", "delete own --yes", "delete pairs --yes"),
)
# Nothing has been found in the one that could be exported; jobs of the other cannot be asked after.
REFUSED = {"export own": 1, "delete pairs --yes": 2}
# Commands in a process of their own, in which everything is written down that leaves it.
WATCHED = """
import json, sys, urllib.request
exit_codes, events = [], []
def hook(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "subprocess.Popen", "os.system", "os.exec"):
        events.append([event, str(arguments[-1] if event == "socket.connect" else arguments)])
    if event == "import" and arguments[0].startswith("innocent"):
        events.append([event, arguments[0]])
    if event == "open" and "named-by-a-row" in str(arguments[0]):
        events.append([event, str(arguments[0])])
sys.addaudithook(hook)
from tempopt.cli import main
for line in sys.argv[1:]:
    exit_codes.append(main(line.split()))
num_own = len(events)
heavy = [name for name in ("torch", "lightning", "torchmetrics", "jsonargparse") if name in sys.modules]
import threading
from tempopt.report.dashboard import Dashboard
with Dashboard("sqlite:///tempopt.db", port=0, name="pairs") as dashboard:
    threading.Thread(target=dashboard.serve, daemon=True).start()
    root = dashboard.url.rstrip("/")
    for path in ("/dashboard", "/api/studies"):
        urllib.request.urlopen(root + path).read()
local = {"127.0.0.1", "0.0.0.0"}
events = events[:num_own] + [event for event in events[num_own:] if not local & set(event[1].split("'"))]
print(json.dumps([exit_codes, events, heavy]), file=sys.stderr)
"""


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a study that names modules, variables, addresses and files wherever a spec or a row can."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("A_SECRET", "the-value-of-a-secret")
    Path("innocent.py").write_text("open('imported', 'w').close()\n")
    arguments = {"init_args": {"path": "${A_SECRET}"}}
    synthetic = make(World(trials=4, layers=1, heads=1))
    spec = {
        **synthetic.row.spec,
        "model": {"class_path": "innocent.Model", **arguments},
        "data": {"class_path": "innocent.Data", **arguments},
        "trainer": {
            "max_steps": 1000,
            "callbacks": [{"class_path": "innocent.Callback", **arguments}],
            "logger": [
                {"class_path": "innocent.Logger", "init_args": {"url": "http://127.0.0.1:9/${A_SECRET}"}}
            ],
            "profiler": {"class_path": "innocent.Profiler"},
        },
    }
    write(
        URL,
        replace(synthetic, row=replace(synthetic.row, spec=StudySpec.parse(spec, source="a row").to_json())),
    )
    plain_spec = World(trials=4, confirmed=False, layers=0).spec().to_json()
    plain_spec["study"] = {**plain_spec["study"], "name": "own"}
    plain_spec["search"] = {"temperature_init": {"low": 0.5, "high": 2.0}}
    with open_store(URL) as store:
        study = store.create_study("own", StudySpec.parse(plain_spec, source="a row").to_json(), "0")
        plain_spec["search"] = {"schedule": ["innocent:Schedule"]}
        plain_spec["study"] |= {"name": "scheduled"}
        store.create_study("scheduled", plain_spec, "0")
        store.set_checkpoints(store.load_study("pairs").id, "http://127.0.0.1:9/runs")
        store.add_jobs("pairs", "innocent:Launcher", {}, ["1"])
        store.add_jobs("pairs", "ray", {"address": "ray://127.0.0.1:9"}, ["innocent-0:0"])
        store.set_checkpoints(study.id, "reference://x::file:///named-by-a-row")
        ticket = next(row for row in store.tickets(store.load_study("pairs").id) if row.kind == "search")
        engine = create_engine(store.url)
    run = run_name(ticket.kind, ticket.number)
    places = [f"http://127.0.0.1:9/pairs/{run}", f"simplecache::http://127.0.0.1:9/pairs/{run}"]
    checkpoints = [
        {"step": step, "url": f"{folder}/step-{step}-1.ckpt", "digest": "0", "size": 1}
        for step, folder in enumerate(places)
    ]
    with engine.begin() as connection:
        connection.execute(update(TICKET).where(TICKET.c.id == ticket.id).values(checkpoints=checkpoints))
    engine.dispose()


@pytest.mark.usefixtures("hostile")
def test_no_command_that_reads_runs_or_fetches_what_a_row_names() -> None:
    runner = [sys.executable, "-c", WATCHED, *READING]
    process = subprocess.run(runner, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    codes, events, heavy = json.loads(process.stderr.splitlines()[-1])
    assert dict(zip(READING, codes, strict=True)) == {command: REFUSED.get(command, 0) for command in READING}
    assert events == [] == heavy
    assert not Path("imported").exists()
    for text in (process.stdout, process.stderr, *(page.read_text() for page in Path().glob("*.html"))):
        assert "the-value-of-a-secret" not in text
