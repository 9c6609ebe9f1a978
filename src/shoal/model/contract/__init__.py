"""Names other programs know, and what their values mean: the only place where these strings are written.

- `gpushare`: Aliyun's `aliyun.com/gpu-mem` family, with the names only ACK uses.
- `keti`: KETI-ExaScale's `keti.com/mpsgpu` family, its policy ConfigMap and its gRPC services.
- `nvidia`: `nvidia.com/gpu`, node labels, CUDA and container-runtime environment, kubelet's sockets.
- `groups`: pods that are placed together, by the labels in use.
- `kubernetes`: labels, taints and annotations of Kubernetes itself that scheduling reads or writes.
- `dra`: shares as claims (dynamic resource allocation): the driver, its devices, their capacity.
- `shoal`: Shoal's own, under `shoal.dev/`.
- `text`: how a value is read from an annotation, with its bounds; no names.

Each family holds its constants first and then its codecs. A decoder raises `CodecError` and nothing else, whatever the
annotation holds; a decoder that returns None found no record of its family. Nothing here talks to Kubernetes.
"""
