"""A program that starts sandboxes which share its network, as diggerhq's opensandbox does: guarded as a whole.

The stand-in has what matters of it: an HTTP API on loopback, and for each command a process with the host's network, in
PID and mount namespaces of its own. (Root without capabilities may not map its uid; there they are processes only.)
"""

from __future__ import annotations

import json
from typing import Any

from lab.network import RESOLVER

HOST = """
import http.server, json, os, socket, subprocess, sys, threading, urllib.request
FETCH = '''
import json, os, socket, sys
found = {"network": os.stat("/proc/self/ns/net").st_ino, "pid": os.getpid()}
for word in sys.argv[1:]:
    host, port = word.rsplit("/", 1)
    try:
        socket.create_connection((host, int(port)), 20).close()
        found[word] = "connected"
    except socket.gaierror:
        found[word] = "no such name"
    except OSError as error:
        found[word] = error.strerror
print(json.dumps(found))
'''
class Api(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        words = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        apart = ["unshare", "--user", "--map-current-user", "--pid", "--fork", "--mount"] if os.getuid() else []
        done = subprocess.run([*apart, sys.executable, "-c", FETCH, *words], capture_output=True, text=True)
        answer = (done.stdout or json.dumps({"error": done.stderr})).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)
    def log_message(self, *_):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Api)
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_port}/run"
found = []
def ask():
    with urllib.request.urlopen(url, json.dumps(sys.argv[1:]).encode(), 60) as answer:
        found.append(json.load(answer))
threads = [threading.Thread(target=ask) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(json.dumps({"host": os.stat("/proc/self/ns/net").st_ino, "sandboxes": found}))
"""
WORDS = ("api.example.com/80", "other.example.com/80", "198.51.100.20/80")


def test_all_of_its_sandboxes_are_guarded_together(connected: Any) -> None:
    zone = connected.lab.dns
    zone.a("api.example.com", "198.51.100.10")
    zone.a("other.example.com", "198.51.100.20")
    assert connected.lab.connect("198.51.100.20", 80, timeout=10) == "connected"  # the control: without it
    policy = connected.home / "policy.yaml"
    policy.write_text("egress:\n  - {action: allow, target: api.example.com, ports: [80]}\n")
    report = connected.home / "denied.json"
    done = connected.run(
        "real", "--policy", str(policy), "--json", str(report), "--", connected.python, "-c", HOST, *WORDS,
        env={"OPENSANDBOX_EGRESS_DNS_UPSTREAM": RESOLVER},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    sandboxes = answer["sandboxes"]
    assert len(sandboxes) == 4
    for sandbox in sandboxes:
        assert "error" not in sandbox, sandbox
        assert [sandbox[word] for word in WORDS] == ["connected", "no such name", "Connection refused"]
        assert sandbox["network"] == answer["host"]
        assert (sandbox["pid"] == 1) is (connected.uid != 0)
    told = json.loads(report.read_text())
    assert [entry["name"] for entry in told["deniedNames"]] == ["other.example.com"]
    assert zone.queries("other.example.com") == []
