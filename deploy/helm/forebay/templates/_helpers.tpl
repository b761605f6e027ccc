{{- define "forebay.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "forebay.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else if contains (include "forebay.name" .) .Release.Name }}
{{- .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "forebay.name" .) | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{/* What pods of a role are chosen by. Takes a dict of `root` and `role`. */}}
{{- define "forebay.selector" -}}
app.kubernetes.io/name: {{ include "forebay.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .role }}
{{- end }}

{{- define "forebay.labels" -}}
{{ include "forebay.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "forebay.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "forebay.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "forebay.image" -}}
{{- if .Values.image.digest }}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest }}
{{- else }}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) }}
{{- end }}
{{- end }}

{{/* Where coordinators are found. */}}
{{- define "forebay.coordinator" -}}
{{- printf "%s-coordinator.%s.svc" (include "forebay.fullname" .) .Release.Namespace }}
{{- end }}

{{/* The Secret with the certificate of a role. */}}
{{- define "forebay.certificate" -}}
{{- $named := get .root.Values.security (printf "%sSecret" .role) }}
{{- if $named }}
{{- $named }}
{{- else }}
{{- printf "%s-%s-tls" (include "forebay.fullname" .root) .role }}
{{- end }}
{{- end }}

{{/* What all processes of a role are configured with, as YAML: a key of forebay.toml, and its value. */}}
{{- define "forebay.settings" -}}
{{- $root := .root }}
{{- $values := .root.Values }}
cluster.name: {{ $values.cluster.name | quote }}
cluster.cache_group: {{ $values.cluster.cacheGroup | quote }}
{{- if $values.etcd.endpoints }}
cluster.etcd.endpoints: {{ $values.etcd.endpoints | toJson }}
{{- else }}
cluster.etcd.endpoints: {{ list (printf "http://%s-etcd.%s.svc:2379" (include "forebay.fullname" $root) $root.Release.Namespace) | toJson }}
{{- end }}
{{- if $values.etcd.tlsSecret }}
cluster.etcd.ca_file: /etc/forebay/etcd/ca.crt
{{- if $values.etcd.clientCertificate }}
cluster.etcd.cert_file: /etc/forebay/etcd/tls.crt
cluster.etcd.key_file: /etc/forebay/etcd/tls.key
{{- end }}
{{- end }}
{{- if $values.etcd.user }}
cluster.etcd.user: {{ $values.etcd.user | quote }}
cluster.etcd.password_file: /etc/forebay/etcd-password/password
{{- end }}
{{- if $values.coordinator.enabled }}
coordinator.hostname: {{ include "forebay.coordinator" $root | quote }}
{{- end }}
security.mode: {{ $values.security.mode | quote }}
{{- if eq $values.security.mode "key" }}
security.key_file: /etc/forebay/identity/cluster.key
{{- else if eq $values.security.mode "mtls" }}
security.cert_file: /etc/forebay/identity/tls.crt
security.cert_key_file: /etc/forebay/identity/tls.key
security.ca_file: /etc/forebay/identity/ca.crt
{{- end }}
{{- if ne $values.security.mode "off" }}
security.trust_domain: {{ $values.security.trustDomain | quote }}
network.tcp.security: {{ $values.security.tcp | quote }}
{{- end }}
{{- if $values.security.denied }}
security.denied_file: /etc/forebay/denied/identities
{{- end }}
{{- if $values.security.metricsTokenSecret }}
security.metrics_token_file: /etc/forebay/metrics-token/token
{{- end }}
{{- if .mounts }}
mounts:
{{- range $values.mounts }}
  - {{ printf "%s=%s" .path .origin | quote }}
{{- end }}
{{- end }}
{{- end }}

{{/* What the operator is configured with: where the coordinator is, as whom it asks, and who may scrape it. */}}
{{- define "forebay.operatorSettings" -}}
cluster.name: {{ .Values.cluster.name | quote }}
coordinator.hostname: {{ include "forebay.coordinator" . | quote }}
security.mode: {{ .Values.security.mode | quote }}
{{- if eq .Values.security.mode "key" }}
security.key_file: /etc/forebay/identity/cluster.key
{{- else if eq .Values.security.mode "mtls" }}
security.cert_file: /etc/forebay/identity/tls.crt
security.cert_key_file: /etc/forebay/identity/tls.key
security.ca_file: /etc/forebay/identity/ca.crt
{{- end }}
{{- if ne .Values.security.mode "off" }}
security.trust_domain: {{ .Values.security.trustDomain | quote }}
{{- end }}
{{- if .Values.security.denied }}
security.denied_file: /etc/forebay/denied/identities
{{- end }}
{{- if .Values.security.metricsTokenSecret }}
security.metrics_token_file: /etc/forebay/metrics-token/token
{{- end }}
{{- end }}

{{/* forebay.toml: what JSON writes of texts, numbers and lists, TOML reads. Takes a dict of `settings` and of `more`, a list of
     dicts that win over them, the last one first. */}}
{{- define "forebay.toml" -}}
{{- $all := deepCopy .settings }}
{{- range .more }}
{{- range $key, $value := . }}
{{- $_ := set $all $key $value }}
{{- end }}
{{- end }}
{{- range $key, $value := $all }}
{{ $key }} = {{ $value | toJson }}
{{- end }}
{{- end }}

