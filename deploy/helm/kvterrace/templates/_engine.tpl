{{/* The engine's container. */}}
{{- define "kvterrace.engine" -}}
- name: engine
  image: {{ include "kvterrace.image" (dict "image" .Values.engine.image "root" .) }}
  imagePullPolicy: {{ .Values.engine.image.pullPolicy }}
  args:
    - engine
    - {{ .Values.engine.model | quote }}
    - --host
    - 0.0.0.0
    - --port
    - {{ .Values.engine.port | int | quote }}
    - --kv-connector
    - sidecar
    - --kv-address
    - unix:/run/kvterrace/private/kvterrace.sock
    - --kv-pool
    - {{ .Values.engine.kvPoolMiB | int }}MiB
    - --max-queue
    - {{ .Values.engine.maxQueue | int | quote }}
    - --device
    - {{ .Values.engine.device | quote }}
    - --dtype
    - {{ .Values.engine.dtype }}
    - --grace
    - {{ .Values.engine.graceSeconds | int | quote }}
    {{- range $what, $seconds := .Values.engine.slo }}
    {{- if $seconds }}
    - --slo-{{ $what }}
    - {{ $seconds | quote }}
    {{- end }}
    {{- end }}
    {{- if .Values.tracing.otlp }}
    - --otlp
    - {{ .Values.tracing.otlp }}
    - --otlp-sample
    - {{ .Values.tracing.sample | quote }}
    {{- end }}
    {{- with .Values.engine.servedModelName }}
    - --served-model-name
    - {{ . | quote }}
    {{- end }}
    {{- if include "kvterrace.engineTls" . }}
    - --tls-cert
    - /etc/kvterrace/tls/tls.crt
    - --tls-key
    - /etc/kvterrace/tls/tls.key
    {{- if .Values.security.tls.requireClientCertificates }}
    - --tls-ca
    - /etc/kvterrace/tls/ca.crt
    {{- end }}
    {{- end }}
    {{- if .Values.engine.apiKeysSecret }}
    - --api-keys
    - /etc/kvterrace/api-keys/keys.toml
    {{- end }}
    {{- if .Values.security.insecureListen }}
    - --insecure-listen
    {{- end }}
    {{- with .Values.engine.extraArgs }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with .Values.engine.extraEnv }}
  env:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  ports:
    - {name: api, containerPort: {{ .Values.engine.port | int }}}
  # It answers /health while it loads the model, and /ready once it takes requests.
  startupProbe:
    {{- include "kvterrace.engineProbe" (dict "root" . "path" "/ready") | nindent 4 }}
    periodSeconds: 5
    failureThreshold: 360
  livenessProbe:
    {{- include "kvterrace.engineProbe" (dict "root" . "path" "/health") | nindent 4 }}
    periodSeconds: 10
    failureThreshold: 6
  readinessProbe:
    {{- include "kvterrace.engineProbe" (dict "root" . "path" "/ready") | nindent 4 }}
    periodSeconds: 5
    failureThreshold: 2
  lifecycle:
    # So long does it take until nobody sends requests here any more.
    preStop: {exec: {command: [sleep, "5"]}}
  resources:
    {{- toYaml .Values.engine.resources | nindent 4 }}
  {{- include "kvterrace.containerSecurity" . | nindent 2 }}
  volumeMounts:
    - {name: arena, mountPath: /dev/shm}
    - {name: run, mountPath: /run/kvterrace}
    - {name: tmp, mountPath: /tmp}
    - {name: model, mountPath: {{ include "kvterrace.modelMount" . }}, readOnly: true}
    {{- if include "kvterrace.engineTls" . }}
    - {name: tls, mountPath: /etc/kvterrace/tls, readOnly: true}
    {{- end }}
    {{- if .Values.engine.apiKeysSecret }}
    - {name: api-keys, mountPath: /etc/kvterrace/api-keys, readOnly: true}
    {{- end }}
{{- end }}

{{- define "kvterrace.modelMount" -}}
/{{ index (splitList "/" (trimPrefix "/" .Values.engine.model)) 0 }}
{{- end }}

{{- define "kvterrace.engineProbe" -}}
httpGet:
  path: {{ .path }}
  port: api
  scheme: {{ ternary "HTTPS" "HTTP" (ne (include "kvterrace.engineTls" .root) "") }}
timeoutSeconds: 3
{{- end }}
