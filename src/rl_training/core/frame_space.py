"""The space of stacked frames: an image whose channels are the last few frames, oldest first."""

import numpy as np
from gymnasium import spaces


class FrameStackSpace(spaces.Box):
    """A uint8 image that stacks `num_frames` frames.

    `shape`: (num_frames * layers of one frame, height, width). A replay buffer that recognises this space stores each
    frame once.
    """

    def __init__(self, num_frames: int, shape: tuple[int, int, int], *, high: int = 255) -> None:
        if num_frames < 1 or len(shape) != 3 or shape[0] % num_frames:
            raise ValueError(f"a stack of {num_frames} frames needs a multiple of {num_frames} layers, got {shape}")
        super().__init__(0, high, shape, np.uint8)
        self.num_frames = num_frames

    @property
    def frame_shape(self) -> tuple[int, int, int]:
        """Layers, height and width of one frame."""
        layers, height, width = self.shape
        return layers // self.num_frames, height, width

    def __repr__(self) -> str:
        return f"FrameStackSpace({self.num_frames}, {self.shape}, high={self.high.flat[0]})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FrameStackSpace) and self.num_frames == other.num_frames and super().__eq__(other)
