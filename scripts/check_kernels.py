"""Check the kernels of every instruction set of this CPU against the numpy reference, and print one line."""

from __future__ import annotations

import sys

from duologue.kernels import isa_name
from duologue.kernels.self_check import runnable_isas, wrong_kernels


def main() -> int:
    """0 when all agree."""
    wrong = {isa: kernels for isa in runnable_isas() if (kernels := wrong_kernels(isa))}
    if wrong:
        print(f"kernels that differ from their references: {wrong}")
        return 1
    print(f"kernels agree with their references: {', '.join(runnable_isas())}; chosen here: {isa_name()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
