"""Arguments that can't be used are refused by name: which one, what came, what is wanted."""

from __future__ import annotations

from math import isnan

import msgspec

from cometmq.errors import CometError, ConfigError, Refused


def check_number(
    name: str,
    value: object,
    *,
    least: float | None = None,
    most: float | None = None,
    above: float | None = None,
    whole: bool = False,
    error: type[CometError] = ConfigError,
) -> None:
    """Raises `error` unless `value` is a number (a `whole` one) from `least` to `most`, or above
    `above`."""
    if (
        isinstance(value, int if whole else int | float)
        and not isinstance(value, bool)
        and (isinstance(value, int) or not isnan(value))  # a wait for so long would never end
        and (least is None or value >= least)
        and (most is None or value <= most)
        and (above is None or value > above)
    ):
        return
    bounds = f" from {least:g} up" if least is not None else ""
    bounds = f" from {least:g} to {most:g}" if most is not None else bounds
    bounds = f" above {above:g}" if above is not None else bounds
    kind = "a whole number" if whole else "a number"
    raise error(f"{name}={value!r}: {kind}{bounds} is wanted")


def check_timeout(value: object, name: str = "timeout") -> None:
    """Raises Refused unless these are seconds to wait, or None."""
    if value is not None:
        check_number(name, value, error=Refused)


def milliseconds(name: str, seconds: float) -> int:
    """Seconds of an option as whole milliseconds. Raises ConfigError."""
    check_number(name, seconds, least=0)
    return int(seconds * 1000)


def check_fields(header: msgspec.Struct, within: str = "") -> None:
    """Raises Refused for a field of a request, named as the argument it came by, that the broker
    would only call a bad request."""
    for field in msgspec.structs.fields(header):
        value = getattr(header, field.name)
        if isinstance(value, msgspec.Struct):
            check_fields(value, f"{within}{field.name}.")
            continue
        try:
            msgspec.convert(value, field.type)
        except msgspec.ValidationError as error:
            raise Refused(f"{within}{field.name}={value!r}: {error}", "BAD_REQUEST") from None
