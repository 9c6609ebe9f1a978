"""Errors of the model: bad input names what was wrong, where, and what to do."""


class ModelError(ValueError):
    """Root of every error `shoal.model` raises."""


class QuantityError(ModelError):
    """A Kubernetes quantity that cannot be read, or not in the way it is asked for."""


class RequestError(ModelError):
    """A pod whose GPU request cannot be met as written."""


class PluginConfigError(ModelError):
    """A configuration of NVIDIA's device plugin that cannot be used."""


class CodecError(ModelError):
    """An annotation, label or device id that does not hold what its name promises."""


#: Longest piece of a bad value that a message repeats.
SHOWN_LENGTH = 60


def shown(value: object) -> str:
    """A bad value as a message repeats it: short, printable, whatever it is."""
    if isinstance(value, str):
        short = value if len(value) <= SHOWN_LENGTH else value[:SHOWN_LENGTH] + "…"
        # Not repr() for what can be printed: the admission policies say the same words and have no such function.
        return f"'{short}'" if short.isprintable() else repr(short)
    if isinstance(value, int) and value.bit_length() > SHOWN_LENGTH * 3:
        return f"a number of {value.bit_length()} bits"
    if value is None or isinstance(value, bool | int | float):
        return repr(value)
    return f"a {type(value).__name__}"
