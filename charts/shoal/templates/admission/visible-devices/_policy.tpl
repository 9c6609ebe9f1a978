{{/*
Keeps containers from choosing cards themselves.
(dict "root" $ "kind" "pods"), or templates, or cronjobs, or bindings: where the pod template is in the object.
*/}}
{{- define "shoal.admission.visible-devices" -}}
{{- $at := get (dict "pods" "object" "bindings" "object" "templates" "object.spec.template" "cronjobs" "object.spec.jobTemplate.spec.template") .kind -}}
{{- $was := get (dict "templates" "oldObject.spec.template" "cronjobs" "oldObject.spec.jobTemplate.spec.template") .kind -}}
{{- $deep := not (empty $was) -}}
{{- $suffix := eq .kind "pods" | ternary "" (printf "-%s" .kind) -}}
{{- if eq .kind "templates" }}
# ../pods for kinds that hold a pod template, so that `kubectl apply` of a Deployment is refused itself.
{{- else if eq .kind "cronjobs" }}
# ../pods for CronJobs, whose pod template lies one level deeper.
{{- else if eq .kind "bindings" }}
# ../pods for Bindings, whose annotations become the pod's.
{{- else }}
# Where NVIDIA's runtime finds cards by a container's environment, what the pod says there wins over the device plugin.
# So nobody says it: not by environment, not by mounts, which the runtime can be told to read instead, and not by
# annotations for CDI, which CRI-O passes on to it and NRI plugins read from the pod: those of NVIDIA's toolkit and of the
# NRI project. The words for no card at all are let through.
#
# kube-system and Shoal's own namespace are let off, for the agents and plugins there see every card; another namespace
# by the label shoal.dev/visible-devices=allow, which ../../exemptions.yaml guards.
#
# The first four variables are what ../templates and ../cronjobs have otherwise.
{{- end }}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: shoal-visible-devices{{ $suffix }}
spec:
  failurePolicy: Fail
  matchConstraints:
    namespaceSelector:
      matchExpressions:
        - {key: kubernetes.io/metadata.name, operator: NotIn, values: [{{ list "kube-system" .root.Release.Namespace | uniq | join ", " }}]}
        - {key: shoal.dev/visible-devices, operator: NotIn, values: [allow]}
    resourceRules:
      {{- if eq .kind "templates" }}
      - {apiGroups: [apps], apiVersions: [v1], operations: [CREATE, UPDATE], resources: [deployments, statefulsets, daemonsets, replicasets]}
      - {apiGroups: [batch], apiVersions: [v1], operations: [CREATE, UPDATE], resources: [jobs]}
      {{- else if eq .kind "cronjobs" }}
      - {apiGroups: [batch], apiVersions: [v1], operations: [CREATE, UPDATE], resources: [cronjobs]}
      {{- else if eq .kind "bindings" }}
      - {apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods/binding, bindings]}
      {{- else }}
      - apiGroups: [""]
        apiVersions: [v1]
        operations: [CREATE, UPDATE]
        resources: [pods, pods/status, pods/ephemeralcontainers]
      {{- end }}
  matchConditions:
    - name: new-containers-or-annotations
      {{- if $was }}
      expression: "oldObject == null || {{ $at }} != {{ $was }}"
      {{- else if eq .kind "bindings" }}
      expression: "object.metadata.?annotations.hasValue()"
      {{- else }}
      expression: |-
        oldObject == null
        || object.metadata.?annotations != oldObject.metadata.?annotations
        || object.spec.?ephemeralContainers != oldObject.spec.?ephemeralContainers
      {{- end }}
  variables:
    - name: annotations
      expression: {{ $deep | ternary (printf "%s.?metadata.annotations" $at) "object.metadata.?annotations" }}.orValue({})
    - name: before
      expression: {{ or $deep (eq .kind "bindings") | ternary "{}" "oldObject == null ? {} : oldObject.metadata.?annotations.orValue({})" | quote }}
    {{- if ne .kind "bindings" }}
    - name: spec
      expression: {{ $at }}.spec
    # Containers that were there before: of a pod they cannot change.
    - name: there
      {{- if $was }}
      expression: "[]"
      {{- else }}
      expression: |-
        oldObject == null ? []
        : (oldObject.spec.containers.map(c, c.name) + oldObject.spec.?initContainers.orValue([]).map(c, c.name)
          + oldObject.spec.?ephemeralContainers.orValue([]).map(c, c.name))
      {{- end }}
    - name: containers
      expression: |-
        (variables.spec.?initContainers.orValue([])
          .map(c, {'name': dyn(c.name), 'env': dyn(c.?env.orValue([])), 'mounts': dyn(c.?volumeMounts.orValue([]))})
        + variables.spec.containers
          .map(c, {'name': dyn(c.name), 'env': dyn(c.?env.orValue([])), 'mounts': dyn(c.?volumeMounts.orValue([]))})
        + variables.spec.?ephemeralContainers.orValue([])
          .map(c, {'name': dyn(c.name), 'env': dyn(c.?env.orValue([])), 'mounts': dyn(c.?volumeMounts.orValue([]))}))
          .filter(c, !(c.name in variables.there))
    - name: byEnvironment
      expression: |-
        variables.containers
          .filter(c, c.env.exists(e, e.name == 'NVIDIA_VISIBLE_DEVICES'
            && (e.?valueFrom.hasValue() || !(e.?value.orValue('') in ['', 'none', 'void']))))
          .map(c, c.name)
    - name: byMount
      expression: |-
        variables.containers
          .filter(c, c.mounts.exists(m, m.mountPath.contains('nvidia-container-devices')))
          .map(c, c.name)
    {{- end }}
    - name: byAnnotation
      expression: |-
        variables.annotations.filter(k, (k.matches('^([^/]*[.])?cdi[.]k8s[.]io(/|$)')
            || k.matches('^(cdi-)?devices[.](noderesource[.]dev|nri[.]io)(/|$)'))
          && variables.annotations[?k] != variables.before[?k])
  validations:
    {{- if ne .kind "bindings" }}
    - reason: Forbidden
      expression: variables.byEnvironment.size() == 0
      messageExpression: |-
        "container '" + variables.byEnvironment[0] + "' sets NVIDIA_VISIBLE_DEVICES, and so would choose cards itself: "
        + 'remove it, and ask for GPUs by resources'
    - reason: Forbidden
      expression: variables.byMount.size() == 0
      messageExpression: |-
        "container '" + variables.byMount[0] + "' mounts a folder named nvidia-container-devices, and so would choose "
        + 'cards itself: remove it, and ask for GPUs by resources'
    {{- end }}
    - reason: Forbidden
      expression: variables.byAnnotation.size() == 0
      messageExpression: |-
        'annotation ' + variables.byAnnotation[0] + ' would choose devices for CDI: remove it, and ask for GPUs by resources'
{{- end -}}
