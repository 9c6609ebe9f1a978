{{/* Removes from nodes what Shoal has put there, while it is uninstalled. */}}
{{- define "shoal.operand.cleanup" -}}
# Its pods come to nodes that uninstalling has labelled: a container removes files and ends, and the pod is ready then.
# Root, since what was put on the node is root's, and some of it the collector's.
apiVersion: apps/v1
kind: DaemonSet
metadata:
  name: shoal-cleanup
  namespace: {{ .Release.Namespace }}
  labels: {app.kubernetes.io/name: shoal-cleanup, app.kubernetes.io/part-of: shoal}
spec:
  selector:
    matchLabels: {app.kubernetes.io/name: shoal-cleanup}
  updateStrategy:
    type: RollingUpdate
    rollingUpdate: {maxUnavailable: 100%}
  template:
    metadata:
      {{- include "shoal.podMetadata" (list . "shoal-cleanup") | nindent 6 }}
    spec:
      automountServiceAccountToken: false
      priorityClassName: {{ .Values.daemonsets.priorityClassName }}
      terminationGracePeriodSeconds: 5
      {{- with include "shoal.pullSecrets" (list . .Values.validator) }}
      {{- . | nindent 6 }}
      {{- end }}
      securityContext:
        seccompProfile: {type: RuntimeDefault}
      nodeSelector:
        shoal.dev/cleanup: "true"
      # Whatever became of the node meanwhile.
      tolerations:
      - operator: Exists
      initContainers:
      - name: files
        image: {{ include "shoal.image" . }}
        {{- with .Values.operator.imagePullPolicy }}
        imagePullPolicy: {{ . }}
        {{- end }}
        args: [uninstall, --node, --root=/host]
        resources:
          requests: {cpu: 5m, memory: 32Mi}
          limits: {memory: 128Mi}
        securityContext:
          runAsUser: 0
          allowPrivilegeEscalation: false
          readOnlyRootFilesystem: true
          capabilities: {drop: [ALL], add: [DAC_OVERRIDE]}
        volumeMounts:
        - {name: run, mountPath: /host/run}
        - {name: etc, mountPath: /host/etc}
        - {name: var-lib, mountPath: /host/var/lib}
        - {name: tmp, mountPath: /host/tmp}
        - {name: var-log, mountPath: /host/var/log}
        {{- if ne .Values.hostPaths.kubeletRootDir "/var/lib/kubelet" }}
        - {name: device-plugins, mountPath: /host/var/lib/kubelet/device-plugins}
        {{- if .Values.sharing.claims }}
        - {name: plugins, mountPath: /host/var/lib/kubelet/plugins}
        - {name: plugins-registry, mountPath: /host/var/lib/kubelet/plugins_registry}
        {{- end }}
        {{- end }}
      containers:
      - name: done
        image: {{ include "shoal.image" . }}
        {{- with .Values.operator.imagePullPolicy }}
        imagePullPolicy: {{ . }}
        {{- end }}
        args: [uninstall, --idle]
        resources:
          requests: {cpu: 5m, memory: 32Mi}
          limits: {memory: 128Mi}
        securityContext:
          runAsUser: 65532
          runAsGroup: 65532
          runAsNonRoot: true
          allowPrivilegeEscalation: false
          readOnlyRootFilesystem: true
          capabilities: {drop: [ALL]}
      volumes:
      - name: run
        hostPath: {path: /run, type: Directory}
      - name: etc
        hostPath: {path: /etc, type: Directory}
      - name: var-lib
        hostPath: {path: /var/lib, type: Directory}
      - name: tmp
        hostPath: {path: /tmp, type: Directory}
      - name: var-log
        hostPath: {path: /var/log, type: Directory}
      {{- if ne .Values.hostPaths.kubeletRootDir "/var/lib/kubelet" }}
      - name: device-plugins
        hostPath: {path: {{ .Values.hostPaths.kubeletRootDir }}/device-plugins, type: Directory}
      {{- if .Values.sharing.claims }}
      - name: plugins
        hostPath: {path: {{ .Values.hostPaths.kubeletRootDir }}/plugins, type: DirectoryOrCreate}
      - name: plugins-registry
        hostPath: {path: {{ .Values.hostPaths.kubeletRootDir }}/plugins_registry, type: DirectoryOrCreate}
      {{- end }}
      {{- end }}
{{- end -}}
