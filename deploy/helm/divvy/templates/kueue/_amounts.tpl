{{/* Amounts of kueue.*, as `divvy-k8s project` writes them: GPUs in thousandths, memory in whole MiB. */}}

{{/* The MiB of a size such as 81050Mi or 80Gi. */}}
{{- define "divvy.mib" -}}
{{- $text := required "kueue.gpuMemory is required: the memory of one GPU, as `divvy-k8s project config` prints it" . -}}
{{- if hasSuffix "Gi" $text }}{{ mul (trimSuffix "Gi" $text | int64) 1024 }}{{ else }}{{ trimSuffix "Mi" $text | int64 }}{{ end -}}
{{- end }}

{{/* The thousandths of an amount of GPUs, from its digits: 2.5 is 2500. */}}
{{- define "divvy.milli" -}}
{{- $parts := splitList "." (toString .) -}}
{{- $decimals := "" -}}
{{- if gt (len $parts) 1 }}{{ $decimals = index $parts 1 }}{{ end -}}
{{- add (mul (index $parts 0 | int64) 1000) (printf "1%s" (printf "%s000" $decimals | trunc 3) | int64 | add -1000) -}}
{{- end }}

{{/* The text of so many thousandths: 2500 is 2.5. */}}
{{- define "divvy.gpus" -}}
{{- $whole := div . 1000 -}}
{{- $part := mod . 1000 -}}
{{- if $part }}{{ printf "%d.%s" $whole (trimAll "0" (printf "x%03d" $part) | trimPrefix "x") }}{{ else }}{{ $whole }}{{ end -}}
{{- end }}

{{/* Memory of milli thousandths of a GPU of mib MiB, in the form in which Kueue answers. */}}
{{- define "divvy.memory" -}}
{{- include "divvy.quantity" (div (mul .milli .mib) 1000) -}}
{{- end }}

{{- define "divvy.quantity" -}}
{{- $mib := int64 . -}}
{{- if not $mib }}0
{{- else if not (mod $mib 1048576) }}{{ div $mib 1048576 }}Ti
{{- else if not (mod $mib 1024) }}{{ div $mib 1024 }}Gi
{{- else }}{{ $mib }}Mi{{ end -}}
{{- end }}

{{/* The memory between a quota and a limit. */}}
{{- define "divvy.over" -}}
{{- include "divvy.quantity" (sub (div (mul .limit .mib) 1000) (div (mul .quota .mib) 1000)) -}}
{{- end }}

{{/* The limit in thousandths; empty without one. */}}
{{- define "divvy.limit" -}}
{{- $over := true -}}
{{- if hasKey .of "overQuota" }}{{ $over = .of.overQuota }}{{ end -}}
{{- if hasKey .of "limit" -}}
{{- if not $over }}{{ fail (printf "kueue: %s has a limit and overQuota: false" .of.name) }}{{ end -}}
{{- $limit := include "divvy.milli" .of.limit | int64 -}}
{{- if lt $limit .quota }}{{ fail (printf "kueue: the limit of %s is below its quota" .of.name) }}{{ end -}}
{{- $limit -}}
{{- else if not $over }}{{ .quota }}{{ end -}}
{{- end }}

{{- define "divvy.weight" -}}
{{- if hasKey .of "weight" }}{{ .of.weight | int64 }}{{ else }}{{ include "divvy.gpus" .quota }}{{ end -}}
{{- end }}

{{- define "divvy.kueueLabels" -}}
{{ include "divvy.labels" .root }}
divvy.dev/kueue: {{ .mark }}
{{- end }}
