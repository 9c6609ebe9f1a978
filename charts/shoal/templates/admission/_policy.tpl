{{/*
Refuses requests that nobody could place.
(dict "root" $ "kind" "pods"), or templates, or cronjobs: where the pod template is in the object.
*/}}
{{- define "shoal.admission.requests" -}}
{{- $at := get (dict "pods" "object" "bindings" "object" "templates" "object.spec.template" "cronjobs" "object.spec.jobTemplate.spec.template") .kind -}}
{{- $was := get (dict "templates" "oldObject.spec.template" "cronjobs" "oldObject.spec.jobTemplate.spec.template") .kind -}}
{{- $deep := not (empty $was) -}}
{{- $suffix := eq .kind "pods" | ternary "" (printf "-%s" .kind) -}}
{{- if eq .kind "templates" }}
# ../pods for kinds that hold a pod template, so that `kubectl apply` of a Deployment is refused itself.
{{- else if eq .kind "cronjobs" }}
# ../pods for CronJobs, whose pod template lies one level deeper.
{{- else }}
# What shoal.model refuses (src/shoal/model/pod.py, gpus_of), in the same order and the same words. Written for
# Kubernetes 1.30, so without what CEL learned later. kube-apiserver itself has refused amounts that are negative, in
# parts or different as limit and request before this is asked.
#
# The match condition and the first five variables are what ../templates and ../cronjobs have otherwise, and the
# unit what ../../admission-mib replaces.
# Every check is a variable that holds its message, empty when all is well; the first check that fails is the one the
# user reads.
{{- end }}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: shoal-gpu-requests{{ $suffix }}
spec:
  failurePolicy: Fail
  matchConstraints:
    namespaceSelector:
      matchExpressions:
        - {key: shoal.dev/admission, operator: NotIn, values: [ignore]}
    resourceRules:
      {{- if eq .kind "templates" }}
      - {apiGroups: [apps], apiVersions: [v1], operations: [CREATE, UPDATE], resources: [deployments, statefulsets, daemonsets, replicasets]}
      - {apiGroups: [batch], apiVersions: [v1], operations: [CREATE, UPDATE], resources: [jobs]}
      {{- else if eq .kind "cronjobs" }}
      - {apiGroups: [batch], apiVersions: [v1], operations: [CREATE, UPDATE], resources: [cronjobs]}
      {{- else }}
      - {apiGroups: [""], apiVersions: [v1], operations: [CREATE, UPDATE], resources: [pods]}
      {{- end }}
  matchConditions:
    # Most pods end here.
    - name: asks-for-gpus
      expression: |-
        ({{ $at }}.spec.containers + {{ $at }}.spec.?initContainers.orValue([]))
          .exists(c, ['aliyun.com/gpu-mem', 'aliyun.com/gpu-core.percentage', 'keti.com/mpsgpu', 'nvidia.com/gpu']
            .exists(r, r in c.?resources.limits.orValue({})))
  variables:
    - name: labels
      expression: {{ $deep | ternary (printf "%s.?" $at) (printf "%s." $at) }}metadata.{{ $deep | ternary "" "?" }}labels.orValue({})
    - name: annotations
      expression: {{ $deep | ternary (printf "%s.?" $at) (printf "%s." $at) }}metadata.{{ $deep | ternary "" "?" }}annotations.orValue({})
    - name: spec
      expression: {{ $at }}.spec
    # A change of anything else is let through, so that what is already there can be finished and deleted.
    - name: changed
      {{- if $was }}
      expression: "oldObject == null || {{ $at }} != {{ $was }}"
      {{- else }}
      expression: |-
        oldObject == null
        || ['aliyun.com/gpu-count', 'ack.gpushare.placement']
          .exists(k, object.metadata.?labels[?k] != oldObject.metadata.?labels[?k])
        || ['GPUrequest', 'GPUlimits', 'shoal.dev/policy', 'shoal.dev/use-gpu-model', 'shoal.dev/avoid-gpu-model',
            'shoal.dev/use-gpu-uuid', 'shoal.dev/avoid-gpu-uuid']
          .exists(k, object.metadata.?annotations[?k] != oldObject.metadata.?annotations[?k])
      {{- end }}
    # What one of aliyun.com/gpu-mem stands for: 'GiB' or 'MiB'.
    - name: unit
      expression: "'{{ .root.Values.sharing.memoryUnit }}'"
    - name: resources
      expression: "['aliyun.com/gpu-mem', 'aliyun.com/gpu-core.percentage', 'keti.com/mpsgpu', 'nvidia.com/gpu']"
    # Name and limits of each container. Its requests of GPUs are equal, kube-apiserver has seen to that.
    - name: containers
      expression: |-
        !variables.changed ? [] : variables.spec.?initContainers.orValue([])
          .map(c, {'name': dyn(c.name), 'limits': dyn(c.?resources.limits.orValue({}))})
        + variables.spec.containers
          .map(c, {'name': dyn(c.name), 'limits': dyn(c.?resources.limits.orValue({}))})
    - name: farTooMuch
      expression: |-
        variables.containers.map(c, variables.resources
            .filter(r, quantity(c.limits[?r].orValue('0')).isGreaterThan(quantity('1P')))
            .map(r, "container '" + (c.name.size() > 60 ? c.name.substring(0, 60) + '…' : c.name)
              + "' asks for more than 1P of " + r + ': write a plain number, such as 1')[?0].orValue(''))
          .filter(f, f != '')[?0].orValue('')
    # The containers that ask for GPUs, with the amounts as numbers.
    - name: asks
      expression: |-
        variables.farTooMuch != '' ? [] : variables.containers.map(c, {
          'who': dyn("container '" + (c.name.size() > 60 ? c.name.substring(0, 60) + '…' : c.name) + "' asks for "),
          'names': dyn(variables.resources
            .filter(r, quantity(c.limits[?r].orValue('0')).isGreaterThan(quantity('0')))),
          'written': dyn(c.limits[?'aliyun.com/gpu-mem'].orValue('0')),
          'memory': dyn(quantity(c.limits[?'aliyun.com/gpu-mem'].orValue('0')).asInteger()),
          'compute': dyn(quantity(c.limits[?'aliyun.com/gpu-core.percentage'].orValue('0')).asInteger()),
          'clients': dyn(quantity(c.limits[?'keti.com/mpsgpu'].orValue('0')).asInteger()),
          'gpus': dyn(quantity(c.limits[?'nvidia.com/gpu'].orValue('0')).asInteger())
        }).filter(c, c.names.size() > 0)
    - name: tooMany
      expression: |-
        variables.asks.size() <= 32 ? ''
        : string(variables.asks.size()) + ' containers ask for GPUs, and at most 32 of a pod can: make several pods'
    - name: shares
      expression: variables.asks.exists(c, c.memory > 0 || c.compute > 0)
    - name: clients
      expression: variables.asks.exists(c, c.clients > 0)
    # The annotations of a pod that asks for GPUs; those of other pods are nobody's business here.
    - name: notes
      expression: "variables.asks.size() > 0 ? variables.annotations : {}"
    - name: count
      expression: "variables.shares ? variables.labels[?'aliyun.com/gpu-count'].orValue('1') : '1'"
    - name: cards
      expression: |-
        variables.count.matches('^0*[1-9][0-9]{0,2}$') && variables.count.size() <= 20 && int(variables.count) <= 256
        ? int(variables.count) : 0
    - name: placement
      expression: |-
        variables.shares
        ? variables.labels[?'ack.gpushare.placement'].orValue('require-whole-device')
        : 'require-whole-device'

    # From here on the checks, in the order in which they are told.
    - name: mixed
      expression: |-
        variables.asks
          .filter(c, (c.memory > 0 || c.compute > 0) && (c.clients > 0 || c.gpus > 0) || c.clients > 0 && c.gpus > 0)
          .map(c, c.who + c.names.join(' and ') + ': keep one kind of GPU per container')[?0].orValue('')
    - name: split
      expression: |-
        variables.placement != 'require-whole-device'
        ? "pod label ack.gpushare.placement is '"
          + (variables.placement.size() > 60 ? variables.placement.substring(0, 60) + '…' : variables.placement)
          + "': write require-whole-device or remove it"
        : variables.cards == 0
        ? "pod label aliyun.com/gpu-count is '"
          + (variables.count.size() > 60 ? variables.count.substring(0, 60) + '…' : variables.count)
          + "': write the number of cards, from 1 to 256"
        : ''
    - name: unprintable
      expression: |-
        ((variables.clients ? ['GPUrequest', 'GPUlimits'] : [])
          + ['shoal.dev/policy', 'shoal.dev/use-gpu-model', 'shoal.dev/avoid-gpu-model', 'shoal.dev/use-gpu-uuid',
             'shoal.dev/avoid-gpu-uuid'])
          .filter(k, k in variables.notes && !variables.notes[k].trim().matches(r'^[\pL\pM\pN\pP\pS ]*$'))
          .map(k, 'annotation ' + k
            + ' holds a line break or another character that cannot be printed: write it on one line')[?0].orValue('')
    - name: sizes
      expression: |-
        variables.clients
        ? ['GPUlimits', 'GPUrequest'].map(k, {'key': k, 'value': variables.notes[?k].orValue('').trim()})
            .filter(s, s.value != '')
        : []
    - name: badSize
      expression: |-
        variables.sizes
          .filter(s, s.value.size() > 64
            || !s.value.matches(r'^[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)'
              + r'([numkMGTPE]|[KMGTPE]i|[eE][+-]?0*([0-9]|[1-5][0-9]|6[0-4]))?$')
            || quantity(s.value).isLessThan(quantity('0')) || quantity(s.value).isGreaterThan(quantity('2Ti')))
          .map(s, 'annotation ' + s.key + " holds '"
            + (s.value.size() > 60 ? s.value.substring(0, 60) + '…' : s.value)
            + "': write the memory of one card, such as 4Gi")[?0].orValue('')
    - name: shownSizes
      expression: |-
        variables.sizes.map(s, "'" + (s.value.size() > 60 ? s.value.substring(0, 60) + '…' : s.value) + "'")
    - name: crossedSizes
      expression: |-
        variables.badSize == '' && variables.sizes.size() == 2
          && quantity(variables.sizes[0].value).isGreaterThan(quantity('0'))
          && quantity(variables.sizes[0].value).isLessThan(quantity(variables.sizes[1].value))
        ? 'annotation GPUlimits holds ' + variables.shownSizes[0] + ', less than GPUrequest with '
          + variables.shownSizes[1] + ': raise GPUlimits to that'
        : ''
    - name: badList
      expression: |-
        ['shoal.dev/use-gpu-model', 'shoal.dev/avoid-gpu-model', 'shoal.dev/use-gpu-uuid', 'shoal.dev/avoid-gpu-uuid']
          .map(k, {'key': k, 'value': variables.notes[?k].orValue('')})
          .filter(s, s.value.trim() != '')
          .map(s,
            s.value.size() > 6000 || s.value.split(',').size() > 128
            ? 'annotation ' + s.key + ' has more than 128 entries or 6000 characters: shorten the list'
            : s.value.split(',').exists(e, e.trim() == '')
            ? 'annotation ' + s.key + ' has an empty entry: remove the extra comma'
            : '')
          .filter(f, f != '')[?0].orValue('')
    - name: policy
      expression: variables.notes[?'shoal.dev/policy'].orValue('').trim()
    - name: badPolicy
      expression: |-
        variables.policy != '' && !variables.policy.matches('^[A-Za-z0-9][A-Za-z0-9-]{0,62}$')
        ? "shoal.dev/policy holds '"
          + (variables.policy.size() > 60 ? variables.policy.substring(0, 60) + '…' : variables.policy)
          + "': write the name of a policy, such as binpack"
        : ''
    # The lists that can be compared: none while one of them is too long, for that could take for ever.
    - name: lists
      expression: "variables.badList == '' ? variables.notes : {}"
    - name: useUuids
      expression: |-
        variables.lists[?'shoal.dev/use-gpu-uuid'].orValue('').split(',').map(e, e.trim()).filter(e, e != '')
    - name: avoidUuids
      expression: |-
        variables.lists[?'shoal.dev/avoid-gpu-uuid'].orValue('').split(',').map(e, e.trim()).filter(e, e != '')
    # A model with its words, in small letters and each between blanks: one stands in another if its words do.
    - name: useModels
      expression: |-
        variables.lists[?'shoal.dev/use-gpu-model'].orValue('').split(',').map(e, e.trim()).filter(e, e != '')
          .map(e, {'name': e, 'words': ' ' + e.lowerAscii().findAll('[a-z0-9]+').join(' ') + ' '})
    - name: avoidModels
      expression: |-
        variables.lists[?'shoal.dev/avoid-gpu-model'].orValue('').split(',').map(e, e.trim()).filter(e, e != '')
          .map(e, {'name': e, 'words': ' ' + e.lowerAscii().findAll('[a-z0-9]+').join(' ') + ' '})
    # Of several faults the first by name is told.
    - name: sameUuids
      expression: variables.useUuids.filter(u, u in variables.avoidUuids)
    - name: wordless
      expression: |-
        (variables.useModels + variables.avoidModels).filter(m, m.words == '  ').map(m, m.name)
    # Those that stand in some wanted model: mostly none, so that not each must be compared with each.
    - name: wantedWords
      expression: variables.useModels.map(m, m.words).join('|')
    - name: avoidWanted
      expression: variables.avoidModels.filter(a, variables.wantedWords.contains(a.words))
    - name: ruledOut
      expression: |-
        variables.useModels.filter(m, variables.avoidWanted.exists(a, m.words.contains(a.words))).map(m, m.name)
    - name: ruledOutBy
      expression: |-
        variables.ruledOut.size() == 0 ? []
        : variables.useModels.filter(m, m.name == variables.ruledOut.min())
          .map(m, variables.avoidWanted.filter(a, m.words.contains(a.words)).map(a, a.name))[0]
    - name: badSelector
      expression: |-
        variables.sameUuids.size() > 0
        ? [variables.sameUuids.min()].map(u, "card '" + (u.size() > 60 ? u.substring(0, 60) + '…' : u)
            + "' stands in shoal.dev/use-gpu-uuid and in shoal.dev/avoid-gpu-uuid: remove it from one")[0]
        : variables.wordless.size() > 0
        ? [variables.wordless.min()].map(m, "GPU model '" + (m.size() > 60 ? m.substring(0, 60) + '…' : m)
            + "' has no letter or digit: write a model such as A100")[0]
        : variables.ruledOut.size() > 0
        ? 'shoal.dev/use-gpu-model wants ' + [variables.ruledOut.min()].map(m, "'"
            + (m.size() > 60 ? m.substring(0, 60) + '…' : m) + "'")[0]
          + ', shoal.dev/avoid-gpu-model rules it out with ' + [variables.ruledOutBy.min()].map(m, "'"
            + (m.size() > 60 ? m.substring(0, 60) + '…' : m) + "'")[0] + ': remove one'
        : ''
    - name: badAmount
      expression: |-
        variables.cards == 0 ? '' : variables.asks.map(c,
          c.clients > 256 || c.gpus > 256
          ? c.who + string(c.clients > 256 ? c.clients : c.gpus) + ' of '
            + (c.clients > 256 ? 'keti.com/mpsgpu' : 'nvidia.com/gpu') + ': write the number of cards, at most 256'
          : c.memory > variables.cards * (variables.unit == 'GiB' ? 2048 : 2097152)
          ? (c.written.matches('[0-9.][MGTPE]i?$')
            ? [variables.unit == 'GiB' ? (c.written.endsWith('i') ? 1073741824 : 1000000000)
                : (c.written.endsWith('i') ? 1048576 : 1000000)]
              .map(d, string((c.memory + d - 1) / d))
              .map(n, c.who + c.written + ' of aliyun.com/gpu-mem, which counts ' + variables.unit + ', not bytes: write '
                + n + ' for ' + n + ' ' + variables.unit)[0]
            : c.who + string(c.memory) + ' of aliyun.com/gpu-mem, which is more than any card holds: write the number of '
              + variables.unit + ' needed')
          : c.memory % variables.cards > 0
          ? c.who + string(c.memory) + ' of aliyun.com/gpu-mem over ' + string(variables.cards)
            + ' cards, which does not divide: write '
            + string(c.memory + variables.cards - c.memory % variables.cards)
            + ', or change pod label aliyun.com/gpu-count'
          : c.compute % variables.cards > 0
          ? c.who + string(c.compute) + ' of aliyun.com/gpu-core.percentage over ' + string(variables.cards)
            + ' cards, which does not divide: write '
            + string(c.compute + variables.cards - c.compute % variables.cards)
            + ', or change pod label aliyun.com/gpu-count'
          : c.compute / variables.cards > 100
          ? c.who + string(c.compute / variables.cards) + ' percent of a card (aliyun.com/gpu-core.percentage): write at'
            + ' most 100 per card, or more cards with pod label aliyun.com/gpu-count'
          : '')
          .filter(f, f != '')[?0].orValue('')
  validations:
    - {reason: Forbidden, expression: variables.farTooMuch == '', messageExpression: variables.farTooMuch}
    - {reason: Forbidden, expression: variables.tooMany == '', messageExpression: variables.tooMany}
    - {reason: Forbidden, expression: variables.mixed == '', messageExpression: variables.mixed}
    - {reason: Forbidden, expression: variables.split == '', messageExpression: variables.split}
    - {reason: Forbidden, expression: variables.unprintable == '', messageExpression: variables.unprintable}
    - {reason: Forbidden, expression: variables.badSize == '', messageExpression: variables.badSize}
    - {reason: Forbidden, expression: variables.crossedSizes == '', messageExpression: variables.crossedSizes}
    - {reason: Forbidden, expression: variables.badList == '', messageExpression: variables.badList}
    - {reason: Forbidden, expression: variables.badPolicy == '', messageExpression: variables.badPolicy}
    - {reason: Forbidden, expression: variables.badSelector == '', messageExpression: variables.badSelector}
    - {reason: Forbidden, expression: variables.badAmount == '', messageExpression: variables.badAmount}
{{- end -}}
