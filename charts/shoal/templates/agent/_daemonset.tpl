{{/* The agent: a DaemonSet, and its settings. */}}
{{- define "shoal.operand.agent" -}}
{{- $of := .Values.devicePlugin -}}
{{- $mps := or .Values.operator.enabled .Values.sharing.mps -}}
{{- $claims := .Values.sharing.claims -}}
# Root, since kubelet's sockets, the CDI folder and the limits of cgroups are root's; without any capability, and not
# privileged.
apiVersion: apps/v1
kind: DaemonSet
metadata:
  name: shoal-agent
  namespace: {{ .Release.Namespace }}
  labels: {app.kubernetes.io/name: shoal-agent, app.kubernetes.io/part-of: shoal}
spec:
  selector:
    matchLabels: {app.kubernetes.io/name: shoal-agent}
  {{- include "shoal.updates" (list . "1") | nindent 2 }}
  template:
    metadata:
      {{- include "shoal.podMetadata" (list . "shoal-agent") | nindent 6 }}
    spec:
      serviceAccountName: shoal-agent
      priorityClassName: {{ .Values.daemonsets.priorityClassName }}
      terminationGracePeriodSeconds: 5
      {{- with include "shoal.runtime" . }}
      {{- . | nindent 6 }}
      {{- end }}
      {{- with include "shoal.pullSecrets" (list . $of) }}
      {{- . | nindent 6 }}
      {{- end }}
      {{- if $of.hostNetwork }}
      hostNetwork: true
      {{- end }}
      securityContext:
        seccompProfile: {type: RuntimeDefault}
      {{- include "shoal.nodes" (list . "device-plugin" "client") | nindent 6 }}
      {{- include "shoal.tolerations" . | nindent 6 }}
      {{- if .Values.operator.enabled }}
      initContainers:
      {{- include "shoal.wait" (list . "toolkit-ready") | nindent 6 }}
      {{- end }}
      containers:
      - name: agent
        image: {{ include "shoal.imageOf" (list . $of) }}
        {{- with $of.imagePullPolicy | default .Values.operator.imagePullPolicy }}
        imagePullPolicy: {{ . }}
        {{- end }}
        args:
        - agent
        - --config=/etc/shoal/agent.yaml
        - --dev=/host/dev
        {{- if $mps }}
        - --proc=/host/proc
        {{- end }}
        {{- if $claims }}
        - --host-plugins={{ .Values.hostPaths.kubeletRootDir }}/plugins
        {{- end }}
        {{- if not .Values.operator.enabled }}
        {{- range $of.args }}
        - {{ . | quote }}
        {{- end }}
        {{- end }}
        env:
        - name: NODE_NAME
          valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
        # NVIDIA's runtime brings the library by which the cards are read{{ if $mps }}, and MPS' control program{{ end }}.
        - {name: NVIDIA_VISIBLE_DEVICES, value: all}
        - {name: NVIDIA_DRIVER_CAPABILITIES, value: {{ $mps | ternary "\"utility,compute\"" "utility" }}}
        {{- with $of.env }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
        ports:
        - {name: http, containerPort: 9402}
        livenessProbe:
          httpGet: {path: /healthz, port: http}
          initialDelaySeconds: 10
          periodSeconds: 10
          timeoutSeconds: 5
          failureThreshold: 6
        readinessProbe:
          httpGet: {path: /readyz, port: http}
          periodSeconds: 5
          timeoutSeconds: 2
        resources:
          {{- toYaml $of.resources | nindent 10 }}
        securityContext:
          runAsUser: 0
          allowPrivilegeEscalation: false
          readOnlyRootFilesystem: true
          capabilities: {drop: [ALL]}
        volumeMounts:
        - {name: settings, mountPath: /etc/shoal, readOnly: true}
        - {name: device-plugins, mountPath: /var/lib/kubelet/device-plugins}
        - {name: pod-resources, mountPath: /var/lib/kubelet/pod-resources}
        {{- if $claims }}
        # Of the DRA driver: its own folder, and where kubelet looks for it.
        - {name: plugins, mountPath: /var/lib/kubelet/plugins/gpu.shoal.dev}
        - {name: plugins-registry, mountPath: /var/lib/kubelet/plugins_registry}
        {{- end }}
        - {name: cdi, mountPath: /var/run/cdi}
        - {name: vendor-cdi, mountPath: /etc/cdi, readOnly: true}
        - {name: dev, mountPath: /host/dev, readOnly: true}
        # Walls around shares: the socket that hooks ask, their program, and the cgroups that NVIDIA's library limits.
        # The host knows them by the same paths.
        - {name: run, mountPath: /run/shoal}
        - {name: programs, mountPath: /var/lib/shoal}
        - {name: cgroups, mountPath: /sys/fs/cgroup}
        {{- if $mps }}
        - {name: mps, mountPath: /tmp/nvidia-mps}
        - {name: mps-logs, mountPath: /var/log/nvidia-mps}
        # Which pod an MPS client belongs to.
        - {name: proc, mountPath: /host/proc, readOnly: true}
        {{- end }}
      volumes:
      - name: settings
        configMap: {name: shoal-agent}
      - name: device-plugins
        hostPath: {path: {{ .Values.hostPaths.kubeletRootDir }}/device-plugins, type: Directory}
      - name: pod-resources
        hostPath: {path: {{ .Values.hostPaths.kubeletRootDir }}/pod-resources, type: Directory}
      {{- if $claims }}
      - name: plugins
        hostPath: {path: {{ .Values.hostPaths.kubeletRootDir }}/plugins/gpu.shoal.dev, type: DirectoryOrCreate}
      - name: plugins-registry
        hostPath: {path: {{ .Values.hostPaths.kubeletRootDir }}/plugins_registry, type: DirectoryOrCreate}
      {{- end }}
      - name: cdi
        hostPath: {path: /var/run/cdi, type: DirectoryOrCreate}
      - name: vendor-cdi
        hostPath: {path: /etc/cdi, type: DirectoryOrCreate}
      - name: dev
        hostPath: {path: /dev, type: Directory}
      - name: run
        hostPath: {path: /run/shoal, type: DirectoryOrCreate}
      - name: programs
        hostPath: {path: /var/lib/shoal, type: DirectoryOrCreate}
      - name: cgroups
        hostPath: {path: /sys/fs/cgroup, type: Directory}
      {{- if $mps }}
      - name: mps
        hostPath: {path: /tmp/nvidia-mps, type: DirectoryOrCreate}
      - name: mps-logs
        hostPath: {path: /var/log/nvidia-mps, type: DirectoryOrCreate}
      - name: proc
        hostPath: {path: /proc, type: Directory}
      {{- end }}
      {{- if .Values.operator.enabled }}
      {{- include "shoal.validations" . | nindent 6 }}
      {{- end }}
{{- end -}}

{{- define "shoal.settings.agent" -}}
{{- $of := .Values.devicePlugin -}}
{{- $set := .Values.sharing -}}
# The settings of `shoal agent`. Memory is counted in the unit that the scheduler and the admission policies count in.
apiVersion: v1
kind: ConfigMap
metadata:
  name: shoal-agent
  namespace: {{ .Release.Namespace }}
  labels: {app.kubernetes.io/name: shoal-agent, app.kubernetes.io/part-of: shoal}
data:
  agent.yaml: |
    memoryUnit: {{ $set.memoryUnit }}
    resources: [{{ join ", " $set.resources }}]
    mpsClients: {{ $set.mpsClients }}
    counting: {{ $set.counting }}
    deviceListStrategy: {{ $set.deviceListStrategy }}
    withoutAllocation: {{ $set.withoutAllocation }}
    isolation: {{ $set.isolation }}
    {{- if $set.claims }}
    claims: true
    {{- end }}
    limitHook: /usr/libexec/shoal/shoal-limit
    port: 9402
    {{- if $of.config.name }}
    nvidiaConfigMap: {{ .Release.Namespace }}/{{ $of.config.name }}
    {{- with $of.config.default }}
    nvidiaConfigDefault: {{ . }}
    {{- end }}
    {{- end }}
    {{- if $set.mps }}
    mpsProgram: nvidia-cuda-mps-control
    mpsStart: false
    mpsSharedMemory: /run/shoal/shm
    {{- end }}
{{- end -}}
