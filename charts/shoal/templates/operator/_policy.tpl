{{/*
The spec of the ClusterPolicy: the sections that it has, of the values with the same names. Left out is what only the
chart needs, and whatever says no more than the default.
*/}}
{{- define "shoal.policy" -}}
{{- $values := .Values -}}
{{- $spec := dict -}}
{{- range $name := list "daemonsets" "toolkit" "devicePlugin" "sharing" "dcgmExporter" "gfd" "validator" "mig" "cdi" "hostPaths" "sandboxWorkloads" "driver" -}}
{{- $_ := set $spec $name (deepCopy (get $values $name)) -}}
{{- end -}}
{{- $_ := set $spec "operator" (pick $values.operator "runtimeClass" "startupTaint") -}}
{{- range $name := list "toolkit" "devicePlugin" "dcgmExporter" "gfd" "validator" "driver" -}}
{{- $of := get $spec $name -}}
{{- /* The image: whole, or none. The names of NVIDIA's images alone name none. */ -}}
{{- if not $of.version -}}
{{- if and (not (contains "/" $of.image)) (not (contains ":" $of.image)) -}}
{{- $_ := unset $of "image" -}}
{{- end -}}
{{- $_ := unset $of "version" -}}
{{- $_ := unset $of "repository" -}}
{{- end -}}
{{- $_ := set $of "imagePullPolicy" ($of.imagePullPolicy | default $values.operator.imagePullPolicy | default "IfNotPresent") -}}
{{- end -}}
{{- $driver := $spec.driver -}}
{{- $manager := $driver.manager -}}
{{- $_ := set $manager "repository" ($manager.repository | default $driver.repository) -}}
{{- if not $manager.repository -}}
{{- $_ := set $driver "manager" (omit $manager "repository" "image" "version") -}}
{{- end -}}
{{- $upgrade := $driver.upgradePolicy -}}
{{- $_ := set $upgrade "podDeletion" $upgrade.gpuPodDeletion -}}
{{- $_ := set $driver "upgradePolicy" (omit $upgrade "gpuPodDeletion") -}}
{{- if not $spec.daemonsets.rollingUpdate.maxUnavailable -}}
{{- $_ := unset $spec.daemonsets "rollingUpdate" -}}
{{- end -}}
{{- $_ := set $spec.devicePlugin "config" (omit $spec.devicePlugin.config "create" "data") -}}
{{- $_ := set $spec "dcgmExporter" (omit $spec.dcgmExporter "service" "serviceMonitor" "secretName") -}}
{{- $_ := set $spec.dcgmExporter "config" (omit ($spec.dcgmExporter.config | default dict) "create" "data") -}}
{{- /* What Shoal has not: told in the policy's status where it is switched on, and left out where it is off. */ -}}
{{- range $name := list "dcgm" "migManager" "nodeStatusExporter" "gds" "gdrcopy" "vgpuManager" "vgpuDeviceManager" "vfioManager" "sandboxDevicePlugin" "kataSandboxDevicePlugin" "kataManager" "ccManager" -}}
{{- if (get $values $name).enabled -}}
{{- $_ := set $spec $name (dict "enabled" true) -}}
{{- end -}}
{{- end -}}
{{- toYaml $spec -}}
{{- end -}}
