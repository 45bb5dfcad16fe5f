"""Optuna's dashboard for a store, on the loopback address, with tempopt's notes and plots.

Uses only the public API of Optuna and optuna-dashboard.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import optuna
from optuna.storages import RDBStorage
from optuna_dashboard import get_note, save_note, save_plotly_graph_object, wsgi

from tempopt.errors import NothingToPlot, StorageError, UsageError
from tempopt.report.note import belongs_to_tempopt, render_note
from tempopt.report.page.sections import plot_keys
from tempopt.report.plots import PLOTS
from tempopt.report.plots.style import GROUND
from tempopt.report.study_result import load
from tempopt.storage import urls
from tempopt.storage.opening import open_store
from tempopt.storage.rows import StudySummary
from tempopt.storage.store import Store
from tempopt.version import __version__

if TYPE_CHECKING:
    import plotly.graph_objects as go
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

HOST, PORT = "127.0.0.1", 8080
STAMP = "tempopt:shown"
"""User attribute of a study: digest of the state in its note and plots."""
_PAUSE_SECONDS = 20.0
_PLOT_HEIGHT = 440
_LOCAL_NAMES = ("127.0.0.1", "localhost")


class Dashboard:
    """Optuna's dashboard of all studies of one database; a context manager.

    While it is open, a thread updates the note and the plots of each study that has changed.

    Args:
        url: URL of the store's database.
        port: Port on 127.0.0.1; 0 for a free one.
        name: Name of the study that is updated first; None for no priority.
        note: Receives each message for a person.

    Raises:
        StudyNotFound: There is no study of that name.
        StorageError: There is no store at the URL, or Optuna cannot read its tables.
        UsageError: The port is in use or not permitted.
    """

    def __init__(
        self, url: str, *, port: int = PORT, name: str | None = None, note: Callable[[str], None] = print
    ) -> None:
        self._store = open_store(url, create=False)
        if name is not None:
            self._store.load_study(name)
        self._name, self._note = name, note
        self._storage = open_storage(url, self._store.url)
        self._server = _listen(port, _local_only(wsgi(self._storage)))
        self.url = f"http://{HOST}:{self._server.server_port}"
        self._messages: set[str] = set()
        self._is_closed = threading.Event()
        self._publisher = threading.Thread(target=self._publish_all, name="tempopt-notes", daemon=True)

    def __enter__(self) -> Dashboard:
        self._publisher.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._is_closed.set()
        self._server.server_close()
        self._publisher.join(_PAUSE_SECONDS)
        self._storage.engine.dispose()
        self._store.close()

    def serve(self) -> None:
        """Answer requests until a signal or :meth:`stop` from another thread."""
        self._server.serve_forever()

    def stop(self) -> None:
        """End :meth:`serve`, from another thread."""
        self._server.shutdown()

    def _publish_all(self) -> None:
        while not self._is_closed.is_set():
            summaries: list[StudySummary] = []
            with self._noting_errors():
                summaries = self._store.list_studies()
            for summary in sorted(summaries, key=lambda summary: summary.study.name != self._name):
                if not self._is_closed.is_set():
                    with self._noting_errors():
                        publish(self._store, self._storage, summary)
            self._is_closed.wait(_PAUSE_SECONDS)

    @contextmanager
    def _noting_errors(self) -> Iterator[None]:
        """Note an error once: the dashboard stays useful without the newest plots of a study."""
        try:
            yield
        except Exception as error:
            message = f"The notes and plots could not be written: {error}"
            if message not in self._messages:
                self._messages.add(message)
                self._note(message)


def open_storage(url: str, driver_url: str) -> RDBStorage:
    """Open Optuna's storage in the database of a store.

    Args:
        url: URL in its given form, for messages.
        driver_url: The same with its driver.

    Raises:
        StorageError: Optuna cannot read its tables.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        return RDBStorage(driver_url, engine_kwargs={"pool_pre_ping": True})
    except Exception as error:
        address = urls.parse_database_url(url)
        raise StorageError(
            f"Optuna cannot read its tables in {address.masked}: {address.mask(str(error)).rstrip('.')}. If "
            "they are older than this Optuna, keep a copy, and run: optuna storage upgrade --storage URL"
        ) from None


def publish(store: Store, storage: RDBStorage, summary: StudySummary) -> bool:
    """Write the note and the plots of a study if it has changed; return whether it had.

    A note that a person wrote or changed is not replaced.
    """
    name = summary.study.name
    try:
        study = optuna.load_study(study_name=name, storage=storage)
    except KeyError:
        return False
    stamp = _stamp(summary)
    if study.user_attrs.get(STAMP) == stamp:
        return False
    result = load(store, name, needs_measurements=True)
    for key in plot_keys(result):
        try:
            figure = PLOTS[key](result)
        except NothingToPlot:
            continue
        save_plotly_graph_object(study, _lay_out(figure, PLOTS[key].title), graph_object_id=f"tempopt-{key}")
    note, old_note = render_note(result), get_note(study)
    if note != old_note and (not old_note.strip() or belongs_to_tempopt(old_note)):
        save_note(study, note)
    study.set_user_attr(STAMP, stamp)
    return True


def _stamp(summary: StudySummary) -> str:
    row = summary.study
    facts = (__version__, row.spec_hash, row.state, row.version, summary.tickets)
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def _lay_out(figure: go.Figure, title: str) -> go.Figure:
    """Set title, size and colours of a figure for the dashboard's grid, on a light ground in any mode."""
    return figure.update_layout(
        title={"text": title, "font": {"size": 14}, "x": 0.02, "y": 0.98, "yanchor": "top"},
        paper_bgcolor=GROUND,
        plot_bgcolor=GROUND,
        height=_PLOT_HEIGHT,
        margin={"t": 48, "b": 16},
        font={"size": 11},
        legend={"y": -0.2, "yanchor": "top"},
    )


# ---- the server


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _QuietHandler(WSGIRequestHandler):
    def log_message(self, format: str, *arguments: Any) -> None:
        pass


def _listen(port: int, app: WSGIApplication) -> WSGIServer:
    try:
        return make_server(HOST, port, app, server_class=_Server, handler_class=_QuietHandler)
    except (OSError, OverflowError) as error:
        raise UsageError(
            f"Port {port} of {HOST} cannot be used: {getattr(error, 'strerror', None) or error}. Give "
            "another one, as in --port 8081, or --port 0 for any that is free."
        ) from None


def _local_only(app: WSGIApplication) -> WSGIApplication:
    """Refuse other host names than this machine's, to which a foreign site could point its own name."""

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        host = environ.get("HTTP_HOST", "").rpartition(":")[0] or environ.get("HTTP_HOST", "")
        if host in _LOCAL_NAMES:
            return app(environ, start_response)
        start_response("403 Forbidden", [("Content-Type", "text/plain; charset=utf-8")])
        return [b"This dashboard answers to 127.0.0.1 and localhost. From elsewhere, use ssh -L.\n"]

    return answer
