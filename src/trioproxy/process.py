"""What a process of its own sets once, before the first request.

Lives here: the limit of open files and the allocator's threshold. Does not live here: anything that a library may not
decide for its host.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Final

_M_MMAP_THRESHOLD: Final = -3
_MMAP_THRESHOLD: Final = 32768
"""Bytes. With 131,072, blocks of 64 KiB (pieces of bodies on their way) fragmented the heap: 512 KiB prompts cost 34 to
138 kB a stream, with this 22, and 99 % of a burst came back instead of 76 to 97 (bench.memory)."""
FILES_PER_STREAM: Final = 3
"""The client's socket, the upstream's, and the epoll object that watches a client that is not read from."""
_FILES_RESERVED: Final = 64


def fix_mmap_threshold() -> bool:
    """Keep large blocks out of the heap for good, so that a released body's memory goes back to the system.

    glibc raises the threshold when a large block is freed: after one body of 16 MiB, none of 200 × 512 KiB came back.
    Returns whether the C library has the setting.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD))


def raise_file_limit() -> int | None:
    """Raise the limit of open files to the hard limit; returns it, or None where there is no such limit."""
    if sys.platform == "win32":
        return None
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (ValueError, OSError):  # macOS refuses an infinite one
            pass
    return None if soft == resource.RLIM_INFINITY else soft


def streams_for(files: int) -> int:
    """How many streams at a time a limit of open files allows."""
    return max(0, (files - _FILES_RESERVED) // FILES_PER_STREAM)
