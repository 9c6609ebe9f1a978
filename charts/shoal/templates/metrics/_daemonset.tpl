{{/* The collector: a DaemonSet, and its settings. */}}
{{- define "shoal.operand.metrics" -}}
{{- $of := .Values.dcgmExporter -}}
# Not root, without any capability, and not in the host's PID namespace: the host's /proc, mounted read-only, tells whose
# a process is, and everybody may read it. Root is needed once, to give the folder of the history to the collector.
# With MIG the driver lists processes to root alone: set runAsUser: 0 there, or they stay unattributed.
apiVersion: apps/v1
kind: DaemonSet
metadata:
  name: shoal-metrics
  namespace: {{ .Release.Namespace }}
  labels: {app.kubernetes.io/name: shoal-metrics, app.kubernetes.io/part-of: shoal}
spec:
  selector:
    matchLabels: {app.kubernetes.io/name: shoal-metrics}
  {{- include "shoal.updates" (list . "10%") | nindent 2 }}
  template:
    metadata:
      {{- include "shoal.podMetadata" (list . "shoal-metrics") | nindent 6 }}
    spec:
      serviceAccountName: shoal-metrics
      {{- if .Values.operator.enabled }}
      priorityClassName: {{ .Values.daemonsets.priorityClassName }}
      {{- end }}
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
      {{- include "shoal.nodes" (list . "dcgm-exporter" "client") | nindent 6 }}
      {{- include "shoal.tolerations" . | nindent 6 }}
      initContainers:
      {{- if .Values.operator.enabled }}
      {{- include "shoal.wait" (list . "toolkit-ready") | nindent 6 }}
      {{- end }}
      - name: history-folder
        image: {{ include "shoal.imageOf" (list . $of) }}
        {{- with $of.imagePullPolicy | default .Values.operator.imagePullPolicy }}
        imagePullPolicy: {{ . }}
        {{- end }}
        command: [/usr/bin/python3, -I, -c, "import os; os.chown('/var/lib/shoal/history', 65532, 65532)"]
        resources:
          requests: {cpu: 10m, memory: 16Mi}
          limits: {memory: 32Mi}
        securityContext:
          runAsUser: 0
          allowPrivilegeEscalation: false
          readOnlyRootFilesystem: true
          capabilities: {drop: [ALL], add: [CHOWN]}
        volumeMounts:
        - {name: history, mountPath: /var/lib/shoal/history}
      containers:
      - name: metrics
        image: {{ include "shoal.imageOf" (list . $of) }}
        {{- with $of.imagePullPolicy | default .Values.operator.imagePullPolicy }}
        imagePullPolicy: {{ . }}
        {{- end }}
        args: [metrics, --config=/etc/shoal/metrics.yaml]
        env:
        - name: NODE_NAME
          valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
        # NVIDIA's runtime brings the library by which the cards are read.
        - {name: NVIDIA_VISIBLE_DEVICES, value: all}
        - {name: NVIDIA_DRIVER_CAPABILITIES, value: utility}
        {{- with $of.env }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
        ports:
        - {name: metrics, containerPort: 9400}
        - {name: history, containerPort: 9401}
        {{- if .Values.metricsScores.enabled }}
        - {name: grpc, containerPort: 9323}
        - {name: grpc-v1, containerPort: 9000}
        {{- end }}
        # A collector without cards is alive: a restart would not bring them.
        livenessProbe:
          httpGet: {path: /healthz, port: metrics}
          initialDelaySeconds: 10
          periodSeconds: 10
          timeoutSeconds: 5
          failureThreshold: 6
        readinessProbe:
          httpGet: {path: /readyz, port: metrics}
          periodSeconds: 5
          timeoutSeconds: 2
        resources:
          {{- toYaml $of.resources | nindent 10 }}
        securityContext:
          runAsUser: 65532
          runAsGroup: 65532
          runAsNonRoot: true
          allowPrivilegeEscalation: false
          readOnlyRootFilesystem: true
          capabilities: {drop: [ALL]}
        volumeMounts:
        - {name: settings, mountPath: /etc/shoal, readOnly: true}
        - {name: proc, mountPath: /host/proc, readOnly: true}
        - {name: cgroups, mountPath: /sys/fs/cgroup, readOnly: true}
        - {name: history, mountPath: /var/lib/shoal/history}
        - {name: tmp, mountPath: /tmp}
        {{- if $of.secretName }}
        - {name: influx, mountPath: /etc/shoal-influx, readOnly: true}
        {{- end }}
      volumes:
      - name: settings
        configMap: {name: shoal-metrics}
      - name: proc
        hostPath: {path: /proc, type: Directory}
      - name: cgroups
        hostPath: {path: /sys/fs/cgroup, type: Directory}
      - name: history
        hostPath: {path: /var/lib/shoal/history, type: DirectoryOrCreate}
      - name: tmp
        emptyDir: {medium: Memory, sizeLimit: 16Mi}
      {{- with $of.secretName }}
      - name: influx
        secret: {secretName: {{ . }}, defaultMode: 0444}
      {{- end }}
      {{- if .Values.operator.enabled }}
      {{- include "shoal.validations" . | nindent 6 }}
      {{- end }}
{{- end -}}

{{- define "shoal.settings.metrics" -}}
{{- $set := .Values.dcgmExporter.settings -}}
# The settings of `shoal metrics`. Memory is counted in the unit that the scheduler and the agent count in.
apiVersion: v1
kind: ConfigMap
metadata:
  name: shoal-metrics
  namespace: {{ .Release.Namespace }}
  labels: {app.kubernetes.io/name: shoal-metrics, app.kubernetes.io/part-of: shoal}
data:
  metrics.yaml: |
    memoryUnit: {{ .Values.sharing.memoryUnit }}
    intervalSeconds: {{ $set.intervalSeconds }}
    procRoot: /host/proc
    cgroupRoot: /sys/fs/cgroup
    # Its disk is told as the node's.
    hostRoot: /var/lib/shoal/history
    overuseGraceSeconds: {{ $set.overuseGraceSeconds }}
    history: {folder: /var/lib/shoal/history}
    digest: {ttlSeconds: 180}
    # networkPolicy: whether network.yaml keeps port 9400 to named clients. Series then name pods.
    exporter: {podLabels: {{ $set.podLabels }}, networkPolicy: {{ include "shoal.metricsProtected" . }}}
    {{- if $set.influx.url }}
    influx:
      {{- range $key, $value := $set.influx }}
      {{- if ne (toString $value) "" }}
      {{ $key }}: {{ toJson $value }}
      {{- end }}
      {{- end }}
    {{- end }}
    {{- if .Values.metricsScores.enabled }}
    keti: {}
    {{- end }}
{{- end -}}
