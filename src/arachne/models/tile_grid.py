"""Where an autoencoder cuts frames into tiles; no torch."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TileGrid:
    """Overlapping tiles of a frame, row by row; those at its right and lower edge may be smaller.

    All in pixels of the frame.

    Attributes:
        height, width: Of the frame.
        tile_height, tile_width: Of a whole tile.
        stride_height, stride_width: From one tile's start to the next one's.
    """

    height: int
    width: int
    tile_height: int
    tile_width: int
    stride_height: int
    stride_width: int

    @property
    def tops(self) -> Sequence[int]:
        """First row of pixels of each row of tiles."""
        return range(0, self.height, self.stride_height)

    @property
    def lefts(self) -> Sequence[int]:
        """First column of pixels of each column of tiles."""
        return range(0, self.width, self.stride_width)

    @property
    def num_tiles(self) -> int:
        """Tiles of the frame."""
        return len(self.tops) * len(self.lefts)

    def box(self, index: int) -> tuple[slice, slice]:
        """Rows and columns of pixels of a tile."""
        row, column = divmod(index, len(self.lefts))
        top, left = self.tops[row], self.lefts[column]
        bottom, right = top + self.tile_height, left + self.tile_width
        return slice(top, min(bottom, self.height)), slice(left, min(right, self.width))
