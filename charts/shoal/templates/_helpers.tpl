{{/* An image of three parts: (dict "repository" … "image" … "version" …). */}}
{{- define "shoal.reference" -}}
{{- with .repository }}{{ trimSuffix "/" . }}/{{ end -}}
{{- .image -}}
{{- with toString .version }}{{ if hasPrefix "sha256:" . }}@{{ else }}:{{ end }}{{ . }}{{ end }}
{{- end -}}

{{/* Shoal's own image: one for all services. */}}
{{- define "shoal.image" -}}
{{- $of := .Values.operator -}}
{{- $version := $of.version | default .Chart.AppVersion -}}
{{- include "shoal.reference" (dict "repository" $of.repository "image" $of.image "version" $version) -}}
{{- end -}}

{{/* The image of a component: its own where its section names one, Shoal's otherwise: (list $ section). */}}
{{- define "shoal.imageOf" -}}
{{- $of := index . 1 -}}
{{- if $of.version -}}
{{- include "shoal.reference" $of -}}
{{- else -}}
{{- $of.image | default (include "shoal.image" (index . 0)) -}}
{{- end -}}
{{- end -}}

{{/* Whose Secrets pull the images of a pod: (list $ section). */}}
{{- define "shoal.pullSecrets" -}}
{{- $root := index . 0 -}}
{{- $of := index . 1 -}}
{{- with concat ($root.Values.operator.imagePullSecrets | default list) ($of.imagePullSecrets | default list) | uniq -}}
imagePullSecrets:
{{- range . }}
- {name: {{ . }}}
{{- end }}
{{- end -}}
{{- end -}}

{{/* How a service account is called by the API server: (list $ name). */}}
{{- define "shoal.account" -}}
system:serviceaccount:{{ (index . 0).Release.Namespace }}:{{ index . 1 }}
{{- end -}}

{{/*
The nodes of an operand: (list $ part …), parts of the labels nvidia.com/gpu.deploy.*. With the operator it chooses nodes
by these labels: NVIDIA's driver manager takes them away from a node before it changes the driver, and waits for the pods
whose nodeSelector names them. Without it, every node that is labelled for GPUs by one of the three names in use.
*/}}
{{- define "shoal.nodes" -}}
{{- $root := first . -}}
{{- if $root.Values.operator.enabled -}}
nodeSelector:
{{- range rest . }}
  nvidia.com/gpu.deploy.{{ . }}: "true"
{{- end }}
{{- else -}}
affinity:
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms:
      - matchExpressions:
        - {key: gpushare, operator: In, values: ["true"]}
      - matchExpressions:
        - {key: gpu, operator: In, values: ["on"]}
      - matchExpressions:
        - {key: nvidia.com/gpu.present, operator: In, values: ["true"]}
{{- end -}}
{{- end -}}

{{/* What operands tolerate; with the operator the taint of a node that starts too. */}}
{{- define "shoal.tolerations" -}}
{{- $list := .Values.daemonsets.tolerations -}}
{{- if .Values.operator.enabled -}}
{{- $list = append $list (dict "key" "shoal.dev/starting" "operator" "Exists") -}}
{{- end -}}
{{- with $list -}}
tolerations:
{{ toYaml . }}
{{- end -}}
{{- end -}}

{{/* An operand's updates: (list $ maxUnavailable), the second where the values say nothing. */}}
{{- define "shoal.updates" -}}
{{- $of := (index . 0).Values.daemonsets -}}
updateStrategy:
  type: {{ $of.updateStrategy }}
{{- if eq $of.updateStrategy "RollingUpdate" }}
  rollingUpdate: {maxUnavailable: {{ $of.rollingUpdate.maxUnavailable | default (index . 1) }}}
{{- end }}
{{- end -}}

{{/* The labels of an operand's pods: (list $ name). */}}
{{- define "shoal.podMetadata" -}}
{{- $of := (index . 0).Values.daemonsets -}}
labels:
  app.kubernetes.io/name: {{ index . 1 }}
  app.kubernetes.io/part-of: shoal
{{- with $of.labels }}
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $of.annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Under NVIDIA's runtime, which brings the library by which cards are read. */}}
{{- define "shoal.runtime" -}}
{{- if and .Values.operator.enabled .Values.operator.runtimeClass -}}
runtimeClassName: {{ .Values.operator.runtimeClass }}
{{- end -}}
{{- end -}}

{{/* Waits for the file of a step before: (list $ file). */}}
{{- define "shoal.wait" -}}
{{- $root := index . 0 -}}
- name: wait-{{ index . 1 }}
  image: {{ include "shoal.imageOf" (list $root $root.Values.validator) }}
  {{- with $root.Values.validator.imagePullPolicy | default $root.Values.operator.imagePullPolicy }}
  imagePullPolicy: {{ . }}
  {{- end }}
  args: [validator, wait, {{ index . 1 }}]
  resources:
    requests: {cpu: 5m, memory: 32Mi}
    limits: {memory: 64Mi}
  securityContext:
    runAsUser: 65532
    runAsGroup: 65532
    runAsNonRoot: true
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
    capabilities: {drop: [ALL]}
  volumeMounts:
  - {name: validations, mountPath: /run/nvidia/validations, readOnly: true, mountPropagation: HostToContainer}
{{- end -}}

{{/* The newest version of resource.k8s.io that the cluster has and Shoal knows; empty if there is none. helm that asks no
cluster believes in all versions. */}}
{{- define "shoal.claimsVersion" -}}
{{- $kube := .Capabilities.KubeVersion.Version -}}
{{- if and (semverCompare ">=1.34.0-0" $kube) (.Capabilities.APIVersions.Has "resource.k8s.io/v1") -}}
resource.k8s.io/v1
{{- else if and (semverCompare ">=1.33.0-0" $kube) (.Capabilities.APIVersions.Has "resource.k8s.io/v1beta2") -}}
resource.k8s.io/v1beta2
{{- else if .Capabilities.APIVersions.Has "resource.k8s.io/v1beta1" -}}
resource.k8s.io/v1beta1
{{- end -}}
{{- end -}}

{{/*
"true" where a NetworkPolicy keeps the port of metrics to named clients. Host network pods are covered by no policy, and
all namespaces or all addresses are no named clients.
*/}}
{{- define "shoal.metricsProtected" -}}
{{- $policies := .Values.networkPolicies -}}
{{- $protected := false -}}
{{- if and $policies.enabled $policies.metricsFrom (not .Values.dcgmExporter.hostNetwork) -}}{{- $protected = true -}}{{- end -}}
{{- range $policies.metricsFrom -}}
{{- if and (hasKey . "namespaceSelector") (not .namespaceSelector) -}}{{- $protected = false -}}{{- end -}}
{{- if and (hasKey . "ipBlock") (hasSuffix "/0" (toString (.ipBlock | default dict).cidr)) -}}{{- $protected = false -}}{{- end -}}
{{- end -}}
{{- $protected -}}
{{- end -}}

{{/* The volume of the files by which steps wait for each other. */}}
{{- define "shoal.validations" -}}
- name: validations
  hostPath: {path: /run/nvidia/validations, type: DirectoryOrCreate}
{{- end -}}
