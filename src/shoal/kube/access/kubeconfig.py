"""kubeconfig files, read and merged as kubectl does.

The first file that names a cluster, user or context wins with its whole entry; the first `current-context` wins.
Relative paths count from the folder of the file they stand in. Basic authentication and the auth-provider entries that
Kubernetes itself has dropped are refused with what to use instead.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlsplit

import msgspec
import yaml

from shoal.kube.access import tls
from shoal.kube.access.credentials import Access, Content, CredentialSource, FileContent, Inline, StoredCredential
from shoal.kube.access.exec_plugin import GROUP, ExecPlugin, ExecSpec
from shoal.kube.errors import ConfigError

# The credentials of a pod: its service account, as kubelet mounts it and renews it.


FOLDER: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def is_in_cluster(environ: Mapping[str, str], folder: Path = FOLDER) -> bool:
    """Whether this process has a service account to use."""
    return bool(environ.get("KUBERNETES_SERVICE_HOST")) and (folder / "token").is_file()


def in_cluster(environ: Mapping[str, str], folder: Path = FOLDER) -> Access:
    """Access as the pod's service account."""
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise ConfigError("KUBERNETES_SERVICE_HOST is not set: this is no pod, give a kubeconfig")
    token = FileContent(folder / "token", what="the service account's token")
    authority = FileContent(folder / "ca.crt", what="the cluster's certificate")
    token.read()
    authority.read()
    try:
        namespace = (folder / "namespace").read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        namespace = ""  # only projected volumes made by hand leave it out
    return Access(
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        credentials=StoredCredential(token=token),
        authority=authority,
        namespace=namespace or "default",
    )


_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MAX_BYTES: Final = 16 << 20
#: What a Secret holds at most.
_MAX_CLOSED_BYTES: Final = 1 << 20
_DEEPEST: Final = 100
T = TypeVar("T")


