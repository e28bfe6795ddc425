{{/* The store's container. */}}
{{- define "kvterrace.serveArgs" -}}
- serve
- --dram
- {{ .Values.sidecar.dramMiB | int }}MiB
- --policy
- {{ .Values.sidecar.policy }}
- --log-level
- {{ .Values.sidecar.logLevel }}
- --uds
- /run/kvterrace/private/kvterrace.sock
- --arena-dir
- /dev/shm
- --http
- {{ ternary "0.0.0.0" "127.0.0.1" (ne (include "kvterrace.exposed" .) "") }}:9101
{{- with .Values.nvme }}
{{- if .enabled }}
- --nvme
- /var/lib/kvterrace/nvme/kv:{{ .sizeGiB | int }}GiB
- --nvme-mode
- {{ .mode }}
- --nvme-admission
- {{ .admission }}
- --nvme-codec
- {{ .codec }}
{{- if .dailyWritesGiB }}
- --nvme-daily-writes
- {{ .dailyWritesGiB | int }}GiB
{{- end }}
{{- end }}
{{- end }}
{{- if include "kvterrace.clustered" . }}
- --node
- $(POD_NAME)
- --cluster-name
- {{ .Values.cluster.name }}
- --listen
- 0.0.0.0:9100
- --bulk-listen
- 0.0.0.0:9102
{{- if eq .Values.mode "cluster" }}
- --advertise
- $(POD_NAME).{{ include "kvterrace.nodesDomain" . }}:9100
{{- else if not (include "kvterrace.tls" .) }}
- --advertise
- $(POD_IP):9100
{{- end }}
{{- if .Values.cluster.warmFromPeersMiB }}
- --warm-from-peers
- {{ .Values.cluster.warmFromPeersMiB | int }}MiB
{{- end }}
{{- end }}
{{- with .Values.cluster.remote }}
- --remote
- {{ . | quote }}
{{- end }}
{{- with .Values.tracing.otlp }}
- --otlp
- {{ . }}
{{- end }}
{{- include "kvterrace.securityArgs" . }}
{{- with .Values.sidecar.extraArgs }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "kvterrace.securityArgs" -}}
{{- if include "kvterrace.tls" . }}
- --tls-cert
- /etc/kvterrace/tls/tls.crt
- --tls-key
- /etc/kvterrace/tls/tls.key
{{- if .Values.security.tls.requireClientCertificates }}
- --tls-ca
- /etc/kvterrace/tls/ca.crt
{{- else if include "kvterrace.clustered" . }}
- --node-ca
- /etc/kvterrace/tls/ca.crt
{{- end }}
{{- end }}
{{- with .Values.security }}
{{- if .insecureListen }}
- --insecure-listen
{{- end }}
{{- if .identitiesSecret }}
- --identities
- /etc/kvterrace/identities/identities.toml
{{- end }}
{{- if .tenantsSecret }}
- --tenants
- /etc/kvterrace/tenants/tenants.toml
{{- end }}
{{- if .keyringSecret }}
- --nvme-keys
- /etc/kvterrace/keyring/keys.toml
{{- end }}
{{- if .auditLog }}
- --audit-log
- /var/lib/kvterrace/audit/audit.log
{{- end }}
{{- end }}
{{- if and (include "kvterrace.clustered" .) .Values.security.nodeTokenSecret }}
- --node-token-file
- /etc/kvterrace/node-token/token
{{- end }}
{{- end }}

{{/* A pod of a Deployment has no name in DNS but that of its address with dashes, which is what its certificate names. */}}
{{- define "kvterrace.byShell" -}}
{{- if and (include "kvterrace.clustered" .) (include "kvterrace.tls" .) (ne .Values.mode "cluster") }}true{{ end }}
{{- end }}

{{- define "kvterrace.probe" -}}
{{- if include "kvterrace.exposed" .root -}}
httpGet:
  path: {{ .path }}
  port: http
  scheme: {{ ternary "HTTPS" "HTTP" (ne (include "kvterrace.tls" .root) "") }}
{{- else -}}
exec:
  command: [kvterrace-probe, "http://127.0.0.1:9101{{ .path }}"]
{{- end }}
timeoutSeconds: 3
{{- end }}

