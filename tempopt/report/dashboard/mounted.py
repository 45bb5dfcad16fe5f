"""Optuna's dashboard below a path of another server, a study at a time: each request is about one of them.

Owns which of Optuna's requests are passed on, to what and in which form. Who may see which study is decided
by whoever asks; its files are in ``mounted_page``; listens nowhere.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import re
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import parse_qs, urlencode

from optuna.storages import BaseStorage, RDBStorage, get_storage
from optuna_dashboard import wsgi

from tempopt.errors import StudyNotFound, masked
from tempopt.records.rows import StudyRow, StudySummary
from tempopt.report.dashboard.artifacts import Curves
from tempopt.report.dashboard.dashboard import masking, rows_of, settled
from tempopt.report.dashboard.one_study import OneStudy
from tempopt.report.dashboard.study_page import HEADLINE, publish
from tempopt.store import urls
from tempopt.store.artifacts import ticket_of
from tempopt.store.store import Store

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

LOGGER = logging.getLogger("tempopt.dashboard")

# Studies whose trials are kept in memory.
_MOST_STUDIES = 32
_HEADLINE_SECONDS = 5.0
# Between two looks at whether a page is up to date, and the share of the time that drawing it may take.
_REFRESH_SECONDS = 20.0
_SHARE = 0.05
_LARGEST_ID = 2**31 - 1
_PLOTS = "contour|slice|parallel_coordinate|rank|edf|timeline"
_READS = re.compile(
    rf"/(?:api/studies/(?P<study>\d{{1,10}})(?:/param_importances|/plot/(?:{_PLOTS}))?"
    r"|csv/(?P<of_csv>\d{1,10})"
    r"|artifacts/(?P<of_artifact>\d{1,10})/(?P<trial>\d{1,10})/(?P<artifact>[0-9a-fA-F-]{36}))"
)
_NOTES = re.compile(r"/api/studies/(?P<study>\d{1,10})(?:/\d{1,10})?/note")
_QUERIES = {"after": re.compile(r"\d{1,9}"), "trial_ids": re.compile(r"[\d, ]{0,20000}")}
_OF_ARTIFACTS = "sandbox; default-src 'none'; style-src 'unsafe-inline'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a request is answered.

    Args:
        status: HTTP status.
        kind: Type of the body.
        body: The body.
        headers: More headers.
    """

    status: int = 200
    kind: str = "application/json"
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, data: Any, status: int = 200) -> Answer:
        """Return plain data as JSON."""
        return cls(status=status, body=json.dumps(data).encode())


def _no_study(id: int) -> Answer:
    return Answer.of({"reason": f"study_id={id} is not found"}, 404)


