"""Real helm, as the user of a kubeconfig."""

import os
import subprocess
from pathlib import Path

from tests.testbed import binaries
from tests.testbed.processes import TestbedError


def run_helm(kubeconfig: Path, *arguments: str, home: Path, check: bool = True) -> str:
    """What helm prints; its error as an exception, or as part of the answer when it is not to be checked."""
    done = subprocess.run(
        [binaries.find("helm"), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": os.environ["PATH"], "HOME": str(home), "KUBECONFIG": str(kubeconfig)},
    )
    if check and done.returncode:
        raise TestbedError(f"helm {' '.join(arguments)}: {done.stdout}{done.stderr}".strip())
    return done.stdout if not done.returncode else done.stdout + done.stderr