{{/* How a pod of a role without rights runs. */}}
{{- define "forebay.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "forebay.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* Where a process is reached: its pod, or its node. */}}
{{- define "forebay.hostname" -}}
- name: FOREBAY_WORKER_HOSTNAME
  valueFrom: {fieldRef: {fieldPath: {{ if . }}status.hostIP{{ else }}status.podIP{{ end }}}}
{{- end }}

{{/* The probes of a process at its own port for them. A start may take as long as reading the headers of large disks does. */}}
{{- define "forebay.probes" -}}
startupProbe:
  httpGet: {path: /healthz, port: health}
  periodSeconds: 2
  failureThreshold: 300
livenessProbe:
  httpGet: {path: /healthz, port: health}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: health}
  periodSeconds: 5
  timeoutSeconds: 5
{{- end }}

{{/* Files that a role has. Takes a dict of `root`, of `role` and of `secret`, the role whose certificate it has. */}}
{{- define "forebay.volumes" -}}
{{- $values := .root.Values }}
{{- $fullname := include "forebay.fullname" .root }}
- name: config
  configMap: {name: {{ $fullname }}-{{ .role }}}
- name: tmp
  emptyDir: {}
- name: state
  emptyDir: {}
{{- if eq $values.security.mode "key" }}
- name: identity
  secret: {secretName: {{ $values.security.keySecret }}, defaultMode: 0440}
{{- else if eq $values.security.mode "mtls" }}
- name: identity
  secret: {secretName: {{ include "forebay.certificate" (dict "root" .root "role" .secret) }}, defaultMode: 0440}
{{- end }}
{{- if $values.security.denied }}
- name: denied
  configMap: {name: {{ $fullname }}-denied}
{{- end }}
{{- if $values.security.metricsTokenSecret }}
- name: metrics-token
  secret: {secretName: {{ $values.security.metricsTokenSecret }}, defaultMode: 0440}
{{- end }}
{{- if $values.etcd.tlsSecret }}
- name: etcd
  secret: {secretName: {{ $values.etcd.tlsSecret }}, defaultMode: 0440}
{{- end }}
{{- if $values.etcd.passwordSecret }}
- name: etcd-password
  secret: {secretName: {{ $values.etcd.passwordSecret }}, defaultMode: 0440}
{{- end }}
{{- end }}

{{- define "forebay.volumeMounts" -}}
{{- $values := .Values }}
- {name: config, mountPath: /etc/forebay/config, readOnly: true}
- {name: tmp, mountPath: /tmp}
- {name: state, mountPath: /var/lib/forebay}
{{- if ne $values.security.mode "off" }}
- {name: identity, mountPath: /etc/forebay/identity, readOnly: true}
{{- end }}
{{- if $values.security.denied }}
- {name: denied, mountPath: /etc/forebay/denied, readOnly: true}
{{- end }}
{{- if $values.security.metricsTokenSecret }}
- {name: metrics-token, mountPath: /etc/forebay/metrics-token, readOnly: true}
{{- end }}
{{- if $values.etcd.tlsSecret }}
- {name: etcd, mountPath: /etc/forebay/etcd, readOnly: true}
{{- end }}
{{- if $values.etcd.passwordSecret }}
- {name: etcd-password, mountPath: /etc/forebay/etcd-password, readOnly: true}
{{- end }}
{{- end }}

{{/* That pods of a role run on different nodes, if there are enough. Takes a dict of `root` and `role`. */}}
{{- define "forebay.apart" -}}
affinity:
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels: {{- include "forebay.selector" . | nindent 14 }}
{{- end }}

{{/* Where a pod runs. Takes the values of its role. */}}
{{- define "forebay.placement" -}}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .topologySpreadConstraints }}
topologySpreadConstraints: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end }}

{{/* Which configuration commands of an admin have, in a worker's pod. */}}
{{- define "forebay.admin" -}}
{{- if eq .Values.security.mode "mtls" }}--config /etc/forebay/admin/forebay.toml{{ else }}--config "$FOREBAY_CONFIG"{{ end }}
{{- end }}

{{/* What a worker gets of its node, with cards and huge pages. Takes the values of workers. */}}
{{- define "forebay.workerResources" -}}
{{- $requests := deepCopy (default dict .resources.requests) }}
{{- $limits := deepCopy (default dict .resources.limits) }}
{{- if .hugePages.amount }}
{{- $name := printf "hugepages-%s" .hugePages.pageSize }}
{{- $_ := set $requests $name .hugePages.amount }}
{{- $_ := set $limits $name .hugePages.amount }}
{{- end }}
{{- if and .rdma.enabled .rdma.resource }}
{{- $_ := set $requests .rdma.resource .rdma.count }}
{{- $_ := set $limits .rdma.resource .rdma.count }}
{{- end }}
{{- dict "requests" $requests "limits" $limits | toYaml }}
{{- end }}
