{{- define "divvy.name" -}}
{{- if contains "divvy" .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-divvy" .Release.Name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "divvy.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
app.kubernetes.io/name: divvy
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{/* Selector labels of the pods of one component; the argument is a dict of root and piece. */}}
{{- define "divvy.selector" -}}
app.kubernetes.io/name: divvy
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .piece }}
{{- end }}

{{- define "divvy.image" -}}
{{- if .Values.image.digest }}{{ .Values.image.repository }}@{{ .Values.image.digest }}{{ else }}{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{- define "divvy.glueNamespace" -}}
{{- if eq .Values.glue.namespace .Release.Namespace }}{{ fail "glue.namespace must not be the release's namespace: the glue's rights on Secrets would include the webhook's key" }}{{ end -}}
{{ required "glue.namespace is required: the namespace of the tasks' pods, without any other use" .Values.glue.namespace }}
{{- end }}

{{- define "divvy.tlsSecret" -}}
{{ .Values.webhook.tls.secretName | default (printf "%s-webhook-tls" (include "divvy.name" .)) }}
{{- end }}

{{/* Security context of a container without rights on its node. */}}
{{- define "divvy.restricted" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
capabilities:
  drop: [ALL]
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{/* Not empty if an update starts the new pod of a node before it ends the old one. */}}
{{- define "divvy.surge" -}}
{{- if or (eq .Values.node.update "surge") (and (eq .Values.node.update "auto") (semverCompare ">=1.33-0" .Capabilities.KubeVersion.Version)) }}surge{{ end }}
{{- end }}

{{/* Annotations of an object of a hook; the argument is a dict of event and weight. Helm 3.18 and newer print the log. */}}
{{- define "divvy.hook" -}}
helm.sh/hook: {{ .event }}
helm.sh/hook-weight: {{ .weight | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
helm.sh/hook-output-log-policy: hook-succeeded,hook-failed
{{- end }}

{{/* The labels of carrier nodes: KEY=VALUE,… */}}
{{- define "divvy.carrierNodes" -}}
{{- $labels := list -}}
{{- range $key, $value := .Values.carrier.nodeSelector }}{{ $labels = append $labels (printf "%s=%s" $key $value) }}{{ end -}}
{{ join "," $labels }}
{{- end }}

{{/* Schedulers whose pods get claims, beside the default one; as a YAML list. */}}
{{- define "divvy.schedulers" -}}
{{- $own := .Values.extender.scheduler }}
{{- ternary (append .Values.controller.schedulers $own.name) .Values.controller.schedulers (and .Values.extender.enabled $own.enabled) | uniq | toYaml }}
{{- end }}

{{/* Components with metrics, as a YAML list. */}}
{{- define "divvy.metered" -}}
{{- $pieces := list "controller" "reconciler" }}
{{- if .Values.node.enabled }}{{ $pieces = concat (include "divvy.nodeParts" . | fromYamlArray) $pieces }}{{ end }}
{{- ternary (append $pieces "extender") $pieces .Values.extender.enabled | toYaml }}
{{- end }}

{{- /* An expression for the paths of a folder, of what is below it and of the folders above it. `//` and `/./` mean `/`. */}}
{{- define "divvy.folderPattern" -}}
{{- $below := "(/.*)?" }}
{{- range $at, $part := trimPrefix "/" . | splitList "/" | reverse }}
{{- $separator := ternary "[./]*" "(/+[.])*/+" (eq $at (sub (len (trimPrefix "/" $ | splitList "/")) 1 | int)) }}
{{- $below = printf "(%s%s%s)?" $separator (replace "." "[.]" $part) $below }}
{{- end }}
{{- printf "^%s(/+[.])*/*$" $below }}
{{- end }}

{{/* Selects the namespaces whose pods the enforcer limits. */}}
{{- define "divvy.enforced" -}}
matchExpressions:
  - key: kubernetes.io/metadata.name
    operator: In
    values: {{ .Values.enforcer.namespaces | toJson }}
{{- end }}

{{/* An expression: the pod has claims, extended resources of NVIDIA, or KAI's annotations. */}}
{{- define "divvy.takesGpu" -}}
object.spec.?resourceClaims.orValue([]).size() > 0
|| (object.spec.containers + object.spec.?initContainers.orValue([])).exists(one,
one.?resources.?limits.orValue({}).exists(name, name.startsWith('nvidia.com/')))
|| (object.spec.?schedulerName.orValue('') == '{{ .Values.enforcer.kai.schedulerName }}'
&& ['gpu-fraction', 'gpu-memory'].exists(key, key in object.metadata.?annotations.orValue({})))
{{- end }}

{{/* Variables: names of claims that are no GPUs, and names of the containers that get a ticket. */}}
{{- define "divvy.gpuContainers" -}}
- name: annotations
  expression: "object.metadata.?annotations.orValue({})"
- name: others
  expression: "',' + variables.annotations[?'divvy.dev/other-claims'].orValue('') + ','"
- name: ofKai
  expression: >-
    object.spec.?schedulerName.orValue('') == '{{ .Values.enforcer.kai.schedulerName }}'
    && ['gpu-fraction', 'gpu-memory'].exists(key, key in variables.annotations)
- name: gets
  expression: >-
    variables.ofKai ? [variables.annotations[?'gpu-fraction-container-name'].orValue(object.spec.containers[0].name)]
    : (object.spec.?containers.orValue([]) + object.spec.?initContainers.orValue([])).filter(one,
    one.?resources.?limits.orValue({}).exists(name, name.startsWith('nvidia.com/'))
    || one.?resources.?claims.orValue([]).exists(claim, !variables.others.contains(',' + claim.name + ','))).map(one, one.name)
{{- end }}

{{/* Node parts of the release, as a YAML list: own devices or carriers, and the enforcer. */}}
{{- define "divvy.nodeParts" -}}
{{- $parts := ternary (list "enforcer") (list "node") (and .Values.enforcer.enabled (not .Values.enforcer.nodeSelector)) }}
{{- ternary (list "node" "enforcer") $parts (and .Values.enforcer.enabled (gt (len .Values.enforcer.nodeSelector) 0)) | toYaml }}
{{- end }}