{{- define "kvterrace.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{- define "kvterrace.sidecar" -}}
- name: kvterrace
  image: {{ include "kvterrace.image" (dict "image" .Values.sidecar.image "root" .) }}
  imagePullPolicy: {{ .Values.sidecar.image.pullPolicy }}
  {{- if .Values.engine.enabled }}
  restartPolicy: Always
  {{- end }}
  {{- if include "kvterrace.byShell" . }}
  command:
    - /bin/sh
    - -ec
    - |-
      exec kvterrace "$@" --advertise "$(echo "$POD_IP" | tr .: --).{{ include "kvterrace.nodesDomain" . }}:9100"
    - kvterrace
  {{- end }}
  args:
    {{- include "kvterrace.serveArgs" . | nindent 4 }}
  env:
    - name: POD_NAME
      valueFrom: {fieldRef: {fieldPath: metadata.name}}
    - name: POD_IP
      valueFrom: {fieldRef: {fieldPath: status.podIP}}
    {{- if include "kvterrace.clustered" . }}
    - name: KVTERRACE_CLUSTER
      {{- if .Values.cluster.valkey.existingSecret }}
      valueFrom: {secretKeyRef: {name: {{ .Values.cluster.valkey.existingSecret }}, key: url}}
      {{- else if .Values.cluster.valkey.deploy }}
      value: redis://{{ include "kvterrace.valkeyName" . }}:6379
      {{- else }}
      value: {{ .Values.cluster.valkey.url | quote }}
      {{- end }}
    {{- end }}
    {{- with .Values.sidecar.extraEnv }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  ports:
    {{- if include "kvterrace.clustered" . }}
    - {name: grpc, containerPort: 9100}
    - {name: bulk, containerPort: 9102}
    {{- end }}
    - {name: http, containerPort: 9101}
  # Recovery of a disk and the allocation of the arena come before the first answer; the engine waits for it.
  startupProbe:
    {{- include "kvterrace.probe" (dict "root" . "path" "/health") | nindent 4 }}
    periodSeconds: 2
    failureThreshold: 300
  livenessProbe:
    {{- include "kvterrace.probe" (dict "root" . "path" "/health") | nindent 4 }}
    periodSeconds: 10
    failureThreshold: 6
  readinessProbe:
    {{- include "kvterrace.probe" (dict "root" . "path" "/ready") | nindent 4 }}
    periodSeconds: 5
    failureThreshold: 2
  {{- if include "kvterrace.clustered" . }}
  # Begins when the pod is told to end, beside the engine's last requests; what comes after SIGTERM only writes what waits.
  lifecycle:
    preStop:
      exec:
        command: [kvterrace, drain, --stay, --deadline, {{ .Values.cluster.drainSeconds | int | quote }}]
  {{- end }}
  resources:
    requests: {cpu: {{ .Values.sidecar.cpu.request | quote }}, memory: {{ include "kvterrace.sidecarMiB" . }}Mi}
    limits:
      memory: {{ include "kvterrace.sidecarMiB" . }}Mi
      {{- with .Values.sidecar.cpu.limit }}
      cpu: {{ . | quote }}
      {{- end }}
  {{- include "kvterrace.containerSecurity" . | nindent 2 }}
  volumeMounts:
    - {name: arena, mountPath: /dev/shm}
    - {name: run, mountPath: /run/kvterrace}
    - {name: tmp, mountPath: /tmp}
    {{- if .Values.nvme.enabled }}
    - {name: nvme, mountPath: /var/lib/kvterrace/nvme}
    {{- end }}
    {{- if .Values.security.auditLog }}
    - {name: audit, mountPath: /var/lib/kvterrace/audit}
    {{- end }}
    {{- range $name, $secret := fromYaml (include "kvterrace.secrets" .) }}
    - {name: {{ $name }}, mountPath: /etc/kvterrace/{{ $name }}, readOnly: true}
    {{- end }}
{{- end }}

{{/* Volume name: Secret. */}}
{{- define "kvterrace.secrets" -}}
{{- if include "kvterrace.tls" . }}
tls: {{ include "kvterrace.tlsSecret" . }}
{{- end }}
{{- with .Values.security.identitiesSecret }}
identities: {{ . }}
{{- end }}
{{- with .Values.security.tenantsSecret }}
tenants: {{ . }}
{{- end }}
{{- with .Values.security.keyringSecret }}
keyring: {{ . }}
{{- end }}
{{- if and (include "kvterrace.clustered" .) .Values.security.nodeTokenSecret }}
node-token: {{ .Values.security.nodeTokenSecret }}
{{- end }}
{{- end }}

{{/* The arena's file: its data, four bytes a page of 4 KiB, a page, and room to round. */}}
{{- define "kvterrace.arenaMiB" -}}
{{ add (int .Values.sidecar.dramMiB) (div (int .Values.sidecar.dramMiB) 512) 32 }}
{{- end }}
{{- define "kvterrace.sidecarMiB" -}}
{{ add (int (include "kvterrace.arenaMiB" .)) (int .Values.sidecar.overheadMiB) }}
{{- end }}
{{- define "kvterrace.nvmeClaim" -}}
accessModes: [ReadWriteOnce]
{{- with .Values.nvme.storageClassName }}
storageClassName: {{ . }}
{{- end }}
resources:
  requests:
    storage: {{ add (int .Values.nvme.sizeGiB) (div (mul (int .Values.nvme.sizeGiB) 6) 100) 2 }}Gi
{{- end }}
