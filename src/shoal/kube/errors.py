"""Errors of the Kubernetes client: what was asked, what came back, and what to do.

No message ever holds a token, a key, a certificate or the data of a Secret: they are built from verbs, paths and what
the API server says for people to read.
"""

from __future__ import annotations

from typing import Final

#: Longest piece of foreign text that a message repeats.
MAX_TEXT: Final = 1000


class KubeError(Exception):
    """Root of every error `shoal.kube` raises."""


class ConfigError(KubeError):
    """A kubeconfig, a service account folder or a credential plugin that cannot be used as it is."""


class UnreachableError(KubeError):
    """The API server gave no answer: refused, cut off, too late, or not who it should be."""


class SilentError(UnreachableError):
    """The API server took a watch and then said nothing for long: nothing has happened, or the connection is dead."""


class AnswerError(KubeError):
    """The API server answered with something that is not what the call promises."""


class UnservedError(KubeError):
    """The API server does not have an API, or not in a version that is known."""


class LeadershipLostError(KubeError):
    """This process led, and could not keep its lease."""


class ApiError(KubeError):
    """The API server refused; `status` is the HTTP code, `reason` Kubernetes' own word for it."""

    hint = "see the API server's log"

    def __init__(
        self,
        *,
        asked: str,
        status: int,
        reason: str,
        message: str,
        retry_after: float | None = None,
        fields: tuple[str, ...] = (),
        causes: tuple[str, ...] = (),
    ) -> None:
        said = message if len(message) <= MAX_TEXT else message[:MAX_TEXT] + "…"
        super().__init__(f"{asked}: {status} {reason or 'Unknown'}: {said or 'no message'}: {self.hint}")
        self.asked = asked
        self.status = status
        self.reason = reason
        self.message = said
        #: Seconds after which the server wants to be asked again, when it says so.
        self.retry_after = retry_after
        #: The fields that the server names as causes, such as those that another manager owns.
        self.fields = fields
        #: What the server says of each cause, such as the disruption budget that an eviction would break.
        self.causes = causes


class BadRequestError(ApiError):
    """400: the request itself is malformed."""

    hint = "correct the request"


class UnauthorizedError(ApiError):
    """401: the server does not know who asks."""

    hint = "log in again, or renew the token or certificate of this user"


class ForbiddenError(ApiError):
    """403: the user is known and may not."""

    hint = "grant the verb on this resource in a Role or ClusterRole, or correct what admission refused"


class NotFoundError(ApiError):
    """404: no such object, or no such API."""

    hint = "check name and namespace, and that the API is installed"


class ConflictError(ApiError):
    """409: the object has changed since it was read, or a precondition does not hold."""

    hint = "read the object again and repeat the change"


class AlreadyExistsError(ApiError):
    """409: an object of this name is there."""

    hint = "use another name, or change the object that is there"


class GoneError(ApiError):
    """410: the version or the continue token asked for is too old."""

    hint = "list again"


class InvalidError(ApiError):
    """422: the object breaks a rule of its kind."""

    hint = "correct the named field"


class TooManyRequestsError(ApiError):
    """429: the server is busy, or an eviction would break a disruption budget."""

    hint = "try again later"


class UnavailableError(ApiError):
    """500, 503, 504: the server cannot answer now."""

    hint = "try again; if it stays, see the API server's log"


_BY_STATUS: Final[dict[int, type[ApiError]]] = {
    400: BadRequestError,
    401: UnauthorizedError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    410: GoneError,
    422: InvalidError,
    429: TooManyRequestsError,
    500: UnavailableError,
    502: UnavailableError,
    503: UnavailableError,
    504: UnavailableError,
}
_BY_REASON: Final[dict[str, type[ApiError]]] = {
    "AlreadyExists": AlreadyExistsError,
    "Expired": GoneError,
    "Gone": GoneError,
}


def api_error(
    *,
    asked: str,
    status: int,
    reason: str = "",
    message: str = "",
    retry_after: float | None = None,
    fields: tuple[str, ...] = (),
    causes: tuple[str, ...] = (),
) -> ApiError:
    """The error of the class that fits; the reason says more than the code."""
    kind = _BY_REASON.get(reason) or _BY_STATUS.get(status, ApiError)
    return kind(
        asked=asked,
        status=status,
        reason=reason,
        message=message,
        retry_after=retry_after,
        fields=fields,
        causes=causes,
    )
