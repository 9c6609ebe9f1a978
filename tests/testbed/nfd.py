"""Node feature discovery's own master, built with Go and kept beside the programs of a cluster.

`python -m tests.testbed.nfd` (what `make test-nfd` runs) builds it. Where it was never built, its tests are skipped.
"""

import shutil
import subprocess
import sys
from pathlib import Path

from tests.testbed import binaries

_CRDS = Path("deployment/base/nfd-crds/nfd-api-crds.yaml")


def master() -> Path:
    """The program."""
    return binaries.nfd().cache / "nfd-master"


def definitions() -> Path:
    """The kinds it reads."""
    return binaries.nfd().cache / _CRDS.name


def is_there() -> bool:
    """Whether it has been built."""
    return master().is_file() and definitions().is_file()


def main() -> int:
    """Build it."""
    module = binaries.nfd()
    try:
        binaries.ensure_module(module)
    except binaries.BinariesError as error:
        sys.stderr.write(f"make test-nfd: {error}\n")
        return 1
    if not definitions().is_file():
        name = "sigs.k8s.io/node-feature-discovery"
        command = ["go", "list", "-m", "-f", "{{.Dir}}", name]
        found = subprocess.run(
            command, cwd=binaries.MODULES / module.folder, check=True, capture_output=True, text=True
        )
        shutil.copyfile(Path(found.stdout.strip()) / _CRDS, definitions())
    return 0


if __name__ == "__main__":
    sys.exit(main())
