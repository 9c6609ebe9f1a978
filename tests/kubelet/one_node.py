"""A test run with one node and one pod, to be ended in every way: `python -m tests.kubelet.one_node`.

Says on standard output what it has made in the system, then waits for its standard input to close and stops cleanly.
"""

import json
import sys

from tests.kubelet.pods import Pods, container, pod
from tests.testbed.apiserver import ApiServer
from tests.testbed.node import Node
from tests.testbed.processes import Run


def main() -> None:
    """Run the node until standard input ends."""
    run = Run()
    try:
        apiserver = ApiServer(run)
        node = Node(run, apiserver, "lone")
        node.start()
        apiserver.create_namespace("test")
        pods = Pods(apiserver, "test")
        pods.create(pod("only", [container("main")]), node)
        pods.wait_running("only")
        made = {
            "run": str(run.directory),
            "interface": node.network.interface,
            "cgroups": [str(folder) for folder in node.cgroup.folders],
        }
        sys.stdout.write(json.dumps(made) + "\n")
        sys.stdout.flush()
        sys.stdin.read()
        node.stop()
    finally:
        run.close()


if __name__ == "__main__":
    main()
