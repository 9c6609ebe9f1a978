{{/*
The manifests of what runs on nodes, a file each: the data of ConfigMap shoal-operands. Its digest is an argument of the
operator, which applies nothing else: `sha256sum *.yaml | sha256sum` in a folder with these files prints the same.
*/}}
{{- define "shoal.operands" -}}
agent.yaml: |
  {{- include "shoal.operand.agent" . | nindent 2 }}
  ---
  {{- include "shoal.settings.agent" . | nindent 2 }}
mps.yaml: |
  {{- include "shoal.operand.mps" . | nindent 2 }}
{{- if .Values.nfd.enabled }}
discovery-bus.yaml: |
  {{- include "shoal.operand.discovery-bus" . | nindent 2 }}
{{- end }}
discovery-cards.yaml: |
  {{- include "shoal.operand.discovery-cards" . | nindent 2 }}
metrics.yaml: |
  {{- include "shoal.operand.metrics" . | nindent 2 }}
  ---
  {{- include "shoal.settings.metrics" . | nindent 2 }}
validator.yaml: |
  {{- include "shoal.operand.validator" . | nindent 2 }}
validator-runtime.yaml: |
  {{- include "shoal.operand.validator-runtime" . | nindent 2 }}
{{- if .Values.driver.enabled }}
driver.yaml: |
  {{- include "shoal.operand.driver" . | nindent 2 }}
  ---
  {{- include "shoal.settings.driver" . | nindent 2 }}
{{- end }}
toolkit.yaml: |
  {{- include "shoal.operand.toolkit" . | nindent 2 }}
  ---
  {{- include "shoal.settings.toolkit" . | nindent 2 }}
cleanup.yaml: |
  {{- include "shoal.operand.cleanup" . | nindent 2 }}
{{- end -}}

{{- define "shoal.operandsDigest" -}}
{{- $lines := "" -}}
{{- /* With an end of line, as the ConfigMap has it: the last file would lack its own. */ -}}
{{- range $name, $text := printf "%s\n" (include "shoal.operands" .) | fromYaml -}}
{{- $lines = printf "%s%s  %s\n" $lines (sha256sum $text) $name -}}
{{- end -}}
sha256:{{ sha256sum $lines }}
{{- end -}}

{{/* The ConfigMaps whose content runs on nodes: that one, and those that its files hold. */}}
{{- define "shoal.operandConfigMaps" -}}
'shoal-operands', 'shoal-agent', 'shoal-metrics', 'shoal-driver', 'shoal-toolkit'
{{- end -}}
