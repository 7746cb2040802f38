"""The policy language: parse, normalise, compile, decide. Pure: no I/O, no clock."""
