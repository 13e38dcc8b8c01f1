"""Landlock: what the Linux kernel keeps from a thread and all that it starts, for the rest of their lives.

No privilege is needed, and none lifts it. A new kernel knows more to keep; what an older one does not know it lets
pass, and `abi` says how far it goes. Processes outside also cannot be looked into by whoever is confined: their memory
and their descriptors in `/proc` are closed to it, and their environment, except to root on a whole machine.
"""

from __future__ import annotations

import ctypes
import os
import stat
import sys
from collections.abc import Iterable

import msgspec

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same numbers on every architecture we run on
_VERSION = 1  # a flag: answer with the ABI
_PATH_BENEATH, _NET_PORT = 1, 2
_PR_SET_NO_NEW_PRIVS = 38

FILES_ABI = 1
PORTS_ABI = 4  # Linux 6.7
SCOPES_ABI = 6  # Linux 6.12

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REFER, _TRUNCATE = 1 << 13, 1 << 14
_TO_MAKE_AND_REMOVE = 0b1_1111_1111 << 4
_DEVICES = (1 << 6) | (1 << 11)  # to make them, which nobody may
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE  # what means something for what is no directory
_CONNECT_TCP = 1 << 1
_ABSTRACT_SOCKETS, _SIGNALS = 1 << 0, 1 << 1

LIST = _READ_DIR
READ = _READ_FILE | _READ_DIR | _EXECUTE
WRITE = READ | _WRITE_FILE | _TRUNCATE | _REFER | (_TO_MAKE_AND_REMOVE & ~_DEVICES)
USE = _READ_FILE | _WRITE_FILE  # of a device


class Allowed(msgspec.Struct, frozen=True):
    """A path, and what may be done with it and all below it."""

    path: str
    access: int
    needed: bool = True  # it is an error when it is not there


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = (("access", ctypes.c_uint64), ("fd", ctypes.c_int32))


class _NetPort(ctypes.Structure):
    _fields_ = (("access", ctypes.c_uint64), ("port", ctypes.c_uint64))


def abi() -> int:
    """How much Landlock the kernel has; 0: none, or it is switched off."""
    if sys.platform != "linux":
        return 0
    answer: int = ctypes.CDLL(None).syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION)
    return max(answer, 0)


def restrict(files: Iterable[Allowed] | None, ports: Iterable[int] | None, *, alone: bool = False) -> None:
    """Keep everything but this from the calling thread, as far as the kernel can.

    Args:
        files: all that may be opened, made or removed; None: no bound.
        ports: all that TCP may connect to; None: no bound.
        alone: no abstract Unix socket of processes outside may be connected to.

    Raises:
        FileNotFoundError: a needed path is not there.
        OSError: the kernel refuses, though it has Landlock.
    """
    known = abi()
    if known < FILES_ABI:
        return
    handled = 0
    if files is not None:
        handled = READ | _WRITE_FILE | _TO_MAKE_AND_REMOVE
        handled |= (_REFER if known >= 2 else 0) | (_TRUNCATE if known >= 3 else 0)
    rules = _Ruleset(
        files=handled,
        net=_CONNECT_TCP if ports is not None and known >= PORTS_ABI else 0,
        scoped=(_SIGNALS | (_ABSTRACT_SOCKETS if alone else 0)) if known >= SCOPES_ABI else 0,
    )
    if not (rules.files or rules.net or rules.scoped):
        return  # this kernel knows none of what is asked for
    ruleset = _call(_CREATE_RULESET, ctypes.byref(rules), ctypes.c_size_t(ctypes.sizeof(rules)), 0)
    try:
        for each in files or ():
            _allow(ruleset, each, handled)
        for port in ports or () if rules.net else ():
            rule = _NetPort(_CONNECT_TCP, port)
            _call(_ADD_RULE, ruleset, _NET_PORT, ctypes.byref(rule), 0)
        ctypes.CDLL(None).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        _call(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _allow(ruleset: int, allowed: Allowed, handled: int) -> None:
    try:
        fd = os.open(allowed.path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        if allowed.needed:
            raise
        return
    try:
        access = allowed.access & handled
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            access &= _OF_FILES
        if access:
            rule = _PathBeneath(access, fd)
            _call(_ADD_RULE, ruleset, _PATH_BENEATH, ctypes.byref(rule), 0)
    finally:
        os.close(fd)


def _call(number: int, *words: object) -> int:
    answer: int = ctypes.CDLL(None, use_errno=True).syscall(number, *words)
    if answer < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"landlock: {os.strerror(code)}")
    return answer
