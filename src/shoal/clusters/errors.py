"""Why a cluster cannot be joined, or no cluster chosen. What goes wrong with an API server is a KubeError."""

from __future__ import annotations

from shoal.kube.errors import KubeError


class UnusableAccountError(KubeError):
    """The cluster answers, and the account that was given for it cannot be used."""


class JoinError(KubeError):
    """A cluster that cannot be joined or left as it was asked."""


class ChoiceError(Exception):
    """No cluster could be chosen now: nobody could be asked."""
