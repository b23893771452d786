"""Text of others on a terminal: names and settings of runs may hold characters that control it."""


def printable(text: str) -> str:
    """Return one line in which characters that do not print, such as those that control a terminal, are escaped."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def printable_lines(text: str) -> str:
    """Do the same for a text of several lines."""
    return "\n".join(map(printable, text.split("\n")))
