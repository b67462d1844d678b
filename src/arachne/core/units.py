"""Figures and names as people read them."""

from collections.abc import Sequence


def seconds_text(seconds: float) -> str:
    """A duration as people say it: `850 us`, `12.3 ms`, `1.50 s`, `2 min 05 s`, `3 h 07 min`."""
    if seconds < 0.0:
        return f"-{seconds_text(-seconds)}"
    if round(seconds * 1e6) < 1000:
        return f"{seconds * 1e6:.0f} us"
    if _three_digits(seconds * 1e3) < 1000.0:
        return f"{seconds * 1e3:.3g} ms"
    if round(seconds, 2) < 60.0:
        return f"{seconds:.2f} s"
    minutes, rest_s = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest_s:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


def bytes_text(num_bytes: float) -> str:
    """A size in decimal units, at most three digits: `512 B`, `1.5 MB`, `26.2 GB`, `80 GB`."""
    size = float(num_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if abs(_three_digits(size)) < 1000.0:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.3g} {unit}"
        size /= 1000.0
    size = _three_digits(size)
    return f"{size:.3g} TB" if abs(size) < 1000.0 else f"{size:,.0f} TB"


def _three_digits(value: float) -> float:
    """Rounded as it will be printed, so that 999.6 takes the next unit instead of `1e+03`."""
    return float(f"{value:.3g}")


def percent_text(share: float, digits: int = 0) -> str:
    """A share of 1 in per cent, with so many decimals: `12 %`."""
    return f"{100.0 * share:.{digits}f} %"


def step_text(index: int) -> str:
    """How messages name the step with an index, counted from 1 as the progress lines do."""
    return f"step {index + 1}"


def count_text(count: int, noun: str) -> str:
    """A count with its noun: `1 clip`, `8 clips`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def number_text(number: float) -> str:
    """A number in a message that compares it with another: all of its digits, `1` or `19570.31`."""
    short = f"{number:g}"
    return short if float(short) == number else repr(float(number)).removesuffix(".0")


def names_text(names: Sequence[str], most: int = 3) -> str:
    """Names for a message, of many the first: `a, b, c and 5 more`, or `nothing`."""
    shown = ", ".join(names[:most]) or "nothing"
    more = len(names) - most
    return f"{shown} and {more} more" if more > 0 else shown
