{{/* The pod of a hook's Job or of a test: (list $ account arguments). */}}
{{- define "shoal.hookPod" -}}
{{- $root := index . 0 -}}
metadata:
  labels: {app.kubernetes.io/name: {{ index . 1 }}, app.kubernetes.io/part-of: shoal}
spec:
  {{- include "shoal.hookSpec" . | nindent 2 }}
{{- end -}}

{{- define "shoal.hookSpec" -}}
{{- $root := index . 0 -}}
serviceAccountName: {{ index . 1 }}
restartPolicy: Never
{{- with include "shoal.pullSecrets" (list $root $root.Values.operator) }}
{{ . }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  seccompProfile: {type: RuntimeDefault}
{{- with $root.Values.operator.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
tolerations:
# A cluster of one node, which a driver that fails has left cordoned, must be repaired too.
- {key: node.kubernetes.io/unschedulable, operator: Exists, effect: NoSchedule}
{{- with $root.Values.operator.tolerations }}
{{ toYaml . }}
{{- end }}
containers:
- name: {{ index . 1 }}
  image: {{ include "shoal.image" $root }}
  {{- with $root.Values.operator.imagePullPolicy }}
  imagePullPolicy: {{ . }}
  {{- end }}
  args:
  {{- range index . 2 }}
  - {{ . | quote }}
  {{- end }}
  resources:
    requests: {cpu: 20m, memory: 64Mi}
    limits: {memory: 256Mi}
  securityContext:
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
    capabilities: {drop: [ALL]}
{{- end -}}
