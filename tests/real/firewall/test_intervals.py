"""Maps filled by messages of our own hold what the ruleset's text would have put there, and nft reads them alike."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from egress.firewall import FirewallError, loader
from egress.firewall.intervals import CHUNK
from policies.ports import EVERYTHING, FULL, PortSet
from tests.real.firewall.conftest import part

if TYPE_CHECKING:
    from policies.address_plan import AddressRange
    from tests.real.firewall.conftest import Guarded

WEB = PortSet(((443, 443),), (), False)
PLANS = {
    "neighbours": (
        part("10.0.0.0/24", deny=FULL),
        part("10.0.1.0/24", allow=WEB),
        part("10.0.2.0/24", deny=WEB),
        part("10.0.4.0/30", allow=EVERYTHING),
        part("2001:db8:1::/48", deny=FULL),
        part("2001:db8:2::/48", allow=EVERYTHING),
    ),
    "the first and the last": (
        part("0.0.0.0/8", deny=FULL),
        part("255.0.0.0/8", deny=FULL),
        part("::/8", deny=FULL),
        part("ff00::/8", deny=FULL),
    ),
    "everything": (part("0.0.0.0/0", deny=FULL), part("::/0", deny=FULL)),
    "many": tuple(
        part(f"10.{n >> 8}.{n & 255}.0/25", **{("deny", "allow")[n % 3 == 0]: FULL}) for n in range(2 * CHUNK)
    ),
}


def maps(guarded: Guarded) -> dict[str, str]:
    """The maps as nft lists them, without the names of their load."""
    listed = guarded.lab.sandbox.run(["nft", "list", "maps"], check=True).stdout
    listed = re.sub(r"((?:deny|allow)\w*?|refuse)_[0-9a-f]{8}\b", r"\1", listed)
    found = re.findall(r"map (\w+) \{(.*?)\n\t\}", listed, re.DOTALL)
    return {name: " ".join(text.split()) for name, text in found}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_what_is_filled_in_is_what_the_text_says(
    guarded: Guarded, plan: tuple[AddressRange, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise FirewallError("not now")

    guarded.load()
    guarded.load(plan=plan)
    filled = maps(guarded)
    assert filled
    assert all("elements" in text for text in filled.values())
    with monkeypatch.context() as patched:
        patched.setattr(loader, "fill", refused)
        guarded.load(plan=plan)  # all of it at once, as text
    assert maps(guarded) == filled
