"""Numbers of things in messages."""


def counted(count: int, noun: str) -> str:
    """Return `1 member` or `1,000 members`, for a noun whose plural ends with s."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
