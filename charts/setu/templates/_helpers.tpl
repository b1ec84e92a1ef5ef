{{- define "setu.name" -}}
{{- default "setu" .Values.nameOverride -}}
{{- end -}}

{{- define "setu.fullname" -}}
{{- $name := .Release.Name -}}
{{- with .Values.nameOverride }}{{ if not (contains . $name) }}{{ $name = printf "%s-%s" $name . }}{{ end }}{{ end -}}
{{- $name = default $name .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- if and .Values.service.enabled (not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $name)) -}}
{{- fail (printf "%s cannot be the name of a Service, so set fullnameOverride to lower-case letters, digits and dashes that begin with a letter" $name) -}}
{{- end -}}
{{- $name -}}
{{- end -}}

{{- define "setu.serviceAccount" -}}
{{- default (include "setu.fullname" .) .Values.serviceAccount.name -}}
{{- end -}}

{{- define "setu.selector" -}}
app.kubernetes.io/name: {{ include "setu.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "setu.testSelector" -}}
app.kubernetes.io/name: {{ include "setu.name" . }}-test
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- /* Flux adds +DIGEST to the version, and no label may have a plus. */ -}}
{{- define "setu.chartLabel" -}}
{{- printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "setu.labels" -}}
helm.sh/chart: {{ include "setu.chartLabel" . }}
{{ include "setu.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "setu.image" -}}
{{- if not .Values.image.repository -}}
{{- fail "image.repository is empty, so name an image that your nodes can pull: --set image.repository=REGISTRY/setu (Setu's README, under Install it, says how to build and push one)" -}}
{{- end -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}
{{- end -}}

{{- /* Network and security of the replicas and the hook. */ -}}
{{- define "setu.podNetworkAndSecurity" -}}
{{- if .Values.hostNetwork -}}
hostNetwork: true
{{ end -}}
{{- with default (ternary "ClusterFirstWithHostNet" "" .Values.hostNetwork) .Values.dnsPolicy -}}
dnsPolicy: {{ . }}
{{ end -}}
securityContext: {{- toYaml .Values.podSecurityContext | nindent 2 }}
{{- end -}}

{{- /* The users that the API server sees. */ -}}
{{- define "setu.user" -}}
system:serviceaccount:{{ .Release.Namespace }}:{{ include "setu.serviceAccount" . }}
{{- end -}}
{{- define "setu.uninstallUser" -}}
system:serviceaccount:{{ .Release.Namespace }}:{{ include "setu.fullname" . }}-uninstall
{{- end -}}

{{- /* What has failed stays, or nobody could read why. */ -}}
{{- define "setu.uninstallMeta" -}}
labels: {{- include "setu.labels" . | nindent 2 }}
annotations:
  helm.sh/hook: pre-delete
  helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end -}}
