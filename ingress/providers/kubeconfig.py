"""Where the Kubernetes API server is and how to speak to it: a kubeconfig, or the service account of a pod.

Read with `load`, which does the I/O; what a kubeconfig means is decided by `resolve`, which is pure.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from ingress.providers import fields
from ingress.providers.fields import FieldError, shown

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator, Mapping, Sequence

ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
"""Where a pod finds its service account."""
_SERVER = re.compile(r"https?://[^/?#@\s]+(/[^?#\s]*)?", re.ASCII)


class ConfigFault(ValueError):
    """A configuration that can't be used; one line that names the file, the place in it and what to do."""


class Access(NamedTuple):
    """One API server and the credentials for it. Files are read again for each connection: they rotate."""

    server: str
    """`https://host:port`, maybe with a path; no slash at the end."""
    ca_file: str = ""
    ca_data: bytes = b""
    insecure: bool = False
    """The server's certificate is not looked at."""
    server_name: str = ""
    """The name that its certificate is checked against; "": that of the URL."""
    token: str = ""
    token_file: str = ""
    certificate: str | bytes = b""
    """PEM itself as bytes, or the file's path as text."""
    key: str | bytes = b""
    source: str = ""
    """For people."""

    def bearer(self) -> str:
        """The token as it is now, "" for none. Raises ConfigFault."""
        try:
            if not self.token_file:
                return fields.token(self.token)
            with open(self.token_file, encoding="ascii") as file:
                return fields.token(file.read(65536))
        except FieldError:
            raise ConfigFault(f"{self.token_file or self.source}: the token holds what no header can carry") from None
        except (OSError, ValueError) as error:
            raise ConfigFault(f"{self.token_file}: {_why(error)}") from None


def load(kubeconfig: str, context: str, environ: Mapping[str, str]) -> Access:
    """The access that a flag, else `KUBECONFIG`, else the pod that this runs in gives. Raises ConfigFault."""
    paths = [path for path in (kubeconfig or environ.get("KUBECONFIG", "")).split(":") if path]
    if not paths:
        return in_cluster(environ)
    documents: list[tuple[str, object]] = []
    missing = ""
    for path in paths:
        path = os.path.expanduser(path)
        try:
            with open(path, encoding="utf-8") as file:
                documents.append((path, _parsed(path, file.read(4 << 20))))
        except FileNotFoundError:
            missing = path
        except (OSError, ValueError) as error:
            if isinstance(error, ConfigFault):
                raise
            raise ConfigFault(f"{path}: {_why(error)}") from None
    if not documents:
        raise ConfigFault(f"{missing}: there is no such kubeconfig")
    return resolve(documents, context)


def _parsed(path: str, text: str) -> object:
    import yaml

    try:
        return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - a safe loader
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        raise ConfigFault(f"{path}: not YAML" + (f" (line {mark.line + 1})" if mark else "")) from None


def in_cluster(environ: Mapping[str, str]) -> Access:
    """The service account of the pod that this runs in. Raises ConfigFault elsewhere."""
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "443")
    folder = ACCOUNT
    if not host:
        raise ConfigFault("this isn't a Kubernetes pod; name a kubeconfig with --kubeconfig, or set KUBECONFIG")
    if not os.path.exists(f"{folder}/token"):
        raise ConfigFault(f"{folder}/token: it is missing; give the pod a service account, or use --kubeconfig")
    host = f"[{host}]" if ":" in host else host
    return Access(
        server=f"https://{host}:{port}", ca_file=f"{folder}/ca.crt", token_file=f"{folder}/token", source="in-cluster"
    )


def resolve(documents: Sequence[tuple[str, object]], context: str) -> Access:
    """What kubeconfigs say, each with its path; where several name the same thing the first wins. Raises ConfigFault.

    context: "" for the current one.
    """
    found: dict[str, dict[str, tuple[str, dict[str, object]]]] = {"clusters": {}, "contexts": {}, "users": {}}
    current = context
    for path, document in documents:
        if not isinstance(document, dict):
            raise ConfigFault(f"{path}: not a kubeconfig: it isn't an object")
        current = current or _text(document, "current-context", path)
        for plural, things in found.items():
            listed = document.get(plural) or []
            if not isinstance(listed, list):
                raise ConfigFault(f"{path}: {plural}: not a list")
            for index, each in enumerate(listed):
                inner = each.get(plural[:-1]) if isinstance(each, dict) else None
                if not isinstance(each, dict) or not isinstance(each.get("name"), str):
                    raise ConfigFault(f"{path}: {plural}[{index}]: it has no name")
                things.setdefault(each["name"], (path, inner if isinstance(inner, dict) else {}))
    first = documents[0][0]
    if not current:
        names = ", ".join(sorted(found["contexts"])) or "none"
        raise ConfigFault(f"{first}: no current-context; choose one with --kube-context (there are: {names})")
    path, chosen = _named(found, "contexts", current, first)
    cluster_path, cluster = _named(found, "clusters", _text(chosen, "cluster", path), path)
    user_name = _text(chosen, "user", path)
    user_path, user = _named(found, "users", user_name, path) if user_name else (path, {})
    return _access(cluster_path, cluster, user_path, user, f"context {current} of {first}")


