"""What the C library does with memory that a process no longer needs."""

import contextlib
import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
_KEPT, _FROM_THE_HEAP = 2**29, 2**25  # bytes; the second is the most that glibc takes


def keep_freed_memory() -> None:
    """Have glibc keep freed memory for the next update; elsewhere nothing happens.

    Updates allocate and free the same megabytes each time. Given back to the system, they come again page by page,
    zeroed, which took up to half of the time of an update of FQF.
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):  # no C library by this name, or another one
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_TRIM_THRESHOLD, _KEPT)
        mallopt(_M_MMAP_THRESHOLD, _FROM_THE_HEAP)
