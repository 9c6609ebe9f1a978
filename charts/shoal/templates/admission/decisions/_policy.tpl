{{/*
Keeps decisions from those who do not decide.
(dict "root" $ "kind" "pods"), or templates, or cronjobs, or bindings: where the pod template is in the object.
*/}}
{{- define "shoal.admission.decisions" -}}
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
# What the scheduler and the agent decide is written by those who may write decisions of shoal.dev, asked cluster-wide:
# whoever may do everything in a namespace may not. Controllers may not either, so a template cannot carry a decision.
# No namespace can opt out.
#
# The first three variables are what ../bindings, ../templates and ../cronjobs have otherwise. The annotations are those of
# src/shoal/model/contract/decisions.py; what a request is read from is in src/shoal/model/pod.py.
{{- end }}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: shoal-gpu-decisions{{ $suffix }}
spec:
  failurePolicy: Fail
  matchConstraints:
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
        resources: [pods, pods/status, pods/ephemeralcontainers, pods/resize]
      {{- end }}
  matchConditions:
    # Kubelet's reports and most other changes end here.
    - name: metadata-changes
      {{- if $was }}
      expression: "{{ $at }}.?metadata.annotations.hasValue()"
      {{- else if eq .kind "bindings" }}
      expression: "object.metadata.?annotations.hasValue()"
      {{- else }}
      expression: |-
        oldObject == null
        ? object.metadata.?annotations.hasValue()
        : object.metadata.?annotations != oldObject.metadata.?annotations
          || object.metadata.?labels != oldObject.metadata.?labels
          || dyn(object).?status.extendedResourceClaimStatus != dyn(oldObject).?status.extendedResourceClaimStatus
      {{- end }}
  variables:
    - name: annotations
      expression: {{ $deep | ternary (printf "%s.?metadata.annotations" $at) "object.metadata.?annotations" }}.orValue({})
    - name: before
      {{- if $was }}
      expression: "oldObject == null ? {} : {{ $was }}.?metadata.annotations.orValue({})"
      {{- else if eq .kind "bindings" }}
      expression: "{}"
      {{- else }}
      expression: "oldObject == null ? {} : oldObject.metadata.?annotations.orValue({})"
      {{- end }}
    # What a pod on a node asked for there. It has been placed by it, so it stays.
    - name: asked
      {{- if ne .kind "pods" }}
      expression: "[]"
      {{- else }}
      expression: |-
        oldObject == null || oldObject.spec.?nodeName.orValue('') == '' ? []
        : ['aliyun.com/gpu-count', 'ack.gpushare.placement']
            .filter(k, object.metadata.?labels[?k] != oldObject.metadata.?labels[?k])
            .map(k, 'label ' + k)
          + ['GPUrequest', 'GPUlimits', 'shoal.dev/policy', 'shoal.dev/use-gpu-model', 'shoal.dev/avoid-gpu-model',
             'shoal.dev/use-gpu-uuid', 'shoal.dev/avoid-gpu-uuid']
            .filter(k, object.metadata.?annotations[?k] != oldObject.metadata.?annotations[?k])
            .map(k, 'annotation ' + k)
      {{- end }}
    - name: decided
      expression: |-
        ['shoal.dev/allocation', 'shoal.dev/isolation', 'ALIYUN_COM_GPU_MEM_IDX', 'ALIYUN_COM_GPU_MEM_DEV',
         'ALIYUN_COM_GPU_MEM_POD', 'ALIYUN_COM_GPU_MEM_ASSIGNED', 'ALIYUN_COM_GPU_MEM_ASSUME_TIME',
         'ALIYUN_COM_GPU_MEM_ASSIGN_TIME', 'scheduler.framework.gpushare.allocation',
         'scheduler.framework.gpushare.assigned', 'scheduler.framework.gpushare.assume-time',
         'gpushare.alibabacloud.com/core-percentage', 'gpushare.alibabacloud.com/core-tflops', 'UUID']
          .filter(k, variables.annotations[?k] != variables.before[?k])
    - name: added
      expression: variables.decided.filter(k, !(k in variables.before))
    {{- if eq .kind "pods" }}
    # Which claim a scheduler made of the pod's extended resources. `dyn`: Kubernetes has the field from 1.34 on.
    - name: mapped
      expression: |-
        oldObject != null
        && dyn(object).?status.extendedResourceClaimStatus != dyn(oldObject).?status.extendedResourceClaimStatus
    {{- end }}
  validations:
    - reason: Forbidden
      expression: |-
        variables.decided.size() == 0
        || authorizer.group('shoal.dev').resource('decisions').check('write').allowed()
      messageExpression: |-
        'only the scheduler and the agent write what was decided about a pod: '
        + (variables.added.size() > 0
          ? 'remove annotation ' + variables.added.join(', ')
          : 'leave annotation ' + variables.decided.join(', ') + ' as it is')
    - reason: Forbidden
      expression: |-
        variables.asked.size() == 0
        || authorizer.group('shoal.dev').resource('decisions').check('write').allowed()
      messageExpression: |-
        'the pod has its place by what it asked for: leave ' + variables.asked.join(', ')
        + ' as it is, or make a new pod'
    {{- if eq .kind "pods" }}
    # kube-scheduler writes it too, and kubelets report whole statuses: both may write the status of pods everywhere.
    - reason: Forbidden
      expression: |-
        !variables.mapped
        || authorizer.group('shoal.dev').resource('decisions').check('write').allowed()
        || authorizer.group('').resource('pods').subresource('status').check('patch').allowed()
      message: "only a scheduler writes which claim serves a pod: leave status.extendedResourceClaimStatus as it is"
    {{- end }}
{{- end -}}
