"""Where the ending of a token sequence stood before. See `reference.suffix_match` for what is computed."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from duologue.kernels import _native


def longest_suffix_match(tokens: npt.NDArray[np.int32], most: int) -> tuple[int, int]:
    """(end, length): what follows `tokens[end - length : end]`, an earlier copy of the last `length` tokens, begins at `end`.

    The longest of up to `most` tokens, of equal ones the latest; (0, 0) when not even two tokens recur. `tokens` [n], contiguous.
    Reads the sequence once from its end: 4 bytes per position, where the attention of the step that follows reads hundreds.
    """
    return _native.longest_suffix_match(tokens, most)
