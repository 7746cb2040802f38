"""`NamedTuple` for everything that a start imports: what `typing` has, in a tenth of its time.

The sidecar makes some fifty of these classes before its first answer. `typing` is 3 ms to import, and each class that
its NamedTuple makes compiles a constructor: together a tenth of the time that the start has. Type checkers see
typing's own (docs/decisions/0001-the-sidecars-own-reactor.md).
"""

from __future__ import annotations

__all__ = ["TYPE_CHECKING", "NamedTuple"]

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import NamedTuple, Self
else:
    from _collections import _tuplegetter

    _new = tuple.__new__

    class _Maker(type):
        """Turns annotations into fields, as `typing.NamedTuple` does."""

        def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, object]) -> type:
            fields = tuple(body.get("__annotations__", ()))
            body["__slots__"] = ()
            if not fields:
                return type.__new__(cls, name, bases, body)
            body["_field_defaults"] = {field: body[field] for field in fields if field in body}
            for place, field in enumerate(fields):
                body[field] = _tuplegetter(place, None)
            body["_fields"] = body["__match_args__"] = fields
            return type.__new__(cls, name, bases, body)

    class NamedTuple(tuple, metaclass=_Maker):
        """A tuple whose items have names; see `typing.NamedTuple`."""

        __slots__ = ()

        def __new__(cls, *values: object, **named: object) -> Self:
            fields = cls._fields
            if named or len(values) != len(fields):
                values = _complete(cls, values, named)
            return _new(cls, values)

        _make = classmethod(_new)  # of a sequence as long as the fields: a third of what a call of the class takes

        def _replace(self, **named: object) -> Self:
            fields = self._fields
            if not named.keys() <= set(fields):
                raise ValueError(f"{type(self).__name__} has no {', '.join(sorted(named.keys() - set(fields)))}")
            return _new(type(self), [named.get(field, old) for field, old in zip(fields, self, strict=True)])

        def _asdict(self) -> dict[str, object]:
            return dict(zip(self._fields, self, strict=True))

        def __getnewargs__(self) -> tuple[object, ...]:
            return tuple(self)

        def __repr__(self) -> str:
            named = ", ".join([f"{field}={value!r}" for field, value in zip(self._fields, self, strict=True)])
            return f"{type(self).__name__}({named})"

    def _complete(cls: type, values: tuple[object, ...], named: dict[str, object]) -> list[object]:
        fields, defaults = cls._fields, cls._field_defaults
        if len(values) > len(fields):
            raise TypeError(f"{cls.__name__} takes {len(fields)} values, not {len(values)}")
        rest = [*values]
        for field in fields[len(values) :]:
            if field in named:
                rest.append(named.pop(field))
            elif field in defaults:
                rest.append(defaults[field])
            else:
                raise TypeError(f"{cls.__name__} needs {field}")
        if named:
            raise TypeError(f"{cls.__name__} does not take {', '.join(named)}, or takes it once only")
        return rest
