{{/* NVIDIA's driver and container toolkit: its images, as its own operator runs them. */}}
{{- define "shoal.operand.driver" -}}
{{- $of := .Values.driver -}}
# NVIDIA's driver image. Before it the driver manager unloads the old driver; the operator evicts pods that have it open.
# It is replaced only when its pod is deleted: the operator does that node by node.
apiVersion: apps/v1
kind: DaemonSet
metadata:
  name: shoal-driver
  namespace: {{ .Release.Namespace }}
  labels: {app.kubernetes.io/name: shoal-driver, app.kubernetes.io/part-of: shoal, app.kubernetes.io/component: nvidia-driver}
spec:
  selector:
    matchLabels: {app.kubernetes.io/name: shoal-driver}
  updateStrategy: {type: OnDelete}
  template:
    metadata:
      labels:
        app.kubernetes.io/name: shoal-driver
        app.kubernetes.io/part-of: shoal
        # Two drivers on a node exclude each other by this, NVIDIA's own too.
        app.kubernetes.io/component: nvidia-driver
        {{- with .Values.daemonsets.labels }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- with .Values.daemonsets.annotations }}
      annotations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
    spec:
      serviceAccountName: shoal-driver
      priorityClassName: {{ .Values.daemonsets.priorityClassName }}
      hostPID: true
      {{- with include "shoal.pullSecrets" (list . $of) }}
      {{- . | nindent 6 }}
      {{- end }}
      {{- if $of.hostNetwork }}
      hostNetwork: true
      {{- end }}
      nodeSelector:
        nvidia.com/gpu.deploy.driver: "true"
      affinity:
        podAntiAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
          - topologyKey: kubernetes.io/hostname
            labelSelector:
              matchLabels: {app.kubernetes.io/component: nvidia-driver}
      {{- include "shoal.tolerations" . | nindent 6 }}
      initContainers:
      - name: k8s-driver-manager
        image: {{ include "shoal.reference" (merge (dict "repository" ($of.manager.repository | default $of.repository)) $of.manager) }}
        {{- with $of.manager.imagePullPolicy }}
        imagePullPolicy: {{ . }}
        {{- end }}
        command: [driver-manager]
        args: [uninstall_driver]
        env:
        - name: NODE_NAME
          valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
        - name: OPERATOR_NAMESPACE
          valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
        # Under the plain runtime, whatever the node's default is.
        - {name: NVIDIA_VISIBLE_DEVICES, value: void}
        {{- with $of.manager.env }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
        # The operator evicts: the manager's account cannot.
        - {name: ENABLE_GPU_POD_EVICTION, value: "false"}
        - {name: ENABLE_AUTO_DRAIN, value: "false"}
        securityContext: {privileged: true}
        volumeMounts:
        - {name: run-nvidia, mountPath: /run/nvidia, mountPropagation: Bidirectional}
        - {name: host-root, mountPath: /host, readOnly: true, mountPropagation: HostToContainer}
        - {name: host-sys, mountPath: /sys}
        - {name: run-mellanox-drivers, mountPath: /run/mellanox/drivers, mountPropagation: HostToContainer}
      containers:
      - name: nvidia-driver-ctr
        image: {{ include "shoal.reference" $of }}
        {{- with $of.imagePullPolicy }}
        imagePullPolicy: {{ . }}
        {{- end }}
        command: [nvidia-driver]
        args: [init]
        env:
        - name: NODE_NAME
          valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
        - name: NODE_IP
          valueFrom: {fieldRef: {fieldPath: status.hostIP}}
        - {name: NVIDIA_VISIBLE_DEVICES, value: void}
        - {name: KERNEL_MODULE_TYPE, value: {{ $of.kernelModuleType }}}
        {{- with $of.env }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
        {{- with $of.secretEnv }}
        envFrom:
        - secretRef: {name: {{ . }}}
        {{- end }}
        {{- with $of.resources }}
        resources:
          {{- toYaml . | nindent 10 }}
        {{- end }}
        securityContext:
          privileged: true
          seLinuxOptions: {level: s0}
        # Ready means loaded: it writes the file that the driver check waits for.
        startupProbe:
          exec: {command: [sh, /usr/local/bin/startup-probe.sh]}
          {{- toYaml $of.startupProbe | nindent 10 }}
        lifecycle:
          preStop:
            exec: {command: [/bin/sh, -c, rm -f /run/nvidia/validations/.driver-ctr-ready]}
        volumeMounts:
        - {name: run-nvidia, mountPath: /run/nvidia, mountPropagation: Bidirectional}
        - {name: run-nvidia-fabricmanager, mountPath: /run/nvidia-fabricmanager}
        - {name: run-nvidia-topologyd, mountPath: /run/nvidia-topologyd}
        - {name: var-log, mountPath: /var/log}
        - {name: dev-log, mountPath: /dev/log}
        - {name: host-os-release, mountPath: /host-etc/os-release, readOnly: true}
        - {name: mlnx-ofed-usr-src, mountPath: /run/mellanox/drivers/usr/src, mountPropagation: HostToContainer}
        - {name: run-mellanox-drivers, mountPath: /run/mellanox/drivers, mountPropagation: HostToContainer}
        - {name: host-sys-devices-system, mountPath: /sys/devices/system}
        - {name: firmware-search-path, mountPath: /sys/module/firmware_class/parameters/path}
        - {name: nv-firmware, mountPath: /lib/firmware}
        - {name: startup-probe, mountPath: /usr/local/bin/startup-probe.sh, subPath: startup-probe.sh}
      volumes:
      - name: run-nvidia
        hostPath: {path: /run/nvidia, type: DirectoryOrCreate}
      - name: run-nvidia-fabricmanager
        hostPath: {path: /run/nvidia-fabricmanager, type: DirectoryOrCreate}
      - name: run-nvidia-topologyd
        hostPath: {path: /run/nvidia-topologyd, type: DirectoryOrCreate}
      - name: var-log
        hostPath: {path: /var/log}
      - name: dev-log
        hostPath: {path: /dev/log}
      - name: host-os-release
        hostPath: {path: /etc/os-release}
      - name: mlnx-ofed-usr-src
        hostPath: {path: /run/mellanox/drivers/usr/src, type: DirectoryOrCreate}
      - name: run-mellanox-drivers
        hostPath: {path: /run/mellanox/drivers, type: DirectoryOrCreate}
      - name: host-root
        hostPath: {path: {{ .Values.hostPaths.rootFS }}}
      - name: host-sys
        hostPath: {path: /sys, type: Directory}
      - name: host-sys-devices-system
        hostPath: {path: /sys/devices/system, type: Directory}
      - name: firmware-search-path
        hostPath: {path: /sys/module/firmware_class/parameters/path}
      - name: nv-firmware
        hostPath: {path: /run/nvidia/driver/lib/firmware, type: DirectoryOrCreate}
      - name: startup-probe
        configMap: {name: shoal-driver, defaultMode: 0755}
{{- end -}}

{{- define "shoal.settings.driver" -}}
apiVersion: v1
kind: ConfigMap
metadata:
  name: shoal-driver
  namespace: {{ .Release.Namespace }}
  labels: {app.kubernetes.io/name: shoal-driver, app.kubernetes.io/part-of: shoal}
data:
  startup-probe.sh: |
    #!/bin/sh
    # Writes the file that the driver check waits for, once the module is loaded and answers.
    set -eu
    folder=/run/nvidia/validations
    mkdir -p "$folder"
    if [ ! -f /sys/module/nvidia/refcnt ]; then echo "the module nvidia is not loaded"; exit 1; fi
    if [ -f "$folder/.driver-daemons-status" ] && [ "$(cat "$folder/.driver-daemons-status")" != Ready ]; then
      echo "the driver's daemons: $(cat "$folder/.driver-daemons-status")"; exit 1
    fi
    nvidia-smi >/dev/null || { echo "nvidia-smi failed"; exit 1; }
    {
      echo "GDRCOPY_ENABLED: ${GDRCOPY_ENABLED:-false}"
      echo "GDS_ENABLED: ${GDS_ENABLED:-false}"
      echo "GPU_DIRECT_RDMA_ENABLED: ${GPU_DIRECT_RDMA_ENABLED:-false}"
    } >"$folder/.driver-ctr-ready.tmp"
    mv "$folder/.driver-ctr-ready.tmp" "$folder/.driver-ctr-ready"
{{- end -}}

{{- define "shoal.operand.toolkit" -}}
{{- $of := .Values.toolkit -}}
# NVIDIA's container toolkit image: it puts NVIDIA's runtime on the node and tells containerd of it. It reads the driver's
# place from the file of the driver check.
apiVersion: apps/v1
kind: DaemonSet
metadata:
  name: shoal-toolkit
  namespace: {{ .Release.Namespace }}
  labels: {app.kubernetes.io/name: shoal-toolkit, app.kubernetes.io/part-of: shoal}
spec:
  selector:
    matchLabels: {app.kubernetes.io/name: shoal-toolkit}
  {{- include "shoal.updates" (list . "1") | nindent 2 }}
  template:
    metadata:
      {{- include "shoal.podMetadata" (list . "shoal-toolkit") | nindent 6 }}
    spec:
      automountServiceAccountToken: false
      priorityClassName: {{ .Values.daemonsets.priorityClassName }}
      hostPID: true
      {{- with include "shoal.pullSecrets" (list . $of) }}
      {{- . | nindent 6 }}
      {{- end }}
      {{- if $of.hostNetwork }}
      hostNetwork: true
      {{- end }}
      nodeSelector:
        nvidia.com/gpu.deploy.container-toolkit: "true"
      {{- include "shoal.tolerations" . | nindent 6 }}
      initContainers:
      {{- include "shoal.wait" (list . "driver-ready") | nindent 6 }}
      containers:
      - name: nvidia-container-toolkit-ctr
        image: {{ include "shoal.reference" $of }}
        {{- with $of.imagePullPolicy }}
        imagePullPolicy: {{ . }}
        {{- end }}
        command: [/bin/sh, -c]
        args: [/bin/entrypoint.sh]
        env:
        - {name: ROOT, value: {{ $of.installDir }}}
        - {name: NVIDIA_VISIBLE_DEVICES, value: void}
        - {name: NVIDIA_CONTAINER_RUNTIME_MODES_CDI_DEFAULT_KIND, value: management.nvidia.com/gpu}
        - {name: TOOLKIT_PID_FILE, value: /run/nvidia/toolkit/toolkit.pid}
        - {name: RUNTIME, value: containerd}
        - {name: CONTAINERD_RUNTIME_CLASS, value: {{ .Values.operator.runtimeClass | default "nvidia" }}}
        - {name: RUNTIME_CONFIG, value: /runtime/config-dir/config.toml}
        - {name: CONTAINERD_CONFIG, value: /runtime/config-dir/config.toml}
        - {name: RUNTIME_DROP_IN_CONFIG, value: /runtime/config-dir.d/99-nvidia.toml}
        - {name: RUNTIME_DROP_IN_CONFIG_HOST_PATH, value: /etc/containerd/conf.d/99-nvidia.toml}
        - {name: RUNTIME_SOCKET, value: /runtime/sock-dir/containerd.sock}
        - {name: CONTAINERD_SOCKET, value: /runtime/sock-dir/containerd.sock}
        {{- if .Values.cdi.enabled }}
        - {name: CDI_ENABLED, value: "true"}
        - {name: NVIDIA_RUNTIME_SET_AS_DEFAULT, value: "false"}
        - {name: NVIDIA_CONTAINER_RUNTIME_MODE, value: cdi}
        {{- end }}
        {{- with $of.env }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
        {{- with $of.resources }}
        resources:
          {{- toYaml . | nindent 10 }}
        {{- end }}
        securityContext:
          privileged: true
          seLinuxOptions: {level: s0}
        volumeMounts:
        - {name: entrypoint, mountPath: /bin/entrypoint.sh, subPath: entrypoint.sh, readOnly: true}
        - {name: toolkit-root, mountPath: /run/nvidia/toolkit}
        - {name: validations, mountPath: /run/nvidia/validations}
        - {name: install-dir, mountPath: {{ $of.installDir }}}
        - {name: driver, mountPath: /driver-root, mountPropagation: HostToContainer}
        - {name: host-root, mountPath: /host, readOnly: true, mountPropagation: HostToContainer}
        - {name: cdi, mountPath: /var/run/cdi}
        - {name: containerd-config, mountPath: /runtime/config-dir/}
        - {name: containerd-drop-in, mountPath: /runtime/config-dir.d/}
        - {name: containerd-socket, mountPath: /runtime/sock-dir/}
      volumes:
      - name: entrypoint
        configMap: {name: shoal-toolkit, defaultMode: 0700}
      - name: toolkit-root
        hostPath: {path: /run/nvidia/toolkit, type: DirectoryOrCreate}
      - name: install-dir
        hostPath: {path: {{ $of.installDir }}, type: DirectoryOrCreate}
      - name: driver
        hostPath: {path: {{ .Values.hostPaths.driverInstallDir }}, type: DirectoryOrCreate}
      - name: host-root
        hostPath: {path: {{ .Values.hostPaths.rootFS }}}
      - name: cdi
        hostPath: {path: /var/run/cdi, type: DirectoryOrCreate}
      - name: containerd-config
        hostPath: {path: /etc/containerd, type: DirectoryOrCreate}
      - name: containerd-drop-in
        hostPath: {path: /etc/containerd/conf.d, type: DirectoryOrCreate}
      - name: containerd-socket
        hostPath: {path: /run/containerd}
      {{- include "shoal.validations" . | nindent 6 }}
{{- end -}}

{{- define "shoal.settings.toolkit" -}}
apiVersion: v1
kind: ConfigMap
metadata:
  name: shoal-toolkit
  namespace: {{ .Release.Namespace }}
  labels: {app.kubernetes.io/name: shoal-toolkit, app.kubernetes.io/part-of: shoal}
data:
  entrypoint.sh: |
    #!/bin/sh
    # Where the driver is stands in the file of the driver check; after a reboot that comes again.
    until [ -f /run/nvidia/validations/driver-ready ]; do echo "waits for the driver check"; sleep 5; done
    set -o allexport
    . /run/nvidia/validations/driver-ready
    # A containerd that restarts may end this container once more: not at once, or it goes round for ever.
    sleep 5
    exec nvidia-toolkit
{{- end -}}
