{{/* The pod of either workload. */}}
{{- define "kvterrace.pod" -}}
metadata:
  labels:
    {{- include "kvterrace.labels" . | nindent 4 }}
    app.kubernetes.io/component: node
    {{- with .Values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    kubectl.kubernetes.io/default-container: {{ ternary "engine" "kvterrace" .Values.engine.enabled }}
    {{- with .Values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "kvterrace.serviceAccount" . }}
  automountServiceAccountToken: false
  # A Service named kvterrace would put KVTERRACE_PORT and the like into every pod, and what is no option stops the start.
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ include "kvterrace.graceSeconds" . }}
  securityContext:
    runAsNonRoot: true
    runAsUser: {{ .Values.podSecurity.uid | int }}
    runAsGroup: {{ .Values.podSecurity.gid | int }}
    fsGroup: {{ .Values.podSecurity.gid | int }}
    fsGroupChangePolicy: OnRootMismatch
    seccompProfile: {type: RuntimeDefault}
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with .Values.runtimeClassName }}
  runtimeClassName: {{ . }}
  {{- end }}
  {{- if or .Values.engine.enabled .Values.nvme.ownership }}
  initContainers:
    {{- if .Values.nvme.ownership }}
    - name: ownership
      image: {{ include "kvterrace.image" (dict "image" .Values.sidecar.image "root" .) }}
      imagePullPolicy: {{ .Values.sidecar.image.pullPolicy }}
      command: [chown, "{{ .Values.podSecurity.uid | int }}:{{ .Values.podSecurity.gid | int }}", /var/lib/kvterrace/nvme]
      resources:
        requests: {cpu: 10m, memory: 16Mi}
        limits: {memory: 64Mi}
      securityContext:
        runAsUser: 0
        runAsNonRoot: false
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities: {drop: [ALL], add: [CHOWN]}
      volumeMounts:
        - {name: nvme, mountPath: /var/lib/kvterrace/nvme}
    {{- end }}
    {{- if .Values.engine.enabled }}
    {{- include "kvterrace.sidecar" . | nindent 4 }}
    {{- end }}
  {{- end }}
  containers:
    {{- if .Values.engine.enabled }}
    {{- include "kvterrace.engine" . | nindent 4 }}
    {{- else }}
    {{- include "kvterrace.sidecar" . | nindent 4 }}
    {{- end }}
  volumes:
    - name: arena
      emptyDir: {medium: Memory, sizeLimit: {{ include "kvterrace.arenaMiB" . }}Mi}
    - name: run
      emptyDir: {medium: Memory, sizeLimit: 1Mi}
    - name: tmp
      emptyDir: {sizeLimit: 1Gi}
    {{- if .Values.security.auditLog }}
    - name: audit
      emptyDir: {sizeLimit: 1Gi}
    {{- end }}
    {{- if .Values.nvme.enabled }}
    {{- if .Values.nvme.hostPath }}
    - name: nvme
      hostPath: {path: {{ .Values.nvme.hostPath | quote }}, type: DirectoryOrCreate}
    {{- else if ne .Values.mode "cluster" }}
    - name: nvme
      ephemeral:
        volumeClaimTemplate:
          spec:
            {{- include "kvterrace.nvmeClaim" . | nindent 12 }}
    {{- end }}
    {{- end }}
    {{- range $name, $secret := fromYaml (include "kvterrace.secrets" .) }}
    - name: {{ $name }}
      secret: {secretName: {{ $secret }}, defaultMode: 0440}
    {{- end }}
    {{- if .Values.engine.enabled }}
    - name: model
      {{- toYaml .Values.engine.modelVolume | nindent 6 }}
    {{- with .Values.engine.apiKeysSecret }}
    - name: api-keys
      secret: {secretName: {{ . }}, defaultMode: 0440}
    {{- end }}
    {{- end }}
  {{- with .Values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  topologySpreadConstraints:
    {{- with .Values.topologySpreadConstraints }}
    {{- toYaml . | nindent 4 }}
    {{- else }}
    - maxSkew: 1
      topologyKey: kubernetes.io/hostname
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "kvterrace.selector" . | nindent 10 }}
    {{- end }}
{{- end }}

{{/* Drain and the engine's last requests go on at the same time, then the store writes what waits: 30 s at most. */}}
{{- define "kvterrace.graceSeconds" -}}
{{- $drain := ternary (int .Values.cluster.drainSeconds) 0 (ne (include "kvterrace.clustered" .) "") }}
{{- $engine := ternary (add 5 (int .Values.engine.graceSeconds) 5) 0 .Values.engine.enabled }}
{{- add (max $drain $engine) 45 }}
{{- end }}
