"""Optuna's dashboard over a store, with tempopt's plots, notes and curves inside it, behind a guarded door.

Owns what is put together; the door is in ``access``, the server in ``server``, the pages in ``study_page``.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import optuna
from optuna.storages import BaseStorage, RDBStorage, get_storage
from optuna_dashboard import wsgi

from tempopt.errors import StorageError
from tempopt.report.dashboard.access import Access, guarded, may_send, require_secret
from tempopt.report.dashboard.artifacts import Curves
from tempopt.report.dashboard.overlay import overlaid
from tempopt.report.dashboard.refresh import Refresher
from tempopt.report.dashboard.server import Server, address, listen, require_proxy
from tempopt.report.dashboard.throttle import Throttle
from tempopt.store import urls
from tempopt.store.store import Store

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

HOST, PORT = "127.0.0.1", 8080
# Whose log may repeat what a database says; the server's has the errors that nobody has caught.
_LOGGING = ("optuna", "optuna_dashboard", "waitress")


def _quiet(text: str) -> None:
    pass


class Dashboard:
    """A dashboard that is served from its making until it is closed; a context manager.

    It looks at all studies of one database and writes notes into it; for what it refuses, and why, see
    :func:`tempopt.report.dashboard.access.guarded`. That Optuna's dashboard does not see constraints, and
    then names the wrong trial as the best, does not concern tempopt's studies: they have none, and one
    objective. It has to stand at the root of an address ("/"): a proxy may add TLS and a name, not a path.

    Args:
        url: URL of the store's database.
        host: Address to listen at.
        port: Port to listen at; 0 takes one that is free.
        access: What a visitor has to know.
        trusted_proxy: IP address of a proxy with TLS whose X-Forwarded-For, -Host and -Proto are believed.
        first: Name of the study that matters most; None: the only one, if there is just one.
        note: Told what a person should read.

    Raises:
        StudyNotFound: There is no study of that name.
        StorageError: There is no store at the URL, or Optuna's tables in it cannot be read.
        UsageError: The address is not to be had, or would be open to strangers.
    """

    def __init__(
        self,
        url: str,
        *,
        host: str = HOST,
        port: int = PORT,
        access: Access | None = None,
        trusted_proxy: str | None = None,
        first: str | None = None,
        note: Callable[[str], None] = _quiet,
    ) -> None:
        access = access or Access()
        require_secret(host, access)
        proxy = None if trusted_proxy is None else require_proxy(trusted_proxy)
        with contextlib.ExitStack() as opened:
            store = opened.enter_context(Store.open(url, create=False))
            if first is not None:
                store.load_study(first)
            told = urls.parse(url)
            opened.enter_context(masking(told))
            rows = rows_of(told, store.url)
            opened.callback(rows.engine.dispose)
            bound = opened.enter_context(contextlib.closing(listen(host, port)))
            self.url = address(bound, host)
            self._studies = _ids(rows, store)
            self.study_url = self._url_of(first)
            # an URL, or the rows themselves, would be read whole at every look
            storage = get_storage(rows)
            app = overlaid(settled(wsgi(storage, artifact_store=Curves(store)), storage), store)
            refresher = Refresher(store.url, first=first, note=note)
            opened.callback(refresher.close)
            door = guarded(app, access, Throttle(note))
            reads = functools.partial(may_send, access=access)
            opened.callback(Server(door, bound, may_send=reads, trusted_proxy=proxy).close)
            refresher.start()
            self._opened = opened.pop_all()

    def __enter__(self) -> Dashboard:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """End, with every connection."""
        self._opened.close()

    def wait(self) -> None:
        """Wait for ever: a signal ends it."""
        threading.Event().wait()

    def _url_of(self, name: str | None) -> str | None:
        """Return where the study that matters most is looked at, None if none does or Optuna has none."""
        ids = list(self._studies.values())
        found = self._studies.get(name) if name is not None else (ids[0] if len(ids) == 1 else None)
        return None if found is None else f"{self.url}/dashboard/studies/{found}"


def rows_of(told: urls.Address, driver_url: str) -> RDBStorage:
    """Return Optuna's view of the database."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        # a server that was restarted meanwhile is connected to anew
        return RDBStorage(driver_url, engine_kwargs={"pool_pre_ping": True})
    except Exception as error:
        raise StorageError(
            f"Optuna cannot read its tables in {told.shown}: {told.mask(str(error)).rstrip('.')}. If they "
            "are older than this Optuna, keep a copy, and run: optuna storage upgrade --storage URL"
        ) from None


@contextlib.contextmanager
def masking(told: urls.Address) -> Iterator[None]:
    """Return a context in which what is logged of the dashboard keeps the password to itself."""

    def mask(record: logging.LogRecord) -> bool:
        record.msg, record.args = told.mask(record.getMessage()), ()
        if record.exc_info:
            # as text alone: whoever writes it would else format it anew
            record.exc_text = logging.Formatter().formatException(record.exc_info)
            record.exc_info = None
        if record.exc_text:
            record.exc_text = told.mask(record.exc_text)
        return True

    # A filter is asked by the logger that logs and by none above it. All are there: each is made on import.
    names = [name for name in logging.root.manager.loggerDict if name.partition(".")[0] in _LOGGING]
    loggers = [logging.getLogger(name) for name in names]
    for logger in loggers:
        logger.addFilter(mask)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(mask)


def _ids(rows: RDBStorage, store: Store) -> dict[str, int]:
    """Return Optuna's ids of the store's studies."""
    there = {each.study_name for each in rows.get_all_studies()}
    ours = [each.study.name for each in store.list_studies() if each.study.name in there]
    found = {name: rows.get_study_id_from_name(name) for name in ours}
    rows.remove_session()
    return found


def settled(app: WSGIApplication, storage: BaseStorage) -> WSGIApplication:
    """Return an application that leaves no transaction open behind it: servers cut those off, or wait."""

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        try:
            return app(environ, start_response)
        finally:
            storage.remove_session()

    return answer
