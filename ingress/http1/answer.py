"""An answer's head that was seen before, or one like it. Pure.

An application answers the same kind of request with the same kind of head: another date, length or tag, and that is
all. What has to be decided about such a head was decided at the first of them.
"""

from __future__ import annotations

from ingress.http1.head import Fields, ResponseHead, content_length
from ingress.http1.headers import ANSWER_FIXED, Recipe, answer_dropped

_BODYLESS = (204, 304)


class Answer:
    """A whole head from a sandbox, and what became of it for a client that keeps its HTTP/1.1 connection.

    raw: as it came, to the empty line. out: as it goes. length: of the body, in octets, or CHUNKED. keep: the sandbox's
    connection can be used again.
    """

    __slots__ = ("_fields", "_line", "_recipe", "keep", "length", "out", "raw", "status")

    def __init__(
        self, raw: bytes, out: bytes, status: int, length: int, keep: bool, line: bytes, fields: Fields, recipe: Recipe
    ) -> None:
        self.raw = raw
        self.out = out
        self.status = status
        self.length = length
        self.keep = keep
        self._line = line
        self._fields = fields
        self._recipe = recipe

    @classmethod
    def remember(cls, raw: bytes, out: bytes, head: ResponseHead, length: int, keep: bool) -> Answer:
        """Of a head that was read and rendered. It must hold none of the fields that path mode rewrites."""
        start, end = out.find(b"\r\n"), b"Transfer-Encoding: chunked\r\n\r\n" if length < 0 else b"\r\n"
        recipe = Recipe(head.fields, answer_dropped(head), [out[:start]], end)
        return cls(raw, out, head.status, length, keep, raw[: raw.find(b"\r\n")], head.fields, recipe)

    def similar(self, raw: bytes) -> Answer | None:
        """The same for the next head; None where that has to be read as a whole."""
        line_end = raw.find(b"\r\n")
        if raw[:line_end] != self._line:
            return None
        fields = self._fields.followed_by(raw[line_end + 2 : -4].split(b"\r\n"), ANSWER_FIXED)
        if fields is None:
            return None
        length = self.length
        if length >= 0 and self.status not in _BODYLESS:
            length = content_length(fields)
        recipe = self._recipe
        return Answer(raw, recipe.apply(fields), self.status, length, self.keep, self._line, fields, recipe)
