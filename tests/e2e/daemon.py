"""The Docker daemon of these tests, with images that others have built."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lab.dockerd import Dockerd
from lab.network import Lab

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from lab import Internet


class Daemon(Dockerd):
    """A daemon in a lab of its own that has these images. A context manager."""

    def __init__(self, internet: Internet, images: Sequence[str]) -> None:
        super().__init__(Lab(internet))
        self._images = images

    def __enter__(self) -> Self:
        super().__enter__()
        try:
            self.fetch(self._images)
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        try:
            super().close()
        finally:
            self.lab.close()
