"""What the lab can fail with."""

from __future__ import annotations


class LabError(Exception):
    """Something in the lab did not do what it must; the message says what, and quotes the program that said no."""


class Lacking(LabError):
    """This machine cannot run the lab; the message says what it lacks."""
