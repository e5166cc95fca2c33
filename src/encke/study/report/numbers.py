"""How the page writes numbers: with units, with as many digits as mean something."""

from __future__ import annotations

import math
import re

_SIZES = (("GB", 10**9), ("MB", 10**6), ("kB", 10**3))
_UNITS = ("%", "points", "GB", "MB", "kB", "B", "K", "nats")
MINUS = "\N{MINUS SIGN}"
#: What stands where there is nothing to write.
NONE = "–"


def digits(value: float, places: int = 3) -> str:
    """About so many significant digits, never fewer than the whole number has.

    >>> digits(12.345), digits(1234.5), digits(0.00123), digits(-0.5), digits(1e-9), digits(0)
    ('12.3', '1,234', '0.00123', '−0.5', '1.00e−9', '0')
    """
    if value == 0:
        return "0"
    power = math.floor(math.log10(abs(value)))
    if power < -4 or power > 8:
        front, _, exponent = f"{value:.{places - 1}e}".partition("e")
        return f"{front}e{int(exponent):+d}".replace("-", MINUS)
    decimals = max(0, places - 1 - power)
    text = f"{value:,.{decimals}f}"
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return text.replace("-", MINUS)


def size(count: float | None) -> str:
    """
    >>> size(3_000_000), size(278_400_000), size(900), size(None)
    ('3.0 MB', '278 MB', '900 B', '–')
    """
    if count is None:
        return NONE
    for unit, factor in _SIZES:
        if count >= factor:
            value = count / factor
            return f"{value:.1f} {unit}" if value < 100 else f"{value:,.0f} {unit}"
    return f"{count:.0f} B"


def times(value: float | None) -> str:
    """A factor: two decimals below 3, where they matter, one above.

    >>> times(1.234), times(11.46), times(141.2), times(None)
    ('1.23×', '11.5×', '141×', '–')
    """
    if value is None:
        return NONE
    decimals = 2 if value < 3 else 1 if value < 100 else 0
    return f"{value:.{decimals}f}×"


def signed(value: float, places: int = 2) -> str:
    """
    >>> signed(-0.1249), signed(0.3), signed(0.001)
    ('−0.12', '+0.30', '±0.00')
    """
    text = f"{abs(value):.{places}f}"
    sign = "±" if float(text) == 0 else MINUS if value < 0 else "+"
    return sign + text


def measure(value: float | None, unit: str) -> str:
    """A metric with its unit: percentages with two decimals, anything else with four digits.

    >>> measure(72.4312, "%"), measure(1.48213, ""), measure(0.81234, "K"), measure(None, "%")
    ('72.43 %', '1.482', '0.8123 K', '–')
    """
    if value is None:
        return NONE
    text = f"{value:.2f}".replace("-", MINUS) if unit == "%" else digits(value, 4)
    return f"{text} {unit}".rstrip()


def difference(value: float, unit: str) -> str:
    """A change of a metric: percentages in points.

    >>> difference(-0.124, "%"), difference(0.0123, "K"), difference(-0.5, "")
    ('−0.12 points', '+0.012 K', '−0.500')
    """
    if unit == "%":
        return f"{signed(value)} points"
    return f"{signed(value, 3)} {unit}".rstrip()


def unbroken(sentence: str) -> str:
    """A sentence in which no line ends between a number and its unit.

    >>> unbroken("0.3 % of 72.4 points")
    '0.3\\xa0% of 72.4\\xa0points'
    """
    return re.sub(rf"(\d) ({'|'.join(_UNITS)})", "\\1\N{NO-BREAK SPACE}\\2", sentence)


def counted(count: int, one: str, many: str | None = None) -> str:
    """
    >>> counted(1, "seed"), counted(3, "seed"), counted(2, "study", "studies")
    ('1 seed', '3 seeds', '2 studies')
    """
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def listed(words: list[str]) -> str:
    """
    >>> listed(["a"]), listed(["a", "b"]), listed(["a", "b", "c"])
    ('a', 'a and b', 'a, b and c')
    """
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
