{{- define "lakeshare.name" -}}
{{- if .Values.nameOverride }}{{ .Values.nameOverride }}{{ else if contains "lakeshare" .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-lakeshare{{ end }}
{{- end }}

{{/* Labels of an object; the argument is (list . component). */}}
{{- define "lakeshare.selector" -}}
app.kubernetes.io/name: lakeshare
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "lakeshare.labels" -}}
{{ include "lakeshare.selector" . }}
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ (index . 0).Release.Service }}
helm.sh/chart: {{ (index . 0).Chart.Name }}-{{ (index . 0).Chart.Version }}
{{- end }}

{{/* Reference of an image; the argument is (list . image). */}}
{{- define "lakeshare.image" -}}
{{- $image := index . 1 -}}
{{ $image.repository }}{{ if $image.digest }}@{{ $image.digest }}{{ else }}:{{ $image.tag | default (index . 0).Chart.AppVersion }}{{ end }}
{{- end }}

{{/* Most servers that may run at the same time. */}}
{{- define "lakeshare.mostServers" -}}
{{- if .Values.server.autoscaling.enabled }}{{ .Values.server.autoscaling.maxReplicas }}{{ else }}{{ .Values.server.replicas }}{{ end }}
{{- end }}

{{/* "true" where several pods share the state. */}}
{{- define "lakeshare.isShared" -}}
{{- if or (gt (int (include "lakeshare.mostServers" .)) 1) .Values.pipelines.enabled }}true{{ end }}
{{- end }}

{{/* Refuses values that would install something that does not work. */}}
{{- define "lakeshare.check" -}}
{{- $why := printf "server.replicas (or autoscaling.maxReplicas) is %s" (include "lakeshare.mostServers" .) -}}
{{- if .Values.pipelines.enabled }}{{ $why = "pipelines.enabled is true" }}{{ end -}}
{{- if include "lakeshare.isShared" . -}}
  {{- if not (index .Values.secrets "LAKESHARE_DATABASE_URL") -}}
    {{- fail (printf "%s, and secrets.LAKESHARE_DATABASE_URL is not set: several pods need one PostgreSQL. Create a Secret with its URL (postgresql+psycopg://...) and name it: secrets.LAKESHARE_DATABASE_URL: {name: lakeshare-database, key: url}" $why) -}}
  {{- end -}}
  {{- if not (index .Values.secrets "LAKESHARE_SIGNING_KEY") -}}
    {{- fail (printf "%s, and secrets.LAKESHARE_SIGNING_KEY is not set: pods must accept each other's URLs, tokens and sealed secrets. Create a Secret with 32 random bytes (openssl rand -hex 32) and name it: secrets.LAKESHARE_SIGNING_KEY: {name: lakeshare-signing, key: key}" $why) -}}
  {{- end -}}
  {{- if not .Values.evidenceKey.secret -}}
    {{- fail (printf "%s, and evidenceKey.secret is not set: pods must sign publications with one key. Make one with `lakeshare evidence new-key`, create a Secret with the file and name it: evidenceKey.secret" $why) -}}
  {{- end -}}
  {{- $warehouse := index .Values.settings "LAKESHARE_WAREHOUSE" | default "" -}}
  {{- if not (regexMatch "^(s3|gs|abfss)://" $warehouse) -}}
    {{- fail (printf "%s, and settings.LAKESHARE_WAREHOUSE is %q: pods share tables and file indexes by an object store. Set it to s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PREFIX" $why $warehouse) -}}
  {{- end -}}
{{- end -}}
{{- if and .Values.serviceMonitor.enabled (not (index .Values.secrets "LAKESHARE_METRICS_TOKEN")) -}}
  {{- fail "serviceMonitor.enabled is true, and secrets.LAKESHARE_METRICS_TOKEN is not set: without a token, /metrics is for programs of the pod only. Create a Secret with a token and name it: secrets.LAKESHARE_METRICS_TOKEN: {name: lakeshare-metrics, key: token}" -}}
{{- end -}}
{{- if and .Values.spark.enabled (not .Values.pipelines.enabled) -}}
  {{- fail "spark.enabled is true, and pipelines.enabled is false: executors belong to runs of pipelines. Set pipelines.enabled to true, or spark.enabled to false" -}}
{{- end -}}
{{- if and .Values.spark.enabled (not .Values.spark.image) -}}
  {{- fail "spark.enabled is true, and spark.image is not set: executors start from Spark's own image for Kubernetes. Set it to one of Spark 4.1.4 with Java 17 or 21" -}}
{{- end -}}
{{- if and .Values.ingress.enabled (not (index .Values.settings "LAKESHARE_PUBLIC_URL")) -}}
  {{- fail "ingress.enabled is true, and settings.LAKESHARE_PUBLIC_URL is not set: profiles and links must name the address of the ingress. Set it to https://HOST" -}}
{{- end -}}
{{- end }}

{{/* Environment of a container; the argument is (list . settings of the component). */}}
{{- define "lakeshare.env" -}}
{{- $top := index . 0 -}}
{{- range $name, $reference := $top.Values.secrets }}
- name: {{ $name }}
  valueFrom:
    secretKeyRef:
      name: {{ $reference.name }}
      key: {{ $reference.key }}
{{- end }}
{{- if $top.Values.evidenceKey.secret }}
- name: LAKESHARE_EVIDENCE_KEY_FILE
  value: /etc/lakeshare/evidence/{{ $top.Values.evidenceKey.key }}
{{- end }}
{{- range $name, $value := index . 1 }}
- name: {{ $name }}
  value: {{ $value | toString | quote }}
{{- end }}
{{- end }}

{{- define "lakeshare.envFrom" -}}
- configMapRef:
    name: {{ include "lakeshare.name" . }}-settings
{{- with .Values.envFrom }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "lakeshare.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
# Only once for a volume: it gives files to the group, and lakeshare refuses keys that others than their owner can read.
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "lakeshare.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- define "lakeshare.evidenceVolume" -}}
{{- if .Values.evidenceKey.secret }}
- name: evidence
  secret:
    secretName: {{ .Values.evidenceKey.secret }}
    defaultMode: 0440
{{- end }}
{{- end }}

{{- define "lakeshare.evidenceMount" -}}
{{- if .Values.evidenceKey.secret }}
- name: evidence
  mountPath: /etc/lakeshare/evidence
  readOnly: true
{{- end }}
{{- end }}

{{/* Rules of a NetworkPolicy for connections to stores, databases, issuers and webhooks. */}}
{{- define "lakeshare.egress" -}}
- ports:
    - {port: 53, protocol: UDP}
    - {port: 53, protocol: TCP}
- ports:
    {{- range .Values.networkPolicy.egressPorts }}
    - {port: {{ . }}, protocol: TCP}
    {{- end }}
{{- with .Values.networkPolicy.egressTo }}
- to: {{- toYaml . | nindent 4 }}
{{- end }}
{{- end }}
