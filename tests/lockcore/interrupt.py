"""Ctrl-C at a moment of one's choice: *the k-th moment at which lockcore notices a signal →
KeyboardInterrupt*.

The interpreter looks for signals after a call, at a loop's turn and at the beginning of a function.
"""

import dis
import sys
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import lockcore

HERE = str(Path(lockcore.__file__).parent)
OPERATIONS = {"try_acquire", "try_release"}

# Python 3.12 traces instructions from the next sys.settrace on after some frame has asked for it. A
# frame that asks inside of a trace function, as below, would be the first one and come too late.
sys._getframe().f_trace_opcodes = True


@cache
def moments(code: CodeType) -> frozenset[int]:
    """The offsets of the instructions before which a signal may be noticed."""
    noticed = [
        after.offset
        for before, after in pairwise(dis.get_instructions(code))
        # belongs to the call before it, and stands outside its `try`
        if after.opname != "RETURN_VALUE"
        and (
            before.opname.startswith("CALL")
            or before.opname == "JUMP_BACKWARD"
            # their caller's, rather
            or (before.opname == "RESUME" and code.co_name not in OPERATIONS)
        )
    ]
    return frozenset(noticed)


class Interrupt:
    """Counts those moments in the files `within`, and raises at one of them; `where` says at
    which."""

    def __init__(self, at: int, *within: str) -> None:
        self.left = at
        self.where = ""
        self._within = within
        self._returned_to: FrameType | None = None

    def _is_ours(self, code: CodeType) -> bool:
        file = code.co_filename
        return file.startswith(HERE) and (not self._within or file.endswith(self._within))

    def strike(self) -> None:
        """What happens then."""
        raise KeyboardInterrupt

    def trace(self, frame: FrameType, event: str, _argument: object) -> Any:
        """For sys.settrace."""
        code = frame.f_code
        if self.where or not self._is_ours(code):
            return None
        frame.f_trace_opcodes = True
        if event == "return":
            # no look for signals behind a call of a Python function
            self._returned_to = frame.f_back
        elif event == "opcode" and frame is self._returned_to:
            self._returned_to = None
        elif event == "opcode" and frame.f_lasti in moments(code):
            self.left -= 1
            if not self.left:
                self.where = f"{Path(code.co_filename).name}:{frame.f_lineno} {code.co_name}"
                self.strike()
        return self.trace
