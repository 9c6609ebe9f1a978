"""`shoal up` goes on when a part of it has lost its lease, as after a night in which the laptop slept."""

import re
from pathlib import Path

from shoal.kube.access.kubeconfig import load_kubeconfig
from shoal.kube.client import Client
from shoal.kube.resources import LEASES
from tests.cli.shoal_up import running
from tests.clusters.site import eventually


async def test_a_part_that_loses_its_lease_is_started_anew() -> None:
    with running("--nodes", "1", "--no-metrics") as (process, said):
        kubeconfig = Path(re.findall(r"KUBECONFIG=(\S+)", said)[-1])
        async with Client(load_kubeconfig([kubeconfig], environ={}, explicit=True)) as client:

            async def holder() -> str:
                lease = await client.get(LEASES, "shoal-discovery", namespace="kube-system")
                return lease.spec.holder_identity or ""

            async def held() -> bool:
                return bool(await holder())

            await eventually(held, "discovery leads")
            before = await holder()
            taken = {"spec": {"holderIdentity": "somebody", "leaseDurationSeconds": 1}}
            await client.patch(LEASES, "shoal-discovery", taken, namespace="kube-system")

            async def led_anew() -> bool:
                assert process.poll() is None, "it goes on"
                return await holder() not in (before, "somebody", "")

            await eventually(led_anew, "discovery leads again")
