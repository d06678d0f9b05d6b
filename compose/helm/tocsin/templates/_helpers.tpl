{{- define "tocsin.name" -}}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{- end }}

{{- define "tocsin.secret" -}}{{ .Values.secrets.existing | default (include "tocsin.name" .) }}{{- end }}

{{- define "tocsin.tls" -}}
{{- if .Values.nats.tls.existing }}{{ .Values.nats.tls.existing }}{{ else if .Values.nats.enabled }}{{ include "tocsin.name" . }}-nats-tls{{ end -}}
{{- end }}

{{- define "tocsin.accounts" -}}{{ .Values.nats.accounts | default (.Files.Get "files/accounts.conf") }}{{- end }}

{{- /* The users in the accounts, such as `lock-keeper`. */ -}}
{{- define "tocsin.users" -}}
{{- $users := list }}
{{- range regexFindAll "\\$TOCSIN_[A-Z0-9_]+_PASSWORD" (include "tocsin.accounts" .) -1 }}
{{- $users = append $users (. | trimPrefix "$TOCSIN_" | trimSuffix "_PASSWORD" | lower | replace "_" "-") }}
{{- end }}
{{- $users | uniq | sortAlpha | toJson }}
{{- end }}

{{- define "tocsin.natsUrl" -}}
{{- if .Values.nats.enabled }}
{{- $name := printf "%s-nats" (include "tocsin.name" .) }}
{{- $urls := list }}
{{- range $number := until (int .Values.nats.servers) }}{{ $urls = append $urls (printf "tls://%s-%d.%s:4222" $name $number $name) }}{{ end }}
{{- join "," $urls }}
{{- else }}
{{- required "nats.enabled is false: set nats.url" .Values.nats.url }}
{{- end }}
{{- end }}

{{- define "tocsin.natsConfiguration" -}}
{{- $name := printf "%s-nats" (include "tocsin.name" .) }}
{{- $routes := list }}
{{- range $number := until (int .Values.nats.servers) }}{{ $routes = append $routes (printf "nats://%s-%d.%s:6222" $name $number $name) }}{{ end -}}
server_name: $POD_NAME
listen: 0.0.0.0:4222
http: 0.0.0.0:8222 # probes, and `tocsin doctor --monitor`

jetstream {
  store_dir: /data
  max_file_store: {{ .Values.nats.storage.maxBytes }}
  # Flush every write before it is acknowledged. By default a server flushes every 2 minutes, and a power failure of all
  # servers loses the writes since then.
  sync_interval: always
}

tls {
  cert_file: /certificates/tls.crt
  key_file: /certificates/tls.key
  ca_file: /certificates/ca.crt
}

{{- if gt (int .Values.nats.servers) 1 }}

cluster {
  name: {{ .Release.Name }}
  listen: 0.0.0.0:6222
  no_advertise: true # clients know the names of all servers, which their certificate has; the addresses of pods change
  routes: [ {{ join ", " $routes }} ]
  tls {
    cert_file: /certificates/tls.crt
    key_file: /certificates/tls.key
    ca_file: /certificates/ca.crt
    verify: true
  }
}
{{- end }}

include accounts.conf
{{- end }}

{{- define "tocsin.settings" -}}
{{- $nats := dict "url" (include "tocsin.natsUrl" .) }}
{{- if include "tocsin.tls" . }}{{ $_ := set $nats "tls" (dict "ca" "/certificates/ca.crt") }}{{ end }}
{{- $metrics := dict "enabled" true "port" 9090 "process_port" 9090 "process_host" "0.0.0.0" }}
{{- $settings := dict
    "replicas" (int (ternary .Values.nats.servers 3 .Values.nats.enabled))
    "data_dir" "/tmp/tocsin"
    "nats" $nats
    "server" (dict "host" "0.0.0.0" "port" 8062)
    "screener" (dict "enabled" true)
    "metrics" $metrics }}
{{- mergeOverwrite $settings (deepCopy .Values.settings) | toYaml }}
{{- end }}

{{- /* Not empty if a queue of the settings has the transport `mq`. */ -}}
{{- define "tocsin.bridged" -}}
{{- range $queue := .Values.settings.queues }}{{ if eq (dig "transport" "" ($queue | default dict)) "mq" }}yes{{ end }}{{ end }}
{{- end }}

{{- /* (dict "root" $ "component" "api") */ -}}
{{- define "tocsin.labels" -}}
app.kubernetes.io/name: tocsin
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "tocsin.metadata" -}}
name: {{ include "tocsin.name" .root }}{{ with .suffix }}-{{ . }}{{ end }}
labels: {{- include "tocsin.labels" . | nindent 2 }}
{{- end }}

