"""Which text tokens are words and which are padding, for transformers that ask for it.

Shape suffixes:
  B batch   L text tokens   D text width
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def word_mask(text_BLD: Tensor) -> Tensor:
    """True [B, L] up to a caption's last state that is not zero, and at least once.

    Encoders pad with zeros; some classes divide by the number of words.
    """
    is_word_BL = text_BLD.ne(0).any(dim=2)
    mask_BL = is_word_BL.flip(1).cumsum(dim=1).flip(1) > 0
    mask_BL[:, 0] = True
    return mask_BL
