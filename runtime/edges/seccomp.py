"""A filter of system calls that closes what Landlock's rule on TCP ports leaves open; no privilege is needed, none lifts it.

The rule looks at `connect` of plain TCP. A socket of Multipath TCP and a first packet that carries data (Fast Open)
connect without being asked. They are answered as by a kernel that has neither, so programs fall back to what is asked.
So are all calls by the tables of other word sizes, whose numbers are others: 32-bit programs do not run.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct

_ARCHITECTURES = {  # AUDIT_ARCH_*, and the numbers of socket, sendto, sendmsg and sendmmsg
    "x86_64": (0xC000003E, 41, 44, 46, 307),
    "aarch64": (0xC00000B7, 198, 206, 211, 269),
}
_IO_URING_SETUP = 425  # on both; it makes and sends by sockets where no filter sees it
_X32 = 0x4000_0000  # and above: x86-64 with 32-bit pointers, by numbers of its own
_MPTCP = 262
_FAST_OPEN = 0x2000_0000

_PR_SET_SECCOMP, _MODE_FILTER = 22, 2
_LOAD, _IF_EQUAL, _IF_AT_LEAST, _IF_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # of 32 bits
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # offsets in what the filter is shown; little-endian both
_ALLOW, _ERRNO = 0x7FFF_0000, 0x0005_0000

Instruction = tuple[int, int, int, int]  # its code, how many it skips if true, if false, and its operand


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))


def is_known() -> bool:
    """Whether the numbers of this machine's system calls are known here."""
    return platform.machine() in _ARCHITECTURES


def refuse_other_ways() -> None:
    """Refuse Multipath TCP, Fast Open, io_uring and 32-bit calls from now on, in this thread and all that it starts.

    The thread must have given up new privileges. Nothing happens where the kernel has no filters.
    """
    if not is_known():
        return
    code = b"".join(struct.pack("<HBBI", *each) for each in _filter(*_ARCHITECTURES[platform.machine()]))
    program = _Program(len(code) // 8, code)
    ctypes.CDLL(None).prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(program), 0, 0)


def _filter(architecture: int, socket: int, sendto: int, sendmsg: int, sendmmsg: int) -> list[Instruction]:
    return [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_IF_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _ERRNO | errno.ENOSYS),
        (_LOAD, 0, 0, _NUMBER),
        (_IF_AT_LEAST, 0, 1, _X32),
        (_RETURN, 0, 0, _ERRNO | errno.ENOSYS),
        *_refuse_if(socket, 2, _IF_EQUAL, _MPTCP, errno.EPROTONOSUPPORT),
        *_refuse_if(sendto, 3, _IF_ANY_BIT, _FAST_OPEN, errno.EOPNOTSUPP),
        *_refuse_if(sendmsg, 2, _IF_ANY_BIT, _FAST_OPEN, errno.EOPNOTSUPP),
        *_refuse_if(sendmmsg, 3, _IF_ANY_BIT, _FAST_OPEN, errno.EOPNOTSUPP),
        (_LOAD, 0, 0, _NUMBER),
        (_IF_EQUAL, 0, 1, _IO_URING_SETUP),
        (_RETURN, 0, 0, _ERRNO | errno.ENOSYS),
        (_RETURN, 0, 0, _ALLOW),
    ]


def _refuse_if(number: int, argument: int, test: int, operand: int, error: int) -> list[Instruction]:
    """Refuse a system call whose argument passes a test; go on with any other."""
    return [
        (_LOAD, 0, 0, _NUMBER),
        (_IF_EQUAL, 0, 3, number),
        (_LOAD, 0, 0, _ARGUMENTS + 8 * argument),
        (test, 0, 1, operand),
        (_RETURN, 0, 0, _ERRNO | error),
    ]
