{{- define "ctrlmesh.labels" -}}
app.kubernetes.io/part-of: ctrlmesh
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "ctrlmesh.manager" -}}
app.kubernetes.io/name: ctrlmesh-manager
{{- end }}

{{- /* An image with its digest, or else its tag. */ -}}
{{- define "ctrlmesh.image" -}}
{{- $image := .image -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default .root.Chart.AppVersion }}
{{- end -}}
{{- end }}

{{- /*
The objects of a file that is the same in deploy/, in this release's namespace and with its labels. Names stay: some are in the manager's
code, and there is one ctrlmesh in a cluster.
*/ -}}
{{- define "ctrlmesh.shipped" -}}
{{- $root := .root -}}
{{- $annotations := .annotations -}}
{{- range $text := regexSplit "(?m)^---$" ($root.Files.Get .file) -1 -}}
{{- $object := fromYaml $text -}}
{{- if $object.Error }}{{ fail (printf "%s: %s" $.file $object.Error) }}{{ end -}}
{{- if $object.kind -}}
{{- $_ := set $object.metadata "labels" (merge (default dict $object.metadata.labels) (include "ctrlmesh.labels" $root | fromYaml)) -}}
{{- if $annotations }}{{ $_ := set $object.metadata "annotations" $annotations }}{{ end -}}
{{- if $object.metadata.namespace }}{{ $_ := set $object.metadata "namespace" $root.Release.Namespace }}{{ end -}}
{{- range $object.subjects }}{{ $_ := set . "namespace" $root.Release.Namespace }}{{ end -}}
{{- range $webhook := $object.webhooks -}}
{{- $_ := set $webhook.clientConfig.service "namespace" $root.Release.Namespace -}}
{{- with $webhook.namespaceSelector -}}
{{- range .matchExpressions -}}
{{- $values := list -}}
{{- range .values }}{{ $values = append $values (ternary $root.Release.Namespace . (eq . "ctrlmesh")) }}{{ end -}}
{{- $_ := set . "values" $values -}}
{{- end -}}
{{- end -}}
{{- end }}
---
{{ toYaml $object }}
{{ end -}}
{{- end -}}
{{- end }}
