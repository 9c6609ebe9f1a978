"""What the machine must allow before many real programs run side by side on it.

Every kubelet, API server and controller manager watches its files by inotify instances of its own. Linux allows a user
128 of them, root included: a dozen clusters at once use them up, and the next kubelet ends at its start.
"""

from pathlib import Path

INOTIFY_INSTANCES = Path("/proc/sys/fs/inotify/max_user_instances")
WANTED = 8192


class MachineLimitError(Exception):
    """The machine allows too little, and does not let itself be told otherwise."""


def raise_inotify_limit(setting: Path = INOTIFY_INSTANCES) -> None:
    """Let programs have as many inotify instances as they ask for; a limit that is high enough stays as it is."""
    allowed = int(setting.read_text())
    if allowed >= WANTED:
        return
    try:
        setting.write_text(f"{WANTED}\n")
    except OSError as error:
        raise MachineLimitError(
            f"{setting} is {allowed}, which is too few for several clusters at once, and cannot be raised here"
            f" ({error.strerror}): sysctl -w fs.inotify.max_user_instances={WANTED} on the machine itself"
        ) from error
