"""The peers that others wrote: nginx, haproxy, caddy, traefik, configurable-http-proxy, and how each is set up."""

from __future__ import annotations

import http.client
import json
import time

from bench.http.contender import PATIENCE, Contender
from bench.http.peers import NODE
from bench.http.place import listens, nginx_user


class Nginx(Contender):
    key = "nginx"
    name = "nginx"
    needs = ("nginx",)
    extra = ""

    def argv(self) -> list[str]:
        temporary = "\n".join(
            f"    {kind}_temp_path {self.folder}/{kind};"
            for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        config = self.folder / "nginx.conf"
        config.write_text(
            f"""
{nginx_user()}
daemon off;
worker_processes 1;
pid {self.folder}/nginx.pid;
error_log stderr crit;
worker_rlimit_nofile 16384;
events {{ worker_connections 8192; }}
http {{
{temporary}
    access_log off;
    keepalive_requests 1000000000;
    client_max_body_size 0;
    map $http_upgrade $connection_upgrade {{ default upgrade; "" ""; }}
    proxy_http_version 1.1;
    proxy_set_header Host $http_host;
    proxy_set_header Connection $connection_upgrade;
    proxy_set_header Upgrade $http_upgrade;
    proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
    proxy_set_header X-Forwarded-Proto $scheme;
    proxy_read_timeout 1h;
    proxy_send_timeout 1h;
    {self.extra}
    upstream plain {{ server 127.0.0.1:{self.place.plain}; keepalive 512; keepalive_requests 1000000000; }}
    upstream echo {{ server 127.0.0.1:{self.place.echo}; keepalive 512; keepalive_requests 1000000000; }}
    server {{
        listen 127.0.0.1:{self.port} backlog=4096;
        location {self.prefix(self.place.plain)}/ {{ proxy_pass http://plain/; }}
        {self._second()}
    }}
}}
"""
        )
        return [self.path, "-e", "stderr", "-c", str(config)]

    def _second(self) -> str:
        if self.place.plain == self.place.echo:
            return ""
        return f"location {self.prefix(self.place.echo)}/ {{ proxy_pass http://echo/; }}"


class NginxBig(Nginx):
    key = "nginx-big"
    name = "nginx, big buffers"
    requests = False
    websockets = False
    memory = False
    extra = (
        "proxy_buffer_size 64k; proxy_buffers 16 256k; proxy_busy_buffers_size 1m; proxy_max_temp_file_size 0; "
        "proxy_request_buffering off; client_body_buffer_size 1m;"
    )


class Haproxy(Contender):
    key = "haproxy"
    name = "haproxy"
    needs = ("haproxy",)

    def argv(self) -> list[str]:
        config = self.folder / "haproxy.cfg"
        config.write_text(
            f"""
global
    nbthread 1
    maxconn 8192
defaults
    mode http
    option forwardfor
    http-reuse always
    timeout connect 5s
    timeout client 1h
    timeout server 1h
    timeout tunnel 1h
frontend front
    bind 127.0.0.1:{self.port} backlog 4096
    http-request set-var(txn.plain) bool(true) if {{ path_beg {self.prefix(self.place.plain)}/ }}
    http-request set-path "/%[path,field(4,/,0)]"
    use_backend plain if {{ var(txn.plain) -m bool }}
    default_backend echo
backend plain
    server one 127.0.0.1:{self.place.plain} maxconn 8192
backend echo
    server one 127.0.0.1:{self.place.echo} maxconn 8192
"""
        )
        return [self.path, "-db", "-q", "-f", str(config)]


class _Go(Contender):
    """Go's runtime counts the cores of the machine, not those that it may use, unless it is told."""

    def env(self) -> dict[str, str]:
        return {"GOMAXPROCS": "1", "HOME": str(self.folder)}


class Caddy(_Go):
    key = "caddy"
    name = "caddy"
    needs = ("caddy",)

    def argv(self) -> list[str]:
        config = self.folder / "Caddyfile"
        places = "\n".join(
            f"""
    handle_path {self.prefix(port)}/* {{
        reverse_proxy 127.0.0.1:{port} {{
            transport http {{
                keepalive_idle_conns_per_host 512
                compression off
            }}
        }}
    }}"""
            for port in {self.place.plain, self.place.echo}
        )
        config.write_text(
            f"""
{{
    admin off
    auto_https off
    persist_config off
    log {{
        level ERROR
    }}
}}
http://:{self.port} {{
    bind 127.0.0.1
{places}
}}
"""
        )
        return [self.path, "run", "--adapter", "caddyfile", "--config", str(config)]


class Traefik(_Go):
    key = "traefik"
    name = "traefik"
    quick = False
    needs = ("traefik",)

    def argv(self) -> list[str]:
        ports = sorted({self.place.plain, self.place.echo})
        config = self.folder / "dynamic.yaml"  # JSON is YAML
        routers = {
            f"r{port}": {
                "rule": f"PathPrefix(`{self.prefix(port)}`)", "service": f"s{port}", "middlewares": [f"m{port}"],
            }
            for port in ports
        }  # fmt: skip
        services = {
            f"s{port}": {"loadBalancer": {"serversTransport": "deep", "servers": [{"url": f"http://127.0.0.1:{port}"}]}}
            for port in ports
        }
        strip = {f"m{port}": {"stripPrefix": {"prefixes": [self.prefix(port)]}} for port in ports}
        transports = {"deep": {"maxIdleConnsPerHost": 512}}
        config.write_text(
            json.dumps(
                {"http": {"routers": routers, "services": services, "middlewares": strip,
                          "serversTransports": transports}}
            )
        )  # fmt: skip
        return [
            self.path, f"--entryPoints.web.address=127.0.0.1:{self.port}", f"--providers.file.filename={config}",
            "--providers.file.watch=false", "--log.level=ERROR", "--global.checkNewVersion=false",
            "--global.sendAnonymousUsage=false", "--entryPoints.web.transport.respondingTimeouts.readTimeout=0",
        ]  # fmt: skip


class NodeProxy(Contender):
    key = "chp"
    name = "configurable-http-proxy"
    needs = (NODE, "node")
    compiles = True
    _TOKEN = "of-the-bench"

    def argv(self) -> list[str]:
        self._api = self.place.free_port()
        node = self.peers.program("node")
        assert node is not None
        return [
            node, self.path, "--ip", "127.0.0.1", "--port", str(self.port), "--api-ip", "127.0.0.1",
            "--api-port", str(self._api), "--no-include-prefix", "--log-level", "error",
        ]  # fmt: skip

    def env(self) -> dict[str, str]:
        return {"CONFIGPROXY_AUTH_TOKEN": self._TOKEN, "NODE_ENV": "production"}

    def listening(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while not listens(self._api) and time.monotonic() < deadline:
            time.sleep(0.01)
        for port in {self.place.plain, self.place.echo}:
            client = http.client.HTTPConnection("127.0.0.1", self._api, timeout=5)
            body = json.dumps({"target": f"http://127.0.0.1:{port}"})
            client.request("POST", f"/api/routes{self.prefix(port)}", body, {"Authorization": f"token {self._TOKEN}"})
            status = client.getresponse().status
            client.close()
            if status != 201:
                raise RuntimeError(f"it refused a route with {status}")
