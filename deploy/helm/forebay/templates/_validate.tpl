{{/* What values.schema.json cannot say: which values go together. Each refusal names the remedy. */}}
{{- define "forebay.validate" -}}
{{- $values := .Values }}
{{- $security := $values.security }}
{{- if not $security.mode }}
{{- fail "security.mode is not set: key, with the Secret of `kubectl create secret generic forebay-key --from-file=cluster.key` as security.keySecret; mtls; or off, with which whoever reaches a port may do everything" }}
{{- end }}
{{- if and (eq $security.mode "key") (not $security.keySecret) }}
{{- fail "security.mode=key needs security.keySecret: `forebay key create > cluster.key; kubectl create secret generic forebay-key --from-file=cluster.key`" }}
{{- end }}
{{- if and (eq $security.mode "mtls") (not $security.certManager.enabled) }}
{{- range $role, $used := dict "worker" true "coordinator" $values.coordinator.enabled "mount" (or $values.mount.enabled $values.csi.enabled) "admin" (or $values.worker.drainOnStop $values.operator.enabled) }}
{{- if and $used (not (get $security (printf "%sSecret" $role))) }}
{{- fail (printf "security.mode=mtls needs security.%sSecret, or security.certManager.enabled=true" $role) }}
{{- end }}
{{- end }}
{{- end }}
{{- if and (not $values.etcd.endpoints) (not $values.etcd.trial.enabled) }}
{{- fail "workers find each other through etcd: set etcd.endpoints, or etcd.trial.enabled=true to try things out" }}
{{- end }}
{{- if and $values.etcd.endpoints $values.etcd.trial.enabled }}
{{- fail "etcd.endpoints and etcd.trial.enabled: one of them" }}
{{- end }}
{{- if and $values.etcd.user (not $values.etcd.passwordSecret) }}
{{- fail "etcd.user needs etcd.passwordSecret, a Secret with the password under the key `password`" }}
{{- end }}
{{- $cache := $values.worker.cache.type }}
{{- if and (eq $cache "volumeClaim") (ne $values.worker.kind "StatefulSet") }}
{{- fail "worker.cache.type=volumeClaim needs worker.kind=StatefulSet; a DaemonSet has hostPath or emptyDir" }}
{{- end }}
{{- if eq $values.profile "restricted" }}
{{- if eq $cache "hostPath" }}
{{- fail "pod security restricted has no hostPath: set profile=rdma, or worker.cache.type to emptyDir or volumeClaim" }}
{{- end }}
{{- if or $values.worker.hostNetwork $values.worker.rdma.enabled }}
{{- fail "pod security restricted has neither the host's network nor IPC_LOCK for RDMA: set profile=rdma" }}
{{- end }}
{{- end }}
{{- if and $values.worker.rdma.enabled (not $values.worker.rdma.resource) }}
{{- fail "worker.rdma.enabled needs worker.rdma.resource, the name by which a device plugin hands out cards, as rdma/hca_shared_devices_a" }}
{{- end }}
{{- if and $values.worker.drainOnStop (not $values.coordinator.enabled) }}
{{- fail "worker.drainOnStop asks a coordinator: set coordinator.enabled=true" }}
{{- end }}
{{- if and $values.mount.enabled (eq $values.mount.updateStrategy "RollingUpdate") (not $values.mount.keeper.enabled) }}
{{- fail "mount.updateStrategy=RollingUpdate ends what is open in the mount of a node without a keeper: set mount.keeper.enabled=true, or OnDelete" }}
{{- end }}
{{- if and $values.csi.enabled (eq $values.csi.updateStrategy "RollingUpdate") (not $values.csi.keeper.enabled) }}
{{- fail "csi.updateStrategy=RollingUpdate ends all volumes of a node without keepers: set csi.keeper.enabled=true" }}
{{- end }}
{{- if and $values.operator.enabled (not $values.coordinator.enabled) }}
{{- fail "the operator asks a coordinator: set coordinator.enabled=true" }}
{{- end }}
{{- end }}
