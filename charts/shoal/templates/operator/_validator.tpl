{{/* The checks of a node: of driver and plugin, and of what NVIDIA's runtime brings. */}}
{{- define "shoal.operand.validator" -}}
{{- $of := .Values.validator -}}
# Checks the driver of the node, its own or the container's, and what the node has to share, and tells both in one
# annotation of its node. Privileged, since nothing else opens the driver's devices to a container without NVIDIA's
# runtime, which need not be there yet. Of the capabilities it keeps the one by which it looks under the driver's root;
# containerd gives a privileged container all of them, and the program drops the others itself.
apiVersion: apps/v1
kind: DaemonSet
metadata:
  name: shoal-validator
  namespace: {{ .Release.Namespace }}
  labels: {app.kubernetes.io/name: shoal-validator, app.kubernetes.io/part-of: shoal}
spec:
  selector:
    matchLabels: {app.kubernetes.io/name: shoal-validator}
  {{- include "shoal.updates" (list . "10%") | nindent 2 }}
  template:
    metadata:
      {{- include "shoal.podMetadata" (list . "shoal-validator") | nindent 6 }}
    spec:
      serviceAccountName: shoal-validator
      priorityClassName: {{ .Values.daemonsets.priorityClassName }}
      terminationGracePeriodSeconds: 10
      {{- with include "shoal.pullSecrets" (list . $of) }}
      {{- . | nindent 6 }}
      {{- end }}
      {{- if $of.hostNetwork }}
      hostNetwork: true
      {{- end }}
      {{- include "shoal.nodes" (list . "operator-validator" "client") | nindent 6 }}
      {{- include "shoal.tolerations" . | nindent 6 }}
      containers:
      - name: validator
        image: {{ include "shoal.imageOf" (list . $of) }}
        {{- with $of.imagePullPolicy | default .Values.operator.imagePullPolicy }}
        imagePullPolicy: {{ . }}
        {{- end }}
        args:
        - validator
        - node
        - --port=9407
        {{- if ne .Values.hostPaths.rootFS "/" }}
        - --root-path={{ .Values.hostPaths.rootFS }}
        {{- end }}
        {{- if ne .Values.hostPaths.driverInstallDir "/run/nvidia/driver" }}
        - --driver-install-dir={{ .Values.hostPaths.driverInstallDir }}
        {{- end }}
        env:
        - name: NODE_NAME
          valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
        ports:
        - {name: http, containerPort: 9407}
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
          {{- toYaml $of.resources | nindent 10 }}
        securityContext:
          runAsUser: 0
          privileged: true
          readOnlyRootFilesystem: true
          capabilities: {drop: [ALL], add: [SYS_CHROOT]}
        volumeMounts:
        - {name: validations, mountPath: /run/nvidia/validations}
        - {name: host-root, mountPath: /host, readOnly: true, mountPropagation: HostToContainer}
        - {name: driver, mountPath: /run/nvidia/driver, readOnly: true, mountPropagation: HostToContainer}
      volumes:
      - name: host-root
        hostPath: {path: {{ .Values.hostPaths.rootFS }}, type: Directory}
      - name: driver
        hostPath: {path: {{ .Values.hostPaths.driverInstallDir }}, type: DirectoryOrCreate}
      {{- include "shoal.validations" . | nindent 6 }}
{{- end -}}

{{- define "shoal.operand.validator-runtime" -}}
{{- $of := .Values.validator -}}
# Checks that a container under NVIDIA's runtime has the cards of the node. Root, since the folder of the files is.
apiVersion: apps/v1
kind: DaemonSet
metadata:
  name: shoal-validator-runtime
  namespace: {{ .Release.Namespace }}
  labels: {app.kubernetes.io/name: shoal-validator-runtime, app.kubernetes.io/part-of: shoal}
spec:
  selector:
    matchLabels: {app.kubernetes.io/name: shoal-validator-runtime}
  {{- include "shoal.updates" (list . "10%") | nindent 2 }}
  template:
    metadata:
      {{- include "shoal.podMetadata" (list . "shoal-validator-runtime") | nindent 6 }}
    spec:
      # It tells what it finds by files of the node: it has no token.
      serviceAccountName: shoal-validator
      automountServiceAccountToken: false
      priorityClassName: {{ .Values.daemonsets.priorityClassName }}
      terminationGracePeriodSeconds: 10
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
      {{- include "shoal.nodes" (list . "operator-validator" "client") | nindent 6 }}
      {{- include "shoal.tolerations" . | nindent 6 }}
      initContainers:
      {{- include "shoal.wait" (list . "driver-ready") | nindent 6 }}
      containers:
      - name: validator
        image: {{ include "shoal.imageOf" (list . $of) }}
        {{- with $of.imagePullPolicy | default .Values.operator.imagePullPolicy }}
        imagePullPolicy: {{ . }}
        {{- end }}
        args: [validator, runtime, --port=9408]
        env:
        - {name: NVIDIA_VISIBLE_DEVICES, value: all}
        - {name: NVIDIA_DRIVER_CAPABILITIES, value: "utility,compute"}
        ports:
        - {name: http, containerPort: 9408}
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
          {{- toYaml $of.resources | nindent 10 }}
        securityContext:
          runAsUser: 0
          allowPrivilegeEscalation: false
          readOnlyRootFilesystem: true
          capabilities: {drop: [ALL]}
        volumeMounts:
        - {name: validations, mountPath: /run/nvidia/validations}
      volumes:
      {{- include "shoal.validations" . | nindent 6 }}
{{- end -}}
