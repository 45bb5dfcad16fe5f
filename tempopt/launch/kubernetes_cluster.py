"""A Kubernetes cluster as the launcher asks it: plain data in and out, its refusals in words for a person.

Knows nothing of agents.
"""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kubernetes import client, config
from kubernetes.client import ApiException
from kubernetes.config import ConfigException
from urllib3.exceptions import HTTPError

from tempopt.errors import UsageError, shortened, unknown
from tempopt.files import absolute

_TIMEOUT = (5.0, 60.0)
_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
# Of a server that is busy, or in the middle of being replaced.
_PASSING = (408, 429, 500, 502, 503, 504)


class AwayError(UsageError):
    """The cluster does not answer."""


class RefusedError(UsageError):
    """The cluster does not let this person do something."""


class Cluster:
    """The API server of a kubeconfig's context, or of the cluster that this process is a pod of.

    Args:
        kubeconfig: File; None: as ``kubectl`` finds it.
        context: Context of that file; None: its current one.

    Raises:
        UsageError: There is no such file or context, or the file is none.
    """

    def __init__(self, kubeconfig: str | None, context: str | None) -> None:
        settings = client.Configuration()
        self.namespace = "default"
        """The namespace that is meant where none is given."""
        self.shown = "the cluster of this pod"
        """What the cluster is called in messages."""
        if kubeconfig is None and context is None and not _has_kubeconfig() and _NAMESPACE.is_file():
            config.load_incluster_config(client_configuration=settings)
            self.namespace = _NAMESPACE.read_text(encoding="utf-8").strip()
        else:
            self._read(kubeconfig, context, settings)
        self._client = client.ApiClient(settings)
        self._batch, self._core = client.BatchV1Api(self._client), client.CoreV1Api(self._client)

    def _read(self, kubeconfig: str | None, context: str | None, settings: client.Configuration) -> None:
        file = None if kubeconfig is None else str(absolute(kubeconfig, "--launch kubeconfig: the file"))
        try:
            contexts, current = config.list_kube_config_contexts(file)
        except (ConfigException, OSError, ValueError) as error:
            raise UsageError(
                f"The launcher kubernetes finds no cluster: {shortened(str(error))} Give a kubeconfig file "
                "that kubectl works with: --launch kubeconfig=FILE, or KUBECONFIG."
            ) from error
        known = {each["name"]: each for each in contexts}
        if context is not None and context not in known:
            raise UsageError(unknown("context of the kubeconfig", context, known))
        chosen = known[context] if context is not None else current
        self.namespace = chosen["context"].get("namespace") or "default"
        self.shown = f"the cluster of the context {chosen['name']}"
        try:
            config.load_kube_config(file, chosen["name"], client_configuration=settings, persist_config=False)
        except (ConfigException, OSError, ValueError) as error:
            raise UsageError(
                f"The kubeconfig's context {chosen['name']} cannot be used: {shortened(str(error))} Try it "
                f"with: kubectl --context {chosen['name']} get jobs"
            ) from error

    def create_job(self, namespace: str, body: dict[str, Any]) -> dict[str, Any]:
        """Create a Job and return it as the cluster has it."""
        return self._ask("create jobs", namespace, self._batch.create_namespaced_job, namespace, body)

    def begin_job(self, namespace: str, name: str) -> None:
        """Have a Job begin that was created suspended."""
        change, kind = {"spec": {"suspend": False}}, "application/merge-patch+json"
        patch = self._batch.patch_namespaced_job
        self._ask("patch jobs", namespace, patch, name, namespace, change, _content_type=kind)

    def create_secret(self, namespace: str, body: dict[str, Any]) -> None:
        """Create a Secret."""
        self._ask("create secrets", namespace, self._core.create_namespaced_secret, namespace, body)

    def jobs(self, namespace: str, labels: str) -> list[dict[str, Any]]:
        """Return the Jobs that labels select."""
        return self._list("list jobs", namespace, self._batch.list_namespaced_job, label_selector=labels)

    def pods(self, namespace: str, labels: str) -> list[dict[str, Any]]:
        """Return the pods that labels select."""
        return self._list("list pods", namespace, self._core.list_namespaced_pod, label_selector=labels)

    def warnings(self, namespace: str, name: str) -> list[str]:
        """Return what the cluster warns of an object, the oldest first; nothing if it does not tell."""
        about = f"involvedObject.name={name},type=Warning"
        try:
            found = self._list(
                "list events", namespace, self._core.list_namespaced_event, field_selector=about
            )
        except RefusedError:
            # a reason less is no reason to do nothing
            return []
        found.sort(key=lambda each: each.get("lastTimestamp") or each.get("eventTime") or "")
        return [each.get("message", "") for each in found]

    def nodes(self) -> list[dict[str, Any]] | None:
        """Return the nodes; None if this person may not see them."""
        try:
            return list(self._ask("list nodes", None, self._core.list_node)["items"])
        except RefusedError:
            return None

    def delete_job(self, namespace: str, name: str) -> None:
        """Delete a Job, its pods first; one that is not there is deleted."""
        delete = self._batch.delete_namespaced_job
        try:
            self._ask("delete jobs", namespace, delete, name, namespace, propagation_policy="Foreground")
        except _NotFoundError:
            return

    def close(self) -> None:
        """Let go of the connections."""
        self._client.close()

    def _list(self, what: str, namespace: str, call: Callable[..., Any], **more: str) -> list[dict[str, Any]]:
        return list(self._ask(what, namespace, call, namespace, **more)["items"])

    def _ask(
        self, what: str, namespace: str | None, call: Callable[..., Any], *words: Any, **more: str
    ) -> dict[str, Any]:
        """Return what the cluster answers, as plain data.

        Args:
            what: Verb and resource, as rules of RBAC have them.
            namespace: Where; None: in the cluster.
            call: Method of the client.
            words: Goes to it.
            more: Goes to it.
        """
        try:
            answer = call(*words, **more, _preload_content=False, _request_timeout=_TIMEOUT)
            found: dict[str, Any] = json.loads(answer.data)
        except ApiException as error:
            raise self._refusal(what, namespace, error) from error
        except (HTTPError, OSError, ValueError) as error:
            raise AwayError(f"{self.shown} does not answer: {_cause(error)}") from error
        return found

    def _refusal(self, what: str, namespace: str | None, error: ApiException) -> UsageError:
        said = _said(error)
        where = "" if namespace is None else f" in the namespace {namespace}"
        if error.status in _PASSING:
            return AwayError(f"{self.shown} does not answer: {error.status} {said}")
        if error.status == 401:
            return RefusedError(
                f"{self.shown} does not know you: {said} Sign in again, and try: kubectl auth whoami"
            )
        if error.status == 403 and "exceeded quota" in said:
            return UsageError(
                f"The quota of the namespace {namespace} is used up: {said} Wait until others have ended, "
                "ask for fewer agents (--workers), or for another namespace (--launch namespace=NAME)."
            )
        if error.status == 403 and " is forbidden: User " in said:
            verb, _, resource = what.partition(" ")
            return RefusedError(
                f"You may not {what}{where} of {self.shown}: {said} Have its administrator give you the "
                f"verb {verb} on {resource}; deploy/chart has a role of what is needed (launcher.enabled)."
            )
        if error.status == 404:
            return _NotFoundError(
                f"{self.shown} cannot {what}{where}: {said} Give a namespace that there is: --launch "
                "namespace=NAME"
            )
        return UsageError(f"{self.shown} does not {what}{where}: {said}")


class _NotFoundError(UsageError):
    """What was asked for is not there."""


def _has_kubeconfig() -> bool:
    # as kubectl has it: a file, where there is one, comes before the pod's own account
    return any(Path(each).is_file() for each in _kubeconfigs())


def _kubeconfigs() -> list[str]:
    from kubernetes.config.kube_config import KUBE_CONFIG_DEFAULT_LOCATION

    return [str(Path(each).expanduser()) for each in KUBE_CONFIG_DEFAULT_LOCATION.split(":") if each]


def _said(error: ApiException) -> str:
    """Return the cluster's own words, as one sentence."""
    text = error.body.decode(errors="replace") if isinstance(error.body, bytes) else str(error.body or "")
    try:
        status = json.loads(text)
    except ValueError:
        status = {}
    message = status.get("message") if isinstance(status, Mapping) else None
    said = str(message or text or error.reason or "no reason is known").strip()
    return shortened(said if said.endswith((".", "!", "?")) else f"{said}.")


def _cause(error: Exception) -> str:
    reason = getattr(error, "reason", None) or error
    # the pool of connections names itself in front
    return shortened(urllib.parse.unquote(str(reason)).rpartition(": ")[2] or str(reason)).rstrip(".") + "."
