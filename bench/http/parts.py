"""The parts of `make bench-http`: small answers, large bodies, WebSockets, memory; each with its section and goals."""

from __future__ import annotations

import statistics
import subprocess
import time
from typing import TYPE_CHECKING

from bench.http import bodies, load, websocket
from bench.http.run import OURS, carried, faster, roomier, row_of, slower
from bench.report import Goal, middle, number, table

if TYPE_CHECKING:
    from bench.http.contender import Contender
    from bench.http.run import Row, Run

VARIED = 32  # connections whose every request differs
WARM_TUNNELS = 100  # open before those that are counted
AT_LEAST = {"nginx": 0.65, "caddy": 3.0, "traefik": 3.0, "chp": 3.0, "aiohttp": 6.0, "fastapi": 50.0}


# -- small answers -------------------------------------------------------------------------------------------------
def requests(run: Run) -> None:
    load.write_scripts(run.place)
    rows = run.started(lambda contender: contender.requests)
    size = run.size
    wrk = run.peers.program("wrk") is not None
    if not wrk:
        run.leave_out("more than one connection", f"wrk is {run.peers.why.get('wrk', 'missing')}")

    for row in rows:
        if row.contender.compiles and wrk:
            run.say(f"{row.name} warms up")
            load.burst(row.contender, VARIED, 2 * size.wrk)

    def measure(row: Row) -> str:
        contender = row.contender
        row.spreads.setdefault("1", []).append(load.single(contender, size.short, size.most))
        if not wrk:
            return f"{row.p50s('1')[-1]:,.0f} µs"
        for connections in size.connections:
            contender.settle()
            found = load.burst(contender, connections, size.wrk)
            row.bursts.setdefault(str(connections), []).append(found)
        contender.settle()
        row.bursts.setdefault("varied", []).append(load.burst(contender, VARIED, size.wrk, varied=True))
        return ", ".join(f"{cell}: {row.rates(cell)[-1]:,.0f}/s" for cell in row.bursts)

    run.rounds("small answers", rows, measure, 0.5)
    ours = row_of(rows, OURS)
    parts = ["Answers of 1 KiB, connections kept alive.", "One connection, one request after the other:"]
    lines = []
    for row in rows:
        ratio = "" if ours is None or row is ours else "x" + slower(ours, row, "1")[1].removesuffix("x")
        lines.append([row.name, middle(row.p50s("1")), middle(row.p99s("1")), ratio])
    parts.append(table(("", "p50 µs", "p99 µs", "sallyport's p50 is"), lines))
    if wrk:
        for connections in size.connections:
            parts += [f"{connections} connections, the same request again and again:", bursts(rows, str(connections))]
        parts += [f"{VARIED} connections, path and one header different in every request:", bursts(rows, "varied")]
    run.section("Small answers", *parts)
    if ours is not None:
        requests_goals(run, rows, ours)


def bursts(rows: list[Row], cell: str) -> str:
    """One table of a cell measured with many connections."""
    ours = row_of(rows, OURS)
    lines = []
    for row in rows:
        core, cpu = used(row, cell)
        latency = [middle((value / 1000 for value in values), 2) for values in (row.p50s(cell), row.p99s(cell))]
        lines.append(
            [row.name, middle(row.rates(cell)), faster(ours, row, cell), cpu,
             roomier(ours, row, cell), core, *latency]
        )  # fmt: skip
    bad = [f"{row.name} ({sum(burst.bad for burst in row.bursts[cell])})" for row in rows
           if any(burst.bad for burst in row.bursts[cell])]  # fmt: skip
    note = f"\n\nNot all answered well: {', '.join(bad)}." if bad else ""
    head = ("", "each second", "sallyport is", "CPU µs each", "sallyport has", "core used", "p50 ms", "p99 ms")
    return table(head, lines) + note


def used(row: Row, cell: str, unit: float = 1) -> tuple[str, str]:
    """The share of its core, and the processor time for each in `unit` µs; nothing where nobody is in between."""
    if not any(row.cpus(cell)):
        return "", ""
    share = statistics.median(burst.busy for burst in row.bursts[cell])
    return f"{share:.0%}", middle((cpu / unit for cpu in row.cpus(cell)), 1)


