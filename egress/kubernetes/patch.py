"""What changed between two documents, as a JSON Patch (RFC 6902)."""

from __future__ import annotations

from typing import Any


def difference(old: Any, new: Any, path: str = "") -> list[dict[str, Any]]:
    """The operations that make `new` of `old`, both JSON values; none where they are the same.

    Lists of one length are compared item by item, others are replaced whole: nothing here moves.
    """
    if isinstance(old, dict) and isinstance(new, dict):
        found = [{"op": "remove", "path": f"{path}/{_escape(key)}"} for key in old if key not in new]
        for key, value in new.items():
            place = f"{path}/{_escape(key)}"
            if key in old:
                found += difference(old[key], value, place)
            else:
                found.append({"op": "add", "path": place, "value": value})
        return found
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [
            operation
            for index, (before, after) in enumerate(zip(old, new, strict=True))
            for operation in difference(before, after, f"{path}/{index}")
        ]
    if type(old) is type(new) and old == new:
        return []
    return [{"op": "replace", "path": path, "value": new}]


def _escape(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")  # RFC 6901, section 3
