"""The guard in Kubernetes: a pod in, the same pod with the sidecar out, or the reasons why that would guard nothing.

    document ─▶ places: where the pods are ─▶ refusals: what would defeat the guard ─▶ inject: sidecar, volume, drops
                                                                  ▲
    AdmissionReview ─▶ review ───────────────────────────────────┘ ─▶ patch: what changed, as a JSON Patch

All of it is pure but `server` and `certificate`, which are the webhook's way to the network.
"""
