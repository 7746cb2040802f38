"""From the command line to a master that has its ports: what can be wrong is told before anything is forked.

settings ─▶ what lies in files ─▶ (predecessor's sockets) ─▶ bound ─▶ master.py
"""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

from ingress.process import handover
from ingress.process.listeners import Listeners, StartError, open_port
from ingress.process.master import SIGNALS, Master
from ingress.process.system import cores, raise_file_limit
from ingress.settings.config import Config, ConfigError, fit, from_args

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping, Sequence

EXIT_CONFIG = 2


def serve(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run the gateway until SIGTERM. Returns the exit code."""
    # Until their handlers stand they wait: process 1 of a container would not hear them, any other would just die.
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    taken: handover.Claim | None = None
    try:
        config = fit(from_args(argv, environ), raise_file_limit())
        from ingress.process.prepare import prepare

        plan = prepare(config)
        count = config.workers or cores()
        if config.handover:
            taken = handover.claim(config.handover)
        offer = handover.Offer(config.handover) if config.handover else None
        handed = taken.handed if taken else handover.Handed([], [], {})
        listeners = _bind(config, count, handed)
    except (ConfigError, StartError) as error:
        if taken is not None:
            taken.abandon()
        print(f"ingress: {error}", file=sys.stderr, flush=True)
        return EXIT_CONFIG
    from ingress.app import work
    from ingress.process.prepare import shared, to_hand

    memory = shared(plan, count, handed.memory)
    master = Master(config, listeners, count, offer, taken, to_hand(memory))
    return master.run(lambda seat: work(plan, seat, memory), plan.log)


def _bind(config: Config, count: int, handed: handover.Handed) -> Listeners:
    main = open_port(config.host, config.port, count, "port", handed.main)
    try:
        admin: list[socket.socket] = []
        if config.admin_port is not None:
            admin = open_port(config.admin_host, config.admin_port, 1, "admin-port", handed.admin)[:1]
    except StartError:
        for sock in main:
            sock.close()
        raise
    return Listeners(main, admin)
