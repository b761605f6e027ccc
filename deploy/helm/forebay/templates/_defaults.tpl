{{/*
What is meant where a value is not there at all. Only `helm upgrade --reuse-values` comes to that: it takes the values of the release
as they were, with the defaults of the chart before, so what this chart has added is missing. It is as it was before, then: without
keepers and without what is new. Each template begins with this, as Helm says of none that it is the first.
*/}}
{{- define "forebay.defaults" -}}
{{- $without := dict "enabled" false }}
{{- $mount := dict "updateStrategy" "OnDelete" "keeper" $without }}
{{- $csi := dict "enabled" false "updateStrategy" "OnDelete" "keeper" $without }}
{{- $_ := merge .Values (deepCopy (dict "mount" $mount "csi" $csi "operator" $without)) }}
{{- end }}