{{- define "tocsin.annotations" -}}
checksum/settings: {{ include "tocsin.settings" . | sha256sum }}
{{- if .Values.metrics.annotations }}
prometheus.io/scrape: "true"
prometheus.io/port: "9090"
prometheus.io/path: /metrics
{{- end }}
{{- end }}

{{- /* Pod security `restricted`; `user` is that of the image. */ -}}
{{- define "tocsin.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false # a Service would add variables that begin with TOCSIN_
securityContext:
  runAsNonRoot: true
  runAsUser: {{ .user }}
  runAsGroup: {{ .user }}
  fsGroup: {{ .user }}
  seccompProfile: { type: RuntimeDefault }
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "tocsin.container" -}}
securityContext: { allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: { drop: [ALL] } }
{{- end }}

{{- define "tocsin.spread" -}}
{{- with .root.Values.spread }}
topologySpreadConstraints:
{{- range . }}
  - maxSkew: 1
    topologyKey: {{ .topologyKey }}
    whenUnsatisfiable: {{ .whenUnsatisfiable }}
    labelSelector:
      matchLabels: {{- include "tocsin.labels" $ | nindent 8 }}
{{- end }}
{{- end }}
{{- end }}

{{- define "tocsin.secretKey" -}}
valueFrom: { secretKeyRef: { name: {{ include "tocsin.secret" .root }}, key: {{ .key }} } }
{{- end }}

{{- define "tocsin.env" -}}
- name: TOCSIN_CONFIG
  value: /etc/tocsin/tocsin.yaml
- name: TOCSIN_NATS__USER
  value: {{ .user }}
- name: TOCSIN_NATS__PASSWORD
  {{ include "tocsin.secretKey" (dict "root" .root "key" (printf "%s-password" .user)) }}
- name: TOCSIN_NATS__INBOX_PREFIX
  value: _INBOX_{{ .user }}
{{- end }}

{{- define "tocsin.database" -}}
{{- if .root.Values.postgresql.enabled }}
- name: POSTGRES_PASSWORD
  {{ include "tocsin.secretKey" (dict "root" .root "key" "postgres-password") }}
- name: DATABASE_URL
  value: postgresql://tocsin:$(POSTGRES_PASSWORD)@{{ include "tocsin.name" .root }}-postgresql:5432/tocsin
{{- else }}
- name: DATABASE_URL
  {{ include "tocsin.secretKey" (dict "root" .root "key" "database-url") }}
{{- end }}
{{- end }}

{{- define "tocsin.databaseTls" -}}
{{- if not .Values.postgresql.enabled }}{{ .Values.postgresql.tls.existing }}{{ end -}}
{{- end }}

{{- define "tocsin.mounts" -}}
- { name: settings, mountPath: /etc/tocsin/tocsin.yaml, subPath: tocsin.yaml }
- { name: scratch, mountPath: /tmp }
{{- if include "tocsin.tls" . }}
- { name: certificates, mountPath: /certificates }
{{- end }}
{{- if include "tocsin.databaseTls" . }}
- { name: database-authority, mountPath: /postgresql }
{{- end }}
{{- end }}

{{- define "tocsin.volumes" -}}
- name: settings
  configMap: { name: {{ include "tocsin.name" . }} }
- name: scratch
  emptyDir: { sizeLimit: 64Mi }
{{- if include "tocsin.tls" . }}
- name: certificates
  secret: { secretName: {{ include "tocsin.tls" . }}, items: [{ key: ca.crt, path: ca.crt }] }
{{- end }}
{{- with include "tocsin.databaseTls" . }}
- name: database-authority
  secret: { secretName: {{ . }}, items: [{ key: ca.crt, path: ca.crt }] }
{{- end }}
{{- end }}

{{- /* The probes of `tocsin run` and `tocsin worker`. */ -}}
{{- define "tocsin.probes" -}}
readinessProbe: { httpGet: { path: /readyz, port: metrics }, periodSeconds: 5, timeoutSeconds: 3 }
livenessProbe: { httpGet: { path: /livez, port: metrics }, initialDelaySeconds: 30, periodSeconds: 10, timeoutSeconds: 5, failureThreshold: 6 }
{{- end }}

{{- define "tocsin.budget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {{- include "tocsin.metadata" . | nindent 2 }}
spec:
  maxUnavailable: 1
  selector:
    matchLabels: {{- include "tocsin.labels" . | nindent 6 }}
{{- end }}
