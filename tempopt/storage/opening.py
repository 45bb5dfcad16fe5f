"""Open the store behind a URL: that of a database, or of a server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tempopt.storage.http.address import is_server
from tempopt.storage.schema import connect
from tempopt.storage.store import Store

if TYPE_CHECKING:
    from tempopt.storage.http.remote_store import RemoteStore


def open_store(url: str, *, create: bool = True) -> Store:
    """Open the store at a URL; StorageError if it cannot be reached, read or written.

    Args:
        url: ``sqlite:///file.db``, a bare path, ``postgresql://...``, ``mysql://...`` or ``mariadb://...``;
            or that of a server, ``https://...``, whose studies can be read
            (:class:`tempopt.storage.http.remote_store.RemoteStore`).
        create: Whether tables that are missing are created; False: a store must be there.
    """
    if is_server(url):
        # it loads what sends requests, which a database does without
        from tempopt.storage.http.remote_store import RemoteStore

        return RemoteStore.at(url)
    return Store(connect(url, create=create))


def as_remote_store(store: Store) -> RemoteStore | None:
    """Return a store as one behind a server, None if it is that of a database."""
    if not is_server(store.url):
        return None
    from tempopt.storage.http.remote_store import RemoteStore

    assert isinstance(store, RemoteStore)
    return store
