{{/* Names. */}}
{{- define "kvterrace.fullname" -}}
{{- if .Values.fullnameOverride }}{{ .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- else }}{{ $name := default .Chart.Name .Values.nameOverride }}
{{- if contains $name .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}{{ printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" }}{{ end }}{{ end }}
{{- end }}

{{- define "kvterrace.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: node
{{- end }}

{{- define "kvterrace.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "kvterrace.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}{{ default (include "kvterrace.fullname" .) .Values.serviceAccount.name }}
{{- else }}{{ default "default" .Values.serviceAccount.name }}{{ end }}
{{- end }}

{{- define "kvterrace.image" -}}
{{- printf "%s:%s" .image.repository (default .root.Chart.AppVersion .image.tag) -}}
{{- end }}

{{/* What follows from the values; each is "true" or empty. */}}
{{- define "kvterrace.clustered" -}}
{{- if or (eq .Values.mode "cluster") .Values.cluster.enabled }}true{{ end }}
{{- end }}
{{- define "kvterrace.tls" -}}
{{- if or .Values.security.tls.secretName .Values.security.tls.certManager.enabled }}true{{ end }}
{{- end }}
{{- define "kvterrace.exposed" -}}
{{- if or (include "kvterrace.tls" .) .Values.security.insecureListen }}true{{ end }}
{{- end }}
{{/* The engine's own listener: with certificates or keys it asks, else only insecureListen lets it off loopback. */}}
{{- define "kvterrace.engineTls" -}}
{{- if and (include "kvterrace.tls" .) (or .Values.engine.apiKeysSecret .Values.security.tls.requireClientCertificates) }}true{{ end }}
{{- end }}
{{- define "kvterrace.tlsSecret" -}}
{{- default (printf "%s-tls" (include "kvterrace.fullname" .)) .Values.security.tls.secretName }}
{{- end }}
{{- define "kvterrace.nodes" -}}
{{ include "kvterrace.fullname" . }}-nodes
{{- end }}
{{- define "kvterrace.nodesDomain" -}}
{{ include "kvterrace.nodes" . }}.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}
{{- end }}
{{- define "kvterrace.valkeyName" -}}
{{ include "kvterrace.fullname" . }}-valkey
{{- end }}

{{/* What cannot work is refused here, by the name of the value. */}}
{{- define "kvterrace.check" -}}
{{- $v := .Values }}
{{- if and (include "kvterrace.clustered" .) (not (include "kvterrace.exposed" .)) }}
{{- fail "security: nodes of a cluster reach each other over the network; set security.tls.secretName, or security.tls.certManager.enabled, or security.insecureListen: true where the network asks who calls" }}
{{- end }}
{{- if include "kvterrace.clustered" . }}
{{- $ways := list $v.cluster.valkey.url $v.cluster.valkey.existingSecret (ternary "yes" "" $v.cluster.valkey.deploy) | compact }}
{{- if ne (len $ways) 1 }}
{{- fail "cluster.valkey: set exactly one of url, existingSecret and deploy: true" }}
{{- end }}
{{- if and $v.security.identitiesSecret (not $v.security.nodeTokenSecret) (not (and (include "kvterrace.tls" .) $v.security.tls.requireClientCertificates)) }}
{{- fail "security.nodeTokenSecret: other nodes will ask this one who it is; give it a token, or security.tls.requireClientCertificates" }}
{{- end }}
{{- if and (include "kvterrace.tls" .) (not $v.security.tls.requireClientCertificates) (not $v.security.identitiesSecret) (not $v.security.insecureListen) }}
{{- fail "security.identitiesSecret: without client certificates nobody would be asked who they are; give identities, or security.tls.requireClientCertificates" }}
{{- end }}
{{- end }}
{{- if and (not (include "kvterrace.tls" .)) $v.security.identitiesSecret (not $v.security.insecureListen) }}
{{- fail "security.tls: tokens of security.identitiesSecret would travel in clear; set security.tls.secretName or security.tls.certManager.enabled" }}
{{- end }}
{{- if and (eq $v.mode "sidecar") (not $v.engine.enabled) }}
{{- fail "engine.enabled: a sidecar without an engine serves nobody; use mode: cluster for nodes that only store" }}
{{- end }}
{{- if and $v.engine.enabled (not $v.engine.modelVolume) }}
{{- fail "engine.modelVolume: say which volume has the model, such as {persistentVolumeClaim: {claimName: models}}" }}
{{- end }}
{{- if and $v.engine.enabled (not (include "kvterrace.engineTls" .)) (not $v.security.insecureListen) }}
{{- fail "engine: its port is reached from other pods; set security.tls and engine.apiKeysSecret (or security.tls.requireClientCertificates), or security.insecureListen: true" }}
{{- end }}
{{- if and $v.engine.apiKeysSecret (not (include "kvterrace.tls" .)) (not $v.security.insecureListen) }}
{{- fail "engine.apiKeysSecret: keys would travel in clear; set security.tls.secretName or security.tls.certManager.enabled" }}
{{- end }}
{{- if and $v.security.keyringSecret (not $v.nvme.enabled) (not $v.cluster.remote) }}
{{- fail "security.keyringSecret: nothing is written that could be encrypted; set nvme.enabled or cluster.remote" }}
{{- end }}
{{- if and $v.deletionCost.enabled (eq $v.mode "cluster") }}
{{- fail "deletionCost.enabled: a StatefulSet removes its last pod, whatever it costs; use mode: sidecar with cluster.enabled" }}
{{- end }}
{{- if and (or $v.deletionCost.enabled $v.monitoring.podMonitor.enabled) (not (include "kvterrace.exposed" .)) }}
{{- fail "security: metrics are read from other pods; set security.tls or security.insecureListen" }}
{{- end }}
{{- if and (ne $v.autoscaling.kind "none") (not $v.engine.enabled) }}
{{- fail "autoscaling.kind: replicas follow the engines' load, and engine.enabled is false" }}
{{- end }}
{{- if and (ne $v.autoscaling.kind "none") (lt (int $v.autoscaling.maxReplicas) (int $v.autoscaling.minReplicas)) }}
{{- fail "autoscaling.maxReplicas: is below autoscaling.minReplicas" }}
{{- end }}
{{- if and $v.security.tls.certManager.enabled (not $v.security.tls.certManager.issuerRef.name) }}
{{- fail "security.tls.certManager.issuerRef.name: which issuer shall sign?" }}
{{- end }}
{{- if and $v.nvme.ownership (not $v.nvme.hostPath) }}
{{- fail "nvme.ownership: is for nvme.hostPath; a claim gets its owner from Kubernetes (fsGroup)" }}
{{- end }}
{{- end }}
