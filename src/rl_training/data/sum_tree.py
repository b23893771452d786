"""A sum tree: samples places with a probability proportional to their priorities, in O(log n)."""

import numpy as np

_TOP = 1024  # the widest level that is searched by its running sums: faster than the ten levels above it
_ONE = np.array(1)  # numpy takes longer to convert a Python int than to shift 256 numbers


class SumTree:
    """Priorities of `capacity` places, and the sums over groups of 2, 4, 8, ... of them.

    A sum is computed from its two parts, never by adding differences, so that no error accumulates (float64).
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        depth = 0
        while -(-capacity >> depth) > _TOP:
            depth += 1
        top_width = -(-capacity >> depth)
        # The leaves first; each level is half as wide as the one below it.
        self._levels = [np.zeros(top_width << height) for height in range(depth, -1, -1)]
        self.priorities = self._levels[0][:capacity]
        # Two neighbours as the real and imaginary part of one number: one look-up reads both.
        self._pairs = [level.view(np.complex128) for level in self._levels[:-1]]

    @staticmethod
    def num_bytes(capacity: int) -> int:
        """Return about how many bytes a tree needs: as many for all sums as for the priorities."""
        return 2 * 8 * capacity

    def set(self, places: np.ndarray, priorities: np.ndarray) -> None:
        self._levels[0][places] = priorities
        for pairs, level in zip(self._pairs, self._levels[1:], strict=True):
            places = places >> _ONE
            parts = pairs.take(places)
            level[places] = parts.real + parts.imag

    def set_range(self, first: int, end: int, priority: float) -> None:
        """Set the priority of the rows numbered `first` to `end - 1`, at most `capacity` of them.

        Row n is in place n % capacity.
        """
        if first >= end:
            return
        start = first % self.capacity
        stop = start + end - first
        if stop > self.capacity:
            self.set_range(0, stop - self.capacity, priority)
            stop = self.capacity
        self._levels[0][start:stop] = priority
        for pairs, level in zip(self._pairs, self._levels[1:], strict=True):
            start, stop = start >> 1, (stop + 1) >> 1
            parts = pairs[start:stop]
            level[start:stop] = parts.real + parts.imag

    def find_stratified_places(self, fractions: np.ndarray) -> np.ndarray:
        """Return a place for each of B fractions in [0, 1): the i-th is in the i-th of B equal slices of the total.

        A place without priority is never returned.
        """
        top = self._levels[-1]
        sums = top.cumsum()
        rest = (np.arange(len(fractions)) + fractions) * (sums[-1] / len(fractions))
        # Without the last sum, because rounding may make a target equal to the total.
        places: np.ndarray = sums[:-1].searchsorted(rest, "right")
        rest -= sums.take(places) - top.take(places)  # what remains of the target inside the group
        for level in self._levels[-2::-1]:
            places = places + places
            left = level.take(places)
            goes_right = rest >= left
            rest -= left * goes_right
            places += goes_right
        if not self._levels[0].take(places).all():
            places = self._nearest_filled(places)
        return places

    def _nearest_filled(self, places: np.ndarray) -> np.ndarray:
        """Return the last place with a priority before each of these; rounding may end in a place without one."""
        filled = np.flatnonzero(self._levels[0])
        nearest: np.ndarray = filled[np.maximum(filled.searchsorted(places, "right") - 1, 0)]
        return nearest
