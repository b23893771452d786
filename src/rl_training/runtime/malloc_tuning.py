"""Tune what the C library does with freed memory."""

import contextlib
import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # from glibc's malloc.h
_TRIM_BYTES, _MMAP_BYTES = 2**29, 2**25  # the second is the largest value that glibc accepts


def keep_freed_memory() -> None:
    """Configure glibc to keep freed memory for the next update; with another C library nothing happens.

    Updates allocate and free the same megabytes each time. If they were returned to the system, they would come back
    page by page, zeroed, which took up to half of the time of an update of FQF.
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):  # not glibc
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)
        mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