def requests_goals(run: Run, rows: list[Row], ours: Row) -> None:
    for key, least in AT_LEAST.items():
        other = row_of(rows, key)
        if other is None:
            continue
        for cell in other.bursts:
            if cell != "varied" or key == "nginx":
                value, text = carried(ours, other, cell)
                load_ = f"{VARIED} connections, all requests different" if cell == "varied" else f"{cell} connections"
                what = f"requests/s, {load_}, against {other.name}"
                run.goals.append(Goal(what, f"≥ {least:g}x", text, value >= least))
    nginx = row_of(rows, "nginx")
    if nginx is not None:
        value, text = slower(ours, nginx, "1")
        run.goals.append(Goal("one connection, p50, against nginx", "≤ 1.1x", text, value <= 1.1))


# -- large bodies --------------------------------------------------------------------------------------------------
def large(run: Run) -> None:
    rows = run.started(lambda contender: contender.bodies)
    connections = bodies.CONNECTIONS

    def measure(row: Row) -> str:
        if not row.bursts:
            bodies.check(row.contender)
        for cell, carry in (("down", bodies.down), ("up", bodies.up)):
            row.bursts.setdefault(cell, []).append(carry(row.contender, run.size.short, connections))
        return ", ".join(f"{cell} {row.rates(cell)[-1] / 1e9:.2f} GB/s" for cell in row.bursts)

    run.rounds("bodies", rows, measure, 0.6)
    ours = row_of(rows, OURS)
    parts = [f"Bodies of 10 MiB, {connections} connections at once."]
    for cell, title in (("down", "Downloads"), ("up", "Uploads")):
        lines = [
            [row.name, middle((rate / 1e9 for rate in row.rates(cell)), 2), faster(ours, row, cell),
             used(row, cell, 1000)[1], roomier(ours, row, cell), used(row, cell)[0]]
            for row in rows
        ]  # fmt: skip
        head = ("", "GB/s", "sallyport is", "CPU ms a body", "sallyport has", "core used")
        parts += [f"{title}:", table(head, lines)]
    run.section("Large bodies", *parts)
    big = row_of(rows, "nginx-big")
    if ours is not None and big is not None:
        for cell, title in (("down", "downloads"), ("up", "uploads")):
            value, text = carried(ours, big, cell)
            run.goals.append(Goal(f"10 MiB {title}, against {big.name}", "≥ 0.9x", text, value >= 0.9))
    for row in rows:
        if not row.contender.requests:
            row.contender.stop()


# -- WebSockets ----------------------------------------------------------------------------------------------------
def tunnels(run: Run) -> None:
    rows = run.started(lambda contender: contender.websockets)
    size = run.size

    for row in rows:
        if row.contender.compiles:
            run.say(f"{row.name} warms up")
            websocket.many(row.contender, size.messages, 5 * size.short, size.most)

    def measure(row: Row) -> str:
        row.spreads.setdefault("1", []).append(websocket.single(row.contender, size.short, size.most))
        row.bursts.setdefault("many", []).append(websocket.many(row.contender, size.messages, size.short, size.most))
        return f"{row.p50s('1')[-1]:,.0f} µs, {row.rates('many')[-1]:,.0f}/s"

    run.rounds("WebSockets", rows, measure, 0.8, size.echoes)
    ours = row_of(rows, OURS)
    lines = []
    for row in rows:
        ratio = "" if ours is None or row is ours else "x" + slower(ours, row, "1")[1].removesuffix("x")
        lines.append([row.name, middle(row.p50s("1")), middle(row.p99s("1")), ratio])
    run.section(
        "WebSocket echo",
        f"Messages of {len(websocket.TEXT)} octets, masked, there and back. One tunnel, one message after the other:",
        table(("", "p50 µs", "p99 µs", "sallyport's p50 is"), lines),
        f"{size.messages} tunnels, each with one message under way:",
        bursts(rows, "many"),
    )
    if ours is None:
        return
    nginx, node = row_of(rows, "nginx"), row_of(rows, "chp")
    if nginx is not None:
        value, text = slower(ours, nginx, "1")
        run.goals.append(Goal("WebSocket echo, p50, against nginx", "≤ 1.1x", text, value <= 1.1))
    if node is not None:
        value, text = carried(ours, node, "many")
        remark = ""
        if nginx is not None:
            remark = f"Most of a message is the kernel's work; nginx has {carried(nginx, node, 'many')[1]}."
        run.goals.append(Goal(f"WebSocket messages/s, against {node.name}", "≥ 2x", text, value >= 2, remark))