class _Part(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    def __repr__(self) -> str:
        return type(self).__name__


class _Extension(_Part, frozen=True, kw_only=True):
    name: str = ""
    extension: Any = None


class _Cluster(_Part, frozen=True, kw_only=True):
    server: str | None = None
    certificate_authority: str | None = None
    certificate_authority_data: str | None = None
    insecure_skip_tls_verify: bool | None = None
    tls_server_name: str | None = None
    proxy_url: str | None = None
    disable_compression: bool | None = None
    extensions: list[_Extension] | None = None


class _User(_Part, frozen=True, kw_only=True):
    client_certificate: str | None = None
    client_certificate_data: str | None = None
    client_key: str | None = None
    client_key_data: str | None = None
    token: str | None = None
    token_file: str | None = msgspec.field(default=None, name="tokenFile")
    username: str | None = None
    password: str | None = None
    auth_provider: Any = None
    exec: ExecSpec | None = None
    as_: str | None = msgspec.field(default=None, name="as")
    as_uid: str | None = None
    as_groups: list[str] | None = None
    as_user_extra: dict[str, list[str]] | None = None


class _Context(_Part, frozen=True, kw_only=True):
    cluster: str | None = None
    user: str | None = None
    namespace: str | None = None


class _NamedCluster(_Part, frozen=True, kw_only=True):
    name: str
    cluster: _Cluster | None = None


class _NamedUser(_Part, frozen=True, kw_only=True):
    name: str
    user: _User | None = None


class _NamedContext(_Part, frozen=True, kw_only=True):
    name: str
    context: _Context | None = None


class _File(_Part, frozen=True, kw_only=True):
    clusters: list[_NamedCluster] | None = None
    users: list[_NamedUser] | None = None
    contexts: list[_NamedContext] | None = None
    current_context: str | None = None


@dataclass(slots=True)
class _Merged:
    """All entries with the folder each came from."""

    clusters: dict[str, tuple[_Cluster, Path]] = field(default_factory=dict)
    users: dict[str, tuple[_User, Path]] = field(default_factory=dict)
    contexts: dict[str, _Context] = field(default_factory=dict)
    current: str = ""

    def add(self, file: _File, folder: Path) -> None:
        """Take in what no file before has named."""
        for cluster in file.clusters or ():
            self.clusters.setdefault(cluster.name, (cluster.cluster or _Cluster(), folder))
        for user in file.users or ():
            self.users.setdefault(user.name, (user.user or _User(), folder))
        for context in file.contexts or ():
            self.contexts.setdefault(context.name, context.context or _Context())
        self.current = self.current or file.current_context or ""


def kubeconfig_paths(environ: Mapping[str, str], home: Path) -> list[Path]:
    """The files that count when none is named: those of $KUBECONFIG, or ~/.kube/config."""
    named = [Path(path) for path in environ.get("KUBECONFIG", "").split(os.pathsep) if path]
    return named or [home / ".kube" / "config"]


def load_kubeconfig(
    paths: Sequence[Path],
    *,
    environ: Mapping[str, str],
    context: str = "",
    explicit: bool = False,
    terminal: bool = False,
) -> Access:
    """Access as the chosen context of the merged files says; missing files are passed over unless `explicit`."""
    merged = _merge(paths, explicit=explicit)
    chosen = context or merged.current
    if not chosen:
        raise ConfigError(f"no current-context in {_shown(paths)}: {_choices('context', merged.contexts)}")
    entry = _named("context", chosen, merged.contexts)
    return _access(entry, merged, environ=environ, terminal=terminal)


def _access(entry: _Context, merged: _Merged, *, environ: Mapping[str, str], terminal: bool) -> Access:
    """Access as a context says."""
    cluster, cluster_folder = _named("cluster", entry.cluster or "", merged.clusters)
    user, user_folder = _named("user", entry.user, merged.users) if entry.user else (_User(), Path())
    server = _server(cluster, entry.cluster or "")
    secure = server.startswith("https://")
    return Access(
        server=server,
        # No secret ever goes over a connection that anyone can read.
        credentials=(
            _credentials(user, user_folder, cluster, cluster_folder, environ=environ, terminal=terminal)
            if secure
            else StoredCredential()
        ),
        authority=_authority(cluster, cluster_folder),
        verify=not cluster.insecure_skip_tls_verify,
        server_name=cluster.tls_server_name or "",
        proxy=(
            tls.checked(cluster.proxy_url, where=f"cluster {entry.cluster!r}")
            if cluster.proxy_url
            else tls.proxy_for(server, environ)
        ),
        namespace=entry.namespace or "default",
        headers=_impersonation(user),
    )


def _merge(paths: Sequence[Path], *, explicit: bool) -> _Merged:
    merged = _Merged()
    read = 0
    for path in paths:
        try:
            file = _read(path)
        except FileNotFoundError as error:
            if explicit:
                raise ConfigError(f"kubeconfig {path} is not there: correct the path") from error
            continue
        read += 1
        merged.add(file, path.absolute().parent)
    if not read:
        raise ConfigError(f"no kubeconfig: {_shown(paths)} is not there: set KUBECONFIG, or log in to a cluster")
    return merged


def _read(path: Path) -> _File:
    try:
        with path.open("rb") as stream:
            content = stream.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ConfigError(f"kubeconfig {path} cannot be read: {error.strerror}: correct path or mode") from error
    if len(content) > _MAX_BYTES:
        raise ConfigError(f"{path} is too large for a kubeconfig: correct the path")
    return _parsed(content, what=f"kubeconfig {path}")


def _parsed(content: bytes, *, what: str, aliases: bool = True) -> _File:
    try:
        _check_shape(content, what=what, aliases=aliases)
        parsed = yaml.load(content, Loader=_LOADER)  # a safe loader, chosen above
        return _File() if parsed is None else msgspec.convert(parsed, _File)
    except yaml.MarkedYAMLError as error:
        # Its own text repeats the line, which may hold a token.
        line = error.problem_mark.line + 1 if error.problem_mark else "?"
        raise ConfigError(f"{what} is no YAML, see line {line}: correct it") from None
    except msgspec.ValidationError as error:
        raise ConfigError(f"{what} has the wrong form: {error}: correct it") from error
    except (yaml.YAMLError, ValueError, RecursionError):
        raise ConfigError(f"{what} is no YAML: correct it") from None


def _check_shape(content: bytes, *, what: str, aliases: bool) -> None:
    """Refuse what would end the process: the loader is recursive, and few aliases stand for more than memory holds."""
    depth = 0
    for event in yaml.parse(content, Loader=_LOADER):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            raise ConfigError(f"{what} is nested deeper than {_DEEPEST}: correct it")
        if not aliases and isinstance(event, yaml.AliasEvent):
            raise ConfigError(f"{what} holds YAML aliases: write it without")


def _named(kind: str, name: str, entries: Mapping[str, T]) -> T:
    if name in entries:
        return entries[name]
    raise ConfigError(f"the kubeconfig has no {kind} {name!r}: {_choices(kind, entries)}")


def _choices(kind: str, entries: Mapping[str, object]) -> str:
    return f"choose one of {', '.join(sorted(entries))}" if entries else f"add a {kind}"


def _shown(paths: Sequence[Path]) -> str:
    return ", ".join(map(str, paths))


def _server(cluster: _Cluster, name: str) -> str:
    server = (cluster.server or "").rstrip("/")
    try:
        url = urlsplit(server)
        usable = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise ConfigError(f"cluster {name!r} has no usable server: write it like https://10.0.0.1:6443")
    if url.username or url.password:
        raise ConfigError(f"the server of cluster {name!r} holds a user or password: use a token or a certificate")
    return f"{url.scheme}://{url.netloc}{url.path}"


def _authority(cluster: _Cluster, folder: Path) -> Content | None:
    return _content(
        cluster.certificate_authority_data, cluster.certificate_authority, folder, what="certificate-authority"
    )


def _content(data: str | None, path: str | None, folder: Path, *, what: str) -> Content | None:
    """Data wins over a file, as in kubectl."""
    if data:
        try:
            return Inline(base64.b64decode("".join(data.split()), validate=True))
        except (binascii.Error, ValueError) as error:
            raise ConfigError(f"{what}-data is not base64: encode the PEM file anew") from error
    return FileContent(folder / path, what=what) if path else None


def _credentials(
    user: _User, folder: Path, cluster: _Cluster, cluster_folder: Path, *, environ: Mapping[str, str], terminal: bool
) -> CredentialSource:
    if user.auth_provider is not None:
        raise ConfigError(
            "the user has an auth-provider, which Kubernetes has dropped: use the provider's credential plugin (exec)"
        )
    if user.username or user.password:
        raise ConfigError("the user has a password, which no API server takes any more: use a token or a certificate")
    certificate = _content(user.client_certificate_data, user.client_certificate, folder, what="client-certificate")
    key = _content(user.client_key_data, user.client_key, folder, what="client-key")
    if (certificate is None) != (key is None):
        raise ConfigError("the user has a client certificate without a key, or the reverse: give both")
    token: Content | None = None
    if user.token_file:
        token = FileContent(folder / user.token_file, what="tokenFile")
    elif user.token:
        token = Inline(user.token.encode())
    if user.exec is None or token or certificate:
        return StoredCredential(token=token, certificate=certificate, key=key)
    spec = user.exec
    if os.sep in spec.command:
        spec = msgspec.structs.replace(spec, command=str(folder / spec.command))
    return ExecPlugin(spec, environ=environ, cluster=_cluster_info(cluster, cluster_folder), terminal=terminal)


def _cluster_info(cluster: _Cluster, folder: Path) -> dict[str, Any]:
    """What a plugin that asks for it is told of the cluster. Files are read now: the plugin gets data only."""
    authority = _authority(cluster, folder)
    info = {
        "server": cluster.server,
        "tls-server-name": cluster.tls_server_name,
        "insecure-skip-tls-verify": cluster.insecure_skip_tls_verify,
        "certificate-authority-data": None if authority is None else base64.b64encode(authority.read()).decode(),
        "proxy-url": cluster.proxy_url,
        "disable-compression": cluster.disable_compression,
        "config": next((e.extension for e in cluster.extensions or () if e.name == f"{GROUP}/exec"), None),
    }
    return {name: value for name, value in info.items() if value is not None}


def _impersonation(user: _User) -> tuple[tuple[str, str], ...]:
    if not user.as_:
        if user.as_uid or user.as_groups or user.as_user_extra:
            raise ConfigError("the user has as-uid, as-groups or as-user-extra without as: name the user to act as")
        return ()
    headers = [("Impersonate-User", user.as_)]
    if user.as_uid:
        headers.append(("Impersonate-Uid", user.as_uid))
    headers += [("Impersonate-Group", group) for group in user.as_groups or ()]
    for name, values in (user.as_user_extra or {}).items():
        headers += [(f"Impersonate-Extra-{quote(name, safe='')}", value) for value in values]
    if any(not text.isprintable() for header in headers for text in header):
        raise ConfigError("the names to act as hold control characters: correct them")
    return tuple(headers)


# Every context, each with the credentials it names itself: for whoever uses many clusters at once.


@dataclass(frozen=True, slots=True)
class ContextEntry:
    """A context of a file. Without access there is a problem: the cause and the fix."""

    path: Path
    context: str
    #: As the file calls it; kubeadm calls every cluster `kubernetes`.
    cluster: str
    access: Access | None
    problem: str = ""
    #: Changes with whatever the entries say.
    digest: str = ""


@dataclass(frozen=True, slots=True)
class ContextListing:
    """All contexts, and by path the files that cannot be used, with cause and fix."""

    entries: tuple[ContextEntry, ...]
    problems: Mapping[str, str]


def load_contexts(paths: Sequence[Path], *, environ: Mapping[str, str]) -> ContextListing:
    """Every context of every file, a file's current one first.

    What a context names is looked for in its own file, and in the others only if it is not there: two files that use
    the same names do not mix. What cannot be read is told and left out.
    """
    entries: list[ContextEntry] = []
    problems: dict[str, str] = {}
    files: list[tuple[Path, _File]] = []
    merged = _Merged()
    for path in paths:
        try:
            # A pipe would never end.
            file = _read(path) if path.is_file() or not path.exists() else _no_file(path)
            files.append((path, file))
            merged.add(file, path.absolute().parent)
        except FileNotFoundError:
            problems[str(path)] = f"kubeconfig {path} is not there: create it, or correct the path"
        except OSError as error:
            problems[str(path)] = f"kubeconfig {path} cannot be read: {error.strerror}: correct path or mode"
        except ConfigError as error:
            problems[str(path)] = str(error)
    for path, file in files:
        if not file.contexts:
            problems[str(path)] = f"kubeconfig {path} has no contexts: add one, or move the file elsewhere"
        entries += _contexts(path, file, merged, environ)
    return ContextListing(tuple(entries), problems)


def _no_file(path: Path) -> _File:
    raise ConfigError(f"kubeconfig {path} is no regular file: name a file")


def _contexts(path: Path, file: _File, merged: _Merged, environ: Mapping[str, str]) -> Iterator[ContextEntry]:
    own = _Merged()
    folder = path.absolute().parent
    own.add(file, folder)
    known = _Merged({**merged.clusters, **own.clusters}, {**merged.users, **own.users}, own.contexts)
    for name, context in sorted(own.contexts.items(), key=lambda item: item[0] != own.current):
        cluster = context.cluster or ""
        try:
            access = _access(context, known, environ=environ, terminal=False)
            yield ContextEntry(path, name, cluster, access, digest=_digest(context, known))
        except ConfigError as error:
            yield ContextEntry(path, name, cluster, None, f"context {name!r} of {path}: {error}")


def _digest(context: _Context, merged: _Merged) -> str:
    cluster, user = merged.clusters.get(context.cluster or ""), merged.users.get(context.user or "")
    said = msgspec.json.encode((context, *(part and (part[0], str(part[1])) for part in (cluster, user))))
    return hashlib.sha256(said).hexdigest()


def closed_access(content: bytes, *, what: str, environ: Mapping[str, str]) -> Access:
    """Access by a kubeconfig that others wrote: it starts no program, opens no file and trusts no unknown server.

    It holds one context, or names its current one.
    """
    if len(content) > _MAX_CLOSED_BYTES:
        raise ConfigError(f"{what} has {len(content)} bytes: a kubeconfig has at most {_MAX_CLOSED_BYTES}")
    merged = _Merged()
    merged.add(_parsed(content, what=what, aliases=False), Path("/nonexistent"))
    chosen = merged.current or (next(iter(merged.contexts)) if len(merged.contexts) == 1 else "")
    if not chosen:
        raise ConfigError(f"no current-context in {what}: {_choices('context', merged.contexts)}")
    try:
        entry = _named("context", chosen, merged.contexts)
        cluster, _ = _named("cluster", entry.cluster or "", merged.clusters)
        user, _ = _named("user", entry.user, merged.users) if entry.user else (_User(), Path())
        _check_closed(cluster, user)
        return _access(entry, merged, environ=environ, terminal=False)
    except ConfigError as error:
        raise ConfigError(f"{what}: {error}") from error


def _check_closed(cluster: _Cluster, user: _User) -> None:
    if user.exec is not None:
        raise ConfigError("users[].user.exec names a program, which is not run: store a token or a certificate")
    for value, key, instead in (
        (user.token_file, "tokenFile", "token"),
        (user.client_certificate, "client-certificate", "client-certificate-data"),
        (user.client_key, "client-key", "client-key-data"),
        (cluster.certificate_authority, "certificate-authority", "certificate-authority-data"),
    ):
        if value:
            raise ConfigError(f"{key} names a file, which is not read: write its content into {instead}")
    if cluster.insecure_skip_tls_verify:
        raise ConfigError("insecure-skip-tls-verify is set: remove it, and give certificate-authority-data")
    if not (cluster.server or "").startswith("https://"):
        raise ConfigError("the server's address is not https://: give the one that is")


# The choice between a kubeconfig and the pod's own service account.


def load_access(
    *,
    environ: Mapping[str, str],
    home: Path,
    kubeconfig: Path | None = None,
    context: str = "",
    terminal: bool = False,
    service_account: Path = FOLDER,
) -> Access:
    """Access by a named kubeconfig, else $KUBECONFIG, else the service account of this pod, else ~/.kube/config."""
    if kubeconfig is not None:
        return load_kubeconfig([kubeconfig], environ=environ, context=context, explicit=True, terminal=terminal)
    if not environ.get("KUBECONFIG") and not context and is_in_cluster(environ, service_account):
        return in_cluster(environ, service_account)
    return load_kubeconfig(kubeconfig_paths(environ, home), environ=environ, context=context, terminal=terminal)
