{{/* The workers of discovery, of nodes without and with a known card; their settings, which the leader has too. */}}
{{- define "shoal.operand.discovery-bus" -}}
# Not root and without any capability: everybody may read the bus, and NVIDIA's driver tells everybody of its cards. What
# a virtual GPU runs on is told to root alone, and is left out.
#
# Nodes of which no card is known have the worker that reads the bus; it needs nothing of NVIDIA's.
apiVersion: apps/v1
kind: DaemonSet
metadata:
  name: shoal-discovery-bus
  namespace: {{ .Release.Namespace }}
  labels: {app.kubernetes.io/name: shoal-discovery-bus, app.kubernetes.io/part-of: shoal}
spec:
  selector:
    matchLabels: {app.kubernetes.io/name: shoal-discovery-bus}
  {{- include "shoal.updates" (list . "10%") | nindent 2 }}
  template:
    metadata:
      {{- include "shoal.podMetadata" (list . "shoal-discovery-bus") | nindent 6 }}
    spec:
      serviceAccountName: shoal-discovery-worker
      {{- if .Values.operator.enabled }}
      priorityClassName: {{ (index .Values "node-feature-discovery").priorityClassName | default .Values.daemonsets.priorityClassName }}
      {{- end }}
      terminationGracePeriodSeconds: 5
      {{- with include "shoal.pullSecrets" (list . .Values.gfd) }}
      {{- . | nindent 6 }}
      {{- end }}
      securityContext:
        seccompProfile: {type: RuntimeDefault}
      affinity:
        nodeAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
            nodeSelectorTerms:
            - matchExpressions:
              - {key: nvidia.com/gpu.present, operator: NotIn, values: ["true"]}
      tolerations:
      {{- toYaml (concat .Values.daemonsets.tolerations ((index .Values "node-feature-discovery").worker.tolerations | default list) | uniq) | nindent 6 }}
      {{- if .Values.operator.enabled }}
      - {key: shoal.dev/starting, operator: Exists}
      {{- end }}
      {{- include "shoal.worker" (list . "--no-driver") | nindent 6 }}
{{- end -}}

{{- define "shoal.operand.discovery-cards" -}}
# Nodes with a card have the worker that asks the driver too.
apiVersion: apps/v1
kind: DaemonSet
metadata:
  name: shoal-discovery-cards
  namespace: {{ .Release.Namespace }}
  labels: {app.kubernetes.io/name: shoal-discovery-cards, app.kubernetes.io/part-of: shoal}
spec:
  selector:
    matchLabels: {app.kubernetes.io/name: shoal-discovery-cards}
  {{- include "shoal.updates" (list . "10%") | nindent 2 }}
  template:
    metadata:
      {{- include "shoal.podMetadata" (list . "shoal-discovery-cards") | nindent 6 }}
    spec:
      serviceAccountName: shoal-discovery-worker
      {{- if .Values.operator.enabled }}
      priorityClassName: {{ .Values.daemonsets.priorityClassName }}
      {{- end }}
      terminationGracePeriodSeconds: 5
      {{- with include "shoal.runtime" . }}
      {{- . | nindent 6 }}
      {{- end }}
      {{- with include "shoal.pullSecrets" (list . .Values.gfd) }}
      {{- . | nindent 6 }}
      {{- end }}
      {{- if .Values.gfd.hostNetwork }}
      hostNetwork: true
      {{- end }}
      securityContext:
        seccompProfile: {type: RuntimeDefault}
      {{- if .Values.operator.enabled }}
      {{- include "shoal.nodes" (list . "gpu-feature-discovery" "client") | nindent 6 }}
      {{- else }}
      affinity:
        nodeAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
            nodeSelectorTerms:
            - matchExpressions:
              - {key: nvidia.com/gpu.present, operator: In, values: ["true"]}
      {{- end }}
      {{- include "shoal.tolerations" . | nindent 6 }}
      {{- if .Values.operator.enabled }}
      initContainers:
      {{- include "shoal.wait" (list . "toolkit-ready") | nindent 6 }}
      {{- end }}
      {{- include "shoal.worker" (list .) | nindent 6 }}
      {{- if .Values.operator.enabled }}
      {{- include "shoal.validations" . | nindent 6 }}
      {{- end }}
{{- end -}}

{{/* (list $ argument …); with the argument --no-driver nothing of NVIDIA's is brought. */}}
{{- define "shoal.worker" -}}
{{- $root := first . -}}
{{- $of := $root.Values.gfd -}}
containers:
- name: worker
  image: {{ include "shoal.imageOf" (list $root $of) }}
  {{- with $of.imagePullPolicy | default $root.Values.operator.imagePullPolicy }}
  imagePullPolicy: {{ . }}
  {{- end }}
  args: [discovery, --config=/etc/shoal/discovery.yaml, --port=9406{{ range rest . }}, {{ . }}{{ end }}]
  env:
  - name: NODE_NAME
    valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
  {{- if not (rest .) }}
  # NVIDIA's runtime brings the library by which the cards are read.
  - {name: NVIDIA_VISIBLE_DEVICES, value: all}
  - {name: NVIDIA_DRIVER_CAPABILITIES, value: utility}
  {{- end }}
  {{- with $of.env }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  ports:
  - {name: http, containerPort: 9406}
  livenessProbe:
    httpGet: {path: /healthz, port: http}
    initialDelaySeconds: 10
    periodSeconds: 20
    timeoutSeconds: 5
    failureThreshold: 6
  readinessProbe:
    httpGet: {path: /readyz, port: http}
    periodSeconds: 5
    timeoutSeconds: 2
  resources:
    {{- toYaml $of.resources | nindent 4 }}
  securityContext:
    runAsUser: 65532
    runAsGroup: 65532
    runAsNonRoot: true
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
    capabilities: {drop: [ALL]}
  volumeMounts:
  - {name: settings, mountPath: /etc/shoal, readOnly: true}
volumes:
- name: settings
  configMap: {name: shoal-discovery}
{{- end -}}

{{- define "shoal.settings.discovery" -}}
{{- $of := .Values.devicePlugin.config -}}
# The settings of `shoal discovery`, of workers and of the leader. nvidiaConfigMap is the one of the agent.
apiVersion: v1
kind: ConfigMap
metadata:
  name: shoal-discovery
  namespace: {{ .Release.Namespace }}
  labels: {app.kubernetes.io/name: shoal-discovery, app.kubernetes.io/part-of: shoal}
data:
  discovery.yaml: |
    intervalSeconds: {{ .Values.gfd.settings.intervalSeconds }}
    sysRoot: /sys
    graceSeconds: {{ .Values.discovery.graceSeconds }}
    writers: 16
    leaseNamespace: {{ .Release.Namespace }}
    leaseName: shoal-discovery
    {{- if $of.name }}
    nvidiaConfigMap: {{ .Release.Namespace }}/{{ $of.name }}
    {{- with $of.default }}
    nvidiaConfigDefault: {{ . }}
    {{- end }}
    {{- end }}
{{- end -}}
