"""`shoal agent`: run the node daemon."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path

import click

from shoal.cli import settings
from shoal.cli.service import until_ended
from shoal.model.contract import gpushare, nvidia

_FOLDER = click.Path(path_type=Path)
_LOOK_SECONDS = 5.0


@click.command(short_help="Run the node daemon: device plugin, identity, CDI.")
@click.option("--config", "path", type=_FOLDER, metavar="FILE", help="Settings in YAML, read again when they change.")
@click.option("--kubeconfig", type=_FOLDER, metavar="FILE", help="How to reach the cluster.")
@click.option("--context", default="", metavar="NAME", help="The context of the kubeconfig to use.")
@click.option("--node-name", envvar=gpushare.ENV_NODE_NAME, metavar="NAME", help="The node this runs on.")
@settings.memory_unit()
@click.option("--mps-clients", type=int, metavar="N", help="Clients of keti.com/mpsgpu per card.")
@click.option("--counting", type=click.Choice(["auto", "devices", "node-status"]), help="How memory is counted.")
@click.option(
    "--device-list-strategy",
    type=click.Choice(["auto", *nvidia.DEVICE_LIST_STRATEGIES]),
    envvar=nvidia.ENV_DEVICE_LIST_STRATEGY,
    help="How a container is told its cards.",
)
@click.option(
    "--without-allocation",
    type=click.Choice(["choose", "refuse"]),
    help="What becomes of a pod that came without a choice of cards.",
)
@click.option("--nvidia-config", metavar="FILE", help="The configuration of NVIDIA's device plugin.")
@click.option(
    "--nvidia-config-map", metavar="NAMESPACE/NAME", help="The same in a ConfigMap; the node's label names the key."
)
@click.option("--nvidia-config-default", metavar="KEY", help="The key for nodes without that label.")
@click.option(
    "--mig-strategy",
    type=click.Choice(list(nvidia.MIG_STRATEGIES)),
    envvar=nvidia.ENV_MIG_STRATEGY,
    help="How MIG partitions are served where it says nothing.",
)
@click.option("--claims", is_flag=True, default=None, help="Offer the cards as claims (DRA) too.")
@click.option(
    "--disable-health-checks",
    envvar=nvidia.ENV_DISABLE_HEALTH_CHECKS,
    metavar="LIST",
    help="XID errors that do not count, `xids`, or `all`.",
)
@click.option(
    "--enable-health-checks", envvar=nvidia.ENV_ENABLE_HEALTH_CHECKS, metavar="LIST", help="Those that count after all."
)
@click.option("--host", help="Where health answers.")
@click.option("--port", type=int, help="Its port; 0 takes a free one.")
@click.option("--device-plugins", type=_FOLDER, metavar="DIR", help="kubelet's folder of plugins.")
@click.option("--pod-resources", type=_FOLDER, metavar="SOCKET", help="kubelet's PodResources.")
@click.option("--plugins-registry", type=_FOLDER, metavar="DIR", help="Where DRA drivers register with kubelet.")
@click.option("--plugins", type=_FOLDER, metavar="DIR", help="Where DRA drivers have their sockets.")
@click.option("--host-plugins", type=_FOLDER, metavar="DIR", help="Where kubelet sees them.")
@click.option("--cdi", type=_FOLDER, multiple=True, metavar="DIR", help="CDI specs; the last is written to.")
@click.option("--dev", type=_FOLDER, metavar="DIR", help="Where the host's device nodes are seen.")
@click.option("--proc", type=_FOLDER, metavar="DIR", help="Where the host's /proc is mounted.")
@click.option("--host-dev", type=_FOLDER, metavar="DIR", help="Where they are on the host; /dev unless given.")
@click.option("--mps-only", is_flag=True, help="Keep the MPS daemon running, and do nothing else.")
@click.option("--cleanup", is_flag=True, help="Remove all that the agent has left on the node, and end.")
@settings.log_level
def agent(
    path: Path | None,
    kubeconfig: Path | None,
    context: str,
    device_plugins: Path | None,
    pod_resources: Path | None,
    plugins_registry: Path | None,
    plugins: Path | None,
    host_plugins: Path | None,
    cdi: tuple[Path, ...],
    dev: Path | None,
    host_dev: Path | None,
    proc: Path | None,
    mps_only: bool,
    cleanup: bool,
    log_level: str,
    **flags: object,
) -> None:
    """Run the node daemon: it publishes the node's cards, and gives each container those that were chosen for it.

    \b
    Examples:
      shoal agent --node-name gpu-1                      in a pod, or with ~/.kube/config
      shoal agent --node-name gpu-1 --memory-unit MiB
      shoal agent --node-name gpu-1 --cleanup            before the node is given to another stack
    """
    from shoal.agent import app
    from shoal.agent.config import AgentConfig
    from shoal.agent.errors import AgentError
    from shoal.gpu.nvml import open_nvml
    from shoal.kube.access.kubeconfig import load_access
    from shoal.kube.errors import KubeError
    from shoal.kubelet.host_paths import HostPaths

    settings.log_at(log_level)

    def load() -> AgentConfig:
        return settings.load(AgentConfig, path, flags, command="agent")

    places = {
        "device_plugins": device_plugins,
        "pod_resources": pod_resources,
        "plugins_registry": plugins_registry,
        "plugins": plugins,
        "host_plugins": host_plugins,
        "cdi": cdi or None,
        "dev": dev,
        "host_dev": host_dev,
        "proc": proc,
    }
    paths = HostPaths(**{name: place for name, place in places.items() if place is not None})  # type: ignore[arg-type]
    try:
        config = load()
        if mps_only:
            asyncio.run(until_ended(app.keep_mps(config, open_nvml, environment=os.environ)))
            return
        access = load_access(environ=os.environ, home=Path.home(), kubeconfig=kubeconfig, context=context)
        if cleanup:
            asyncio.run(app.cleanup(config, access, paths, open_nvml, environment=os.environ))
            return
    except (settings.ServiceSettingsError, AgentError, KubeError) as error:
        raise click.ClickException(str(error)) from error

    async def until_told() -> None:
        reloads: asyncio.Queue[AgentConfig] = asyncio.Queue()

        latest = config

        def reload(*, forced: bool) -> None:
            nonlocal latest
            try:
                fresh = load()
            except settings.ServiceSettingsError as error:
                logging.getLogger(__name__).error("the settings stay as they are: %s", error)
                return
            if forced or fresh != latest:
                latest = fresh
                reloads.put_nowait(fresh)

        work = app.run(
            config,
            access,
            open_nvml,
            paths,
            reloads=reloads,
            environment=os.environ,
            serving=lambda port: click.echo(f"serving on {port}"),
            begun=_freeze,
        )
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, lambda: reload(forced=True))
        watch = asyncio.ensure_future(_on_change(path, lambda: reload(forced=False)))
        await until_ended(work)
        watch.cancel()

    asyncio.run(until_told())


def _freeze() -> None:
    """Keep the garbage collector from what is there at the start and stays: its pauses keep containers waiting."""
    gc.collect()
    gc.freeze()


async def _on_change(path: Path | None, reload: Callable[[], None]) -> None:
    """Reload when the file is another one: a mounted ConfigMap is replaced whole."""
    stamp = _stamp(path)
    while path is not None:
        await asyncio.sleep(_LOOK_SECONDS)
        if (now := _stamp(path)) not in (stamp, None):
            stamp = now
            reload()


def _stamp(path: Path | None) -> tuple[int, int] | None:
    try:
        status = None if path is None else path.stat()
    except OSError:
        return None  # on its way: the next look sees it
    return None if status is None else (status.st_ino, status.st_mtime_ns)
