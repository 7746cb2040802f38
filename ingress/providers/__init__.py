"""Where the gateway learns which sandboxes there are, one module for each source."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ingress.providers.base import Provider, Say
    from ingress.providers.kubeconfig import Access
    from ingress.routes import Routes

TYPES = ("static", "docker", "batchsandbox", "agent-sandbox")
"""What `--provider-type` may be."""


class ProviderError(ValueError):
    """Settings that no provider can be made of; the text is one line with what to write instead."""


class ProviderSettings(NamedTuple):
    """Every flag of every provider; each reads its own."""

    routes_file: str = ""
    """`static`: the file; "": the first of `static.DEFAULT_PATHS`."""
    docker_host: str = ""
    """`docker`: `unix://…`, `tcp://host:port`; "": `unix:///var/run/docker.sock`."""
    docker_network: str = ""
    """`docker`: the network whose addresses are taken; "": the first with an address."""
    docker_published: str = ""
    """`docker`: the host where published ports answer, such as `127.0.0.1`; "": containers are reached by address."""
    kubeconfig: str = ""
    """Kubernetes: the file, or several with colons between them; "": the cluster that the gateway runs in."""
    kube_context: str = ""
    """Kubernetes: the context in it; "": the current one."""
    namespaces: tuple[str, ...] = ()
    """Kubernetes: the namespaces to watch; (): all."""
    keep: float = 86_400.0
    """Seconds for which the last routes go on after their source was lost (not `static`); 0: for good."""


def build(provider_type: str, settings: ProviderSettings, routes: Routes, say: Say) -> Provider:
    """The provider of that name over its table; nothing is opened before its `run`. Raises ProviderError.

    say: where its log lines go. Called inside a running loop, in the process that will serve.
    """
    if provider_type == "static":
        from ingress.providers.static import DEFAULT_PATHS, StaticProvider

        return StaticProvider((settings.routes_file,) if settings.routes_file else DEFAULT_PATHS, routes, say)
    if provider_type == "docker":
        return _docker(settings, routes, say)
    if provider_type in ("batchsandbox", "agent-sandbox"):
        return _kubernetes(provider_type, settings, routes, say)
    raise ProviderError(f"unknown provider type {provider_type!r}; known are {', '.join(TYPES)}")


def _docker(settings: ProviderSettings, routes: Routes, say: Say) -> Provider:
    import os

    from ingress.providers.containers import Wishes
    from ingress.providers.docker import DEFAULT_HOST, DockerHostError, DockerProvider
    from ingress.providers.fields import FieldError, host

    try:
        published = host(settings.docker_published) if settings.docker_published else ""
        wishes = Wishes(settings.docker_network, published)
        address = settings.docker_host or DEFAULT_HOST
        return DockerProvider(address, wishes, routes, say, keep=settings.keep, environ=os.environ)
    except (FieldError, DockerHostError) as error:
        raise ProviderError(str(error)) from None


def _kubernetes(provider_type: str, settings: ProviderSettings, routes: Routes, say: Say) -> Provider:
    import os

    from ingress.providers.kubeconfig import ConfigFault, load
    from ingress.providers.kubernetes import KubernetesProvider

    def access() -> Access:
        return load(settings.kubeconfig, settings.kube_context, os.environ)

    try:
        first = access()
    except ConfigFault as error:
        raise ProviderError(str(error)) from None
    if first.insecure:
        say("warn", f"{first.source}: insecure-skip-tls-verify: whoever sits between may name any sandbox's address")
    if provider_type == "batchsandbox":
        from ingress.providers.batchsandbox import BATCHSANDBOX as KIND
    else:
        from ingress.providers.agentsandbox import AGENT_SANDBOX as KIND
        from ingress.providers.agentsandbox import candidates

        routes.candidates = candidates
    return KubernetesProvider(KIND, access, routes, say, namespaces=settings.namespaces, keep=settings.keep)
