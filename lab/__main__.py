"""`python -m lab`: say what this machine lacks for the tests that need the real kernel; never a failure."""

from lab.lacking import lacking

if lacking():
    print(f"tests: {lacking()}; everything that needs the real kernel is left out (as root it runs)", flush=True)