def _named(
    found: dict[str, dict[str, tuple[str, dict[str, object]]]], plural: str, name: str, path: str
) -> tuple[str, dict[str, object]]:
    if name not in found[plural]:
        there = ", ".join(sorted(found[plural])) or "none"
        raise ConfigFault(f"{path}: {plural}: there is no {shown(name)} (there are: {there})")
    return found[plural][name]


def _access(cpath: str, cluster: dict[str, object], upath: str, user: dict[str, object], source: str) -> Access:
    server = _text(cluster, "server", cpath).rstrip("/")
    if not _SERVER.fullmatch(server):
        raise ConfigFault(f"{cpath}: cluster.server: {shown(server)} is no URL such as https://10.0.0.1:6443")
    if _text(cluster, "proxy-url", cpath):
        raise ConfigFault(f"{cpath}: cluster.proxy-url: proxies are not supported")
    for plugin in ("exec", "auth-provider"):
        if user.get(plugin):
            raise ConfigFault(
                f"{upath}: user.{plugin}: plugins are not run here; write a token, tokenFile or client certificate, "
                "or run in the cluster with a service account"
            )
    if user.get("username"):
        raise ConfigFault(f"{upath}: user.username: Kubernetes has no passwords any more; write a token")
    certificate = _data(user, "client-certificate-data", upath) or _path(user, "client-certificate", upath)
    key = _data(user, "client-key-data", upath) or _path(user, "client-key", upath)
    if bool(certificate) != bool(key):
        raise ConfigFault(f"{upath}: user: a client certificate needs its key, and a key its certificate")
    return Access(
        server=server,
        ca_file=_path(cluster, "certificate-authority", cpath),
        ca_data=_data(cluster, "certificate-authority-data", cpath),
        insecure=cluster.get("insecure-skip-tls-verify") is True,
        server_name=_text(cluster, "tls-server-name", cpath),
        token=_text(user, "token", upath),
        token_file=_path(user, "tokenFile", upath),
        certificate=certificate,
        key=key,
        source=source,
    )


def _text(holder: dict[str, object], key: str, path: str) -> str:
    value = holder.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ConfigFault(f"{path}: {key}: not text")
    return value.strip()


def _path(holder: dict[str, object], key: str, path: str) -> str:
    """A file's path, relative to the kubeconfig's folder."""
    value = _text(holder, key, path)
    return os.path.join(os.path.dirname(os.path.abspath(path)), value) if value else ""


def _data(holder: dict[str, object], key: str, path: str) -> bytes:
    try:
        return base64.b64decode("".join(_text(holder, key, path).split()), validate=True)
    except (binascii.Error, ValueError):
        raise ConfigFault(f"{path}: {key}: not base64") from None


def tls(access: Access) -> ssl.SSLContext | None:
    """The TLS settings for a server, None for plain HTTP. Raises ConfigFault."""
    if access.server.startswith("http://"):
        return None
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        if access.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        elif access.ca_data or access.ca_file:
            context.load_verify_locations(access.ca_file or None, cadata=access.ca_data.decode("ascii") or None)
        else:
            context.load_default_certs()
        if access.certificate:
            with _as_file(access.certificate) as certificate, _as_file(access.key) as key:
                context.load_cert_chain(certificate, key, password=_no_password)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise ConfigFault(f"{access.source}: its certificates can't be used: {_why(error)}") from None
    return context


@contextmanager
def _as_file(content: str | bytes) -> Iterator[str]:
    """A path for what OpenSSL reads from files only; what isn't a file yet stays in memory (memfd_create(2))."""
    if isinstance(content, str):
        yield content
        return
    fd = os.memfd_create("pem")
    try:
        os.write(fd, content)
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)


def _no_password() -> str:
    """Instead of the question that OpenSSL would ask on the terminal."""
    raise ValueError("the key is encrypted")


def _why(error: Exception) -> str:
    words = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
    return words[0].lower() + words[1:]
