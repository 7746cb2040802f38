"""Everything around a command that `egress run` guards: its namespaces, its view of the files, and the way out.

Who is who. All of it lives and dies with the first process, which stays on the host, in the user's terminal:

    egress run ....... waits, relays signals and the exit status, tells at the end what was refused
    |- keeper ........ first process of a PID namespace of its own; the host's network and files
    |  |- guard ...... the firewall and DNS; works in the sandbox's network, asks resolvers from the host's
    |  '- pasta ...... carries packets between the two networks
    '- init .......... first process of the sandbox: its PID, mount, network, IPC and UTS namespaces
       '- command .... no capability, no new privileges, nothing that leads out of its namespaces

Killing the first process kills both PID namespaces, and with them everything: there is nothing to clean up.

Modules: `session` is the first process, `keeper` and `child` the other two, `guard` the seat the guard takes. `mounts`,
`privileges`, `seccomp`, `environment` shape what the command sees; `connectivity` starts the user-mode network,
`terminal` shares the terminal, `report` makes the last words. `syscalls` is the one door to what Python lacks.
"""
