"""Open the store at a URL of a database or a server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tempopt.storage.http.address import is_server
from tempopt.storage.schema import connect
from tempopt.storage.store import Store

if TYPE_CHECKING:
    from tempopt.storage.http.remote_store import RemoteStore


def open_store(url: str, *, create: bool = True) -> Store:
    """Open the store at a URL.

    Args:
        url: ``sqlite:///file.db``, a bare path, ``postgresql://...``, ``mysql://...`` or ``mariadb://...``;
            or the URL of a server, ``https://...``, whose studies can be read
            (:class:`tempopt.storage.http.remote_store.RemoteStore`).
        create: Whether missing tables are created; False: the tables must exist.

    Raises:
        StorageError: The store cannot be reached, read or written.
    """
    if is_server(url):
        # lazy import: a database needs no HTTP client
        from tempopt.storage.http.remote_store import RemoteStore

        return RemoteStore.at(url)
    return Store(connect(url, create=create))


def as_remote_store(store: Store) -> RemoteStore | None:
    """Return the store if it is behind a server, None if it is a database."""
    if not is_server(store.url):
        return None
    from tempopt.storage.http.remote_store import RemoteStore

    assert isinstance(store, RemoteStore)
    return store