class MountedDashboard:
    """Optuna's dashboard of the studies of a store; threads may share it.

    Args:
        store: Where the studies are; closed by whoever opened it.

    Raises:
        StorageError: Optuna's tables cannot be read.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._studies: OrderedDict[tuple[int, int], tuple[WSGIApplication, OneStudy]] = OrderedDict()
        self._headlines: tuple[float, dict[str, tuple[int, Any]]] | None = None
        self._pages = _Pages(store)
        with contextlib.ExitStack() as opened:
            told = urls.parse(store.url)
            opened.enter_context(masking(told))
            self._rows: RDBStorage = rows_of(told, store.url)
            opened.callback(self._rows.engine.dispose)
            self._opened = opened.pop_all()

    def close(self) -> None:
        """Let go of the database."""
        self._opened.close()

    # ---- all studies

    def kept(self) -> dict[str, tuple[int, Any]]:
        """Return by name Optuna's id of each study, and what its page leads with, as of some seconds ago."""
        with self._lock:
            now = time.monotonic()
            if self._headlines is None or now - self._headlines[0] >= _HEADLINE_SECONDS:
                self._headlines = now, self._store.page_attributes(HEADLINE)
            return self._headlines[1]

    def listed(self, directions: dict[str, str]) -> Answer:
        """Return Optuna's list of these studies, each with its direction."""
        kept = self.kept()
        summaries = [
            {
                "study_id": kept[name][0],
                "study_name": name,
                "directions": [direction],
                "user_attrs": [],
                "is_preferential": False,
            }
            for name, direction in directions.items()
            if name in kept
        ]
        return Answer.of({"study_summaries": sorted(summaries, key=lambda each: each["study_id"])})

    def headlines(self, standing: dict[str, dict[str, str]]) -> Answer:
        """Return what the page leads with, of these studies, each with what is known of it beside."""
        kept = self.kept()
        return Answer.of(
            [
                {"id": kept[name][0], "name": name, **facts, **(kept[name][1] or {})}
                for name, facts in standing.items()
                if name in kept
            ]
        )

    # ---- one study

    def read(self, path: str, query: str, may_see: Callable[[str], bool]) -> Answer:
        """Return what one study has to show.

        Args:
            path: Path below the prefix, as Optuna's dashboard names it.
            query: Query of the request.
            may_see: Whether whoever asks may see a study of this name.
        """
        found = _READS.fullmatch(path)
        if found is None:
            return Answer.of({"reason": "There is nothing at this address."}, 404)
        id = int(found["study"] or found["of_csv"] or found["of_artifact"])
        study = self._study(id, may_see)
        if study is None:
            return _no_study(id)
        artifact, trial = found["artifact"], found["trial"]
        if artifact and not (self._is_curve(study, artifact) and self._app(id, study)[1].has(int(trial))):
            return Answer.of({"reason": "There is no such picture."}, 404)
        self._pages.look(study)
        answer = self._asked(id, study, "GET", path, query=_query(query))
        # deleted meanwhile, its id may be that of a study which nobody asked about
        now = self._study(id, may_see)
        return answer if now is not None and now.id == study.id else _no_study(id)

    def write_note(self, path: str, body: bytes, may_see: Callable[[str], bool]) -> Answer:
        """Write the note of one study, or of one of its trials; arguments as for :meth:`read`."""
        found = _NOTES.fullmatch(path)
        if found is None:
            reason = (
                "Notes alone are written here; all else is done on the pages of tempopt, or by its commands."
            )
            return Answer.of({"reason": reason}, 405)
        id = int(found["study"])
        study = self._study(id, may_see)
        if study is None:
            return _no_study(id)
        if not _is_note(body):
            return Answer.of({"reason": "Give a version, a whole number, and a body, a text."}, 400)
        return self._asked(id, study, "PUT", path, body=body)

    def name_of(self, path: str, may_see: Callable[[str], bool]) -> str:
        """Return the name of the study whose note a path is about; empty: there is none."""
        found = _NOTES.fullmatch(path)
        study = None if found is None else self._study(int(found["study"]), may_see)
        return "" if study is None else study.name

    def _study(self, id: int, may_see: Callable[[str], bool]) -> StudyRow | None:
        """Return the study that Optuna has under an id, None if whoever asks may not see it."""
        if id > _LARGEST_ID:
            return None
        try:
            name = self._rows.get_study_name_from_id(id)
            return self._store.load_study(name) if may_see(name) else None
        except (KeyError, StudyNotFound):
            return None
        finally:
            self._rows.remove_session()

    def _is_curve(self, study: StudyRow, artifact: str) -> bool:
        ticket = ticket_of(artifact)
        run = None if ticket is None else self._store.run(ticket)
        return run is not None and run.study.id == study.id

    def _app(self, id: int, study: StudyRow) -> tuple[WSGIApplication, OneStudy]:
        """Return Optuna's application for one study, and what it sees of the storage.

        One for each, by both ids: databases give an id again once its study is deleted, and what was kept of
        that one is not to be shown as the new one's.
        """
        with self._lock:
            found = self._studies.get((id, study.id))
            if found is None:
                cached = get_storage(self._rows)
                seen = OneStudy(cached, id)
                app = wsgi(cast(BaseStorage, seen), artifact_store=Curves(self._store))
                found = settled(app, cached), seen
                self._studies[id, study.id] = found
            self._studies.move_to_end((id, study.id))
            while len(self._studies) > _MOST_STUDIES:
                self._studies.popitem(last=False)
        return found

    def _asked(
        self, id: int, study: StudyRow, method: str, path: str, *, query: str = "", body: bytes = b""
    ) -> Answer:
        """Return what Optuna's application answers to a request that was looked at."""
        told: list[Any] = []

        def start(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Callable[..., Any]:
            told[:] = status, headers
            return lambda data: None

        said = io.StringIO()
        environ = _environ(method, path, query, body) | {"wsgi.errors": said}
        parts = self._app(id, study)[0](environ, start)
        try:
            answered = b"".join(parts)
        finally:
            if hasattr(parts, "close"):
                parts.close()
        status, headers = told
        code = int(status.partition(" ")[0])
        if code >= 500:
            LOGGER.error("the dashboard failed: %s", masked(said.getvalue())[-4000:])
            return Answer.of({"reason": "The dashboard failed. The server's log tells more."}, 500)
        kept = {name.lower(): value for name, value in headers}
        more = [(n, kept[n]) for n in ("content-disposition",) if n in kept]
        if path.startswith("/artifacts/"):
            more.append(("content-security-policy", _OF_ARTIFACTS))
        return Answer(status=code, kind=kept.get("content-type", ""), body=answered, headers=tuple(more))


def _environ(method: str, path: str, query: str, body: bytes) -> dict[str, Any]:
    return {
        "REQUEST_METHOD": method,
        "SCRIPT_NAME": "",
        "PATH_INFO": path,
        "QUERY_STRING": query,
        "SERVER_NAME": "tempopt",
        "SERVER_PORT": "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "CONTENT_TYPE": "application/json",
        "CONTENT_LENGTH": str(len(body)),
        "HTTP_ACCEPT_ENCODING": "",
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "http",
        "wsgi.input": io.BytesIO(body),
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
    }


def _query(given: str) -> str:
    """Return what of a query Optuna's application knows, and is of the form that it takes for granted."""
    last = {name: values[-1] for name, values in parse_qs(given).items() if name in _QUERIES}
    return urlencode({name: value for name, value in last.items() if _QUERIES[name].fullmatch(value)})


def _is_note(body: bytes) -> bool:
    try:
        given = json.loads(body)
    except (ValueError, RecursionError):
        return False
    if not isinstance(given, dict) or set(given) != {"version", "body"}:
        return False
    return (
        type(given["version"]) is int
        and 0 <= given["version"] <= _LARGEST_ID
        and isinstance(given["body"], str)
    )


class _Pages:
    """Keeps the pages of those studies up to date that somebody looks at."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._next: dict[int, float] = {}
        self._busy = False

    def look(self, study: StudyRow) -> None:
        """Have a study's page brought up to date, unless another one is, or it was a moment ago."""
        now = time.monotonic()
        with self._lock:
            if self._busy or self._next.get(study.id, 0.0) > now:
                return
            self._busy = True
            self._next = {id: then for id, then in self._next.items() if then > now}
        threading.Thread(target=self._publish, args=(study,), name="tempopt-page", daemon=True).start()

    def _publish(self, study: StudyRow) -> None:
        began = time.thread_time()
        try:
            counted: dict[Any, Counter[Any]] = {}
            for row in self._store.tickets(study.id):
                counted.setdefault(row.kind, Counter())[row.state] += 1
            tickets = {kind: dict(states) for kind, states in counted.items()}
            publish(self._store, study.name, StudySummary(study=study, tickets=tickets))
        except Exception as error:
            # a page that cannot be drawn, or a database that is away, is no reason to show nothing
            LOGGER.warning("the page of %s is not up to date: %s", study.name, masked(str(error)))
        finally:
            pause = max(_REFRESH_SECONDS, (time.thread_time() - began) / _SHARE)
            with self._lock:
                self._next[study.id] = time.monotonic() + pause
                self._busy = False


META = Answer.of(
    {
        "artifact_is_available": True,
        "llm_is_available": False,
        "plotlypy_is_available": True,
        "allow_unsafe": False,
    }
)
"""What Optuna's page asks of the server that it is on."""