# -- memory --------------------------------------------------------------------------------------------------------
class Weight:
    """MB of one contender, each from a fresh life; kB a tunnel."""

    def __init__(self, contender: Contender) -> None:
        self.contender = contender
        self.idle = self.loaded = self.loaded_alone = self.tunnel = 0.0


def memory(run: Run) -> None:
    """One contender at a time is running, so that two of one kind don't share what they load."""
    load.write_scripts(run.place)
    run.stop()
    connections = max(run.size.connections)
    found = []
    for contender in [one for one in run.contenders if one.memory]:
        if run.over:
            run.leave_out(f"{contender.name} (memory)", "time was up")
            continue
        if not run.start(contender):
            continue
        weight = Weight(contender)
        try:
            weigh(run, weight, connections)
        except (OSError, RuntimeError) as error:
            run.leave_out(f"{contender.name} (memory)", str(error))
            continue
        finally:
            contender.stop()
        found.append(weight)
        run.say(
            f"memory: {contender.name}: {weight.idle:.1f} MB, under load {weight.loaded:.1f}, "
            f"{weight.tunnel:.1f} kB a tunnel"
        )
    rows = [
        (
            weight.contender.name,
            number(weight.idle, 1),
            number(weight.loaded, 1) if weight.loaded else "",
            number(weight.loaded_alone, 1) if weight.loaded else "",
            number(weight.tunnel, 1) if weight.contender.websockets else "",
        )
        for weight in found
    ]
    run.section(
        "Memory",
        f"PSS in MB, all processes of a contender, after its first answers and while {connections} connections keep "
        "asking. *Alone*: the same with pages counted in full that it shares with others here (PSS divides the "
        "interpreter's by all who run it, this benchmark among them). *kB a tunnel*: growth of PSS by "
        f"{run.size.tunnels:,} WebSockets that carried one message and then do nothing, {WARM_TUNNELS} others open "
        "before. What the kernel keeps for a socket is in none of them.",
        table(("", "idle", "under load", "under load, alone", "kB a tunnel"), rows),
    )
    ours = next((weight for weight in found if weight.contender.key == OURS), None)
    node = next((weight for weight in found if weight.contender.key == "chp"), None)
    if ours is None:
        return
    run.goals.append(Goal("an idle tunnel", "≤ 6 kB", f"{ours.tunnel:.1f} kB", ours.tunnel <= 6))
    if node is not None and ours.loaded and node.loaded:
        share = ours.loaded / node.loaded
        text = (
            f"{share:.2f}x ({ours.loaded:.1f} of {node.loaded:.1f} MB; "
            f"alone {ours.loaded_alone:.1f} of {node.loaded_alone:.1f} MB)"
        )
        run.goals.append(Goal(f"PSS under load, against {node.contender.name}", "≤ 0.25x", text, share <= 0.25))


def weigh(run: Run, weight: Weight, connections: int) -> None:
    contender = weight.contender
    contender.settle()
    weight.idle = contender.running.pss()
    if contender.websockets:
        with_warm = websocket.idle(contender, WARM_TUNNELS)
        more = []
        try:
            contender.settle()
            before = contender.running.pss()
            more = websocket.idle(contender, run.size.tunnels)
            contender.settle()
            weight.tunnel = (contender.running.pss() - before) * 1024 / run.size.tunnels
        finally:
            for sock in (*with_warm, *more):
                sock.close()
        contender.start()
    if run.peers.program("wrk") is None:
        return
    seconds = run.size.loaded
    argv = load.wrk_argv(contender, connections, seconds)
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as wrk:
        try:
            for _ in range(4):  # heaps that are collected go up and down: the most of four looks
                time.sleep(seconds * 0.2)
                weight.loaded = max(weight.loaded, contender.running.pss())
                weight.loaded_alone = max(weight.loaded_alone, contender.running.alone())
        finally:
            if wrk.wait(seconds + 30):
                raise RuntimeError("wrk failed")


PARTS = {"requests": requests, "bodies": large, "websocket": tunnels, "memory": memory}
