{{- define "setu.fullname" -}}
{{- default .Release.Name .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "setu.serviceAccount" -}}
{{- default (include "setu.fullname" .) .Values.serviceAccount.name -}}
{{- end -}}

{{- define "setu.selector" -}}
app.kubernetes.io/name: setu
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "setu.testSelector" -}}
app.kubernetes.io/name: setu-test
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "setu.labels" -}}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
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

{{- /* What Pod Security's restricted profile asks for, and a root file system that nobody writes. */ -}}
{{- define "setu.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "setu.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
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
