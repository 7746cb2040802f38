"""A soak: the running sidecar in the lab, lived with at random, and held against a plain reading of its policy.

    python -m soak --minutes 20            or  make soak MINUTES=20
    python -m soak --seed 7 --steps 60         the same steps again

`world` says what there is (names, addresses, policies), `model` what may pass, `flows` holds connections open, `play`
does the steps and compares after each. docs/fuzzing.md.
"""
