{{/* The MPS daemon; its settings are the agent's. */}}
{{- define "shoal.operand.mps" -}}
{{- $of := .Values.devicePlugin -}}
# The MPS daemon. It tells its clients apart by their PIDs on the host, and shares memory with them.
apiVersion: apps/v1
kind: DaemonSet
metadata:
  name: shoal-mps
  namespace: {{ .Release.Namespace }}
  labels: {app.kubernetes.io/name: shoal-mps, app.kubernetes.io/part-of: shoal}
spec:
  selector:
    matchLabels: {app.kubernetes.io/name: shoal-mps}
  updateStrategy: {type: OnDelete}
  template:
    metadata:
      {{- include "shoal.podMetadata" (list . "shoal-mps") | nindent 6 }}
    spec:
      automountServiceAccountToken: false
      priorityClassName: {{ .Values.daemonsets.priorityClassName }}
      terminationGracePeriodSeconds: 5
      hostPID: true
      {{- with include "shoal.runtime" . }}
      {{- . | nindent 6 }}
      {{- end }}
      {{- with include "shoal.pullSecrets" (list . $of) }}
      {{- . | nindent 6 }}
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
      - name: mps
        image: {{ include "shoal.imageOf" (list . $of) }}
        {{- with $of.imagePullPolicy | default .Values.operator.imagePullPolicy }}
        imagePullPolicy: {{ . }}
        {{- end }}
        args: [agent, --config=/etc/shoal/agent.yaml, --mps-only]
        env:
        - name: NODE_NAME
          valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
        - {name: NVIDIA_VISIBLE_DEVICES, value: all}
        - {name: NVIDIA_DRIVER_CAPABILITIES, value: "utility,compute"}
        resources:
          requests: {cpu: 20m, memory: 64Mi}
        securityContext:
          runAsUser: 0
          allowPrivilegeEscalation: false
          readOnlyRootFilesystem: true
          capabilities: {drop: [ALL]}
        volumeMounts:
        - {name: settings, mountPath: /etc/shoal, readOnly: true}
        - {name: mps, mountPath: /tmp/nvidia-mps}
        - {name: mps-logs, mountPath: /var/log/nvidia-mps}
        - {name: shm, mountPath: /dev/shm}
      volumes:
      - name: settings
        configMap: {name: shoal-agent}
      - name: mps
        hostPath: {path: /tmp/nvidia-mps, type: DirectoryOrCreate}
      - name: mps-logs
        hostPath: {path: /var/log/nvidia-mps, type: DirectoryOrCreate}
      - name: shm
        hostPath: {path: /run/shoal/shm, type: DirectoryOrCreate}
      {{- if .Values.operator.enabled }}
      {{- include "shoal.validations" . | nindent 6 }}
      {{- end }}
{{- end -}}
