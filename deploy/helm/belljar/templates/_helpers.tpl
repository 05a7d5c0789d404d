{{- define "belljar.name" -}}
{{- if eq .Release.Name "belljar" -}}belljar{{- else -}}{{ printf "%s-belljar" .Release.Name | trunc 40 | trimSuffix "-" }}{{- end -}}
{{- end -}}

{{/* Labels by which a component's pods are selected. Takes a list: the root and the component. */}}
{{- define "belljar.selector" -}}
app.kubernetes.io/name: belljar
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "belljar.labels" -}}
{{ include "belljar.selector" . }}
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ (index . 0).Release.Service }}
helm.sh/chart: {{ printf "%s-%s" (index . 0).Chart.Name (index . 0).Chart.Version }}
{{- end -}}

{{- define "belljar.tag" -}}
{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- define "belljar.databaseSecret" -}}
{{- if .Values.database.url -}}{{ include "belljar.name" . }}-database{{- else -}}{{ required "database.existingSecret or database.url is needed" .Values.database.existingSecret }}{{- end -}}
{{- end -}}

{{- define "belljar.databaseKey" -}}
{{- if .Values.database.url -}}url{{- else -}}{{ .Values.database.key }}{{- end -}}
{{- end -}}

{{- define "belljar.databaseEnv" -}}
- name: BELLJAR_DATABASE_URL
  valueFrom:
    secretKeyRef:
      name: {{ include "belljar.databaseSecret" . }}
      key: {{ include "belljar.databaseKey" . }}
{{- end -}}

{{- define "belljar.blobsEnv" -}}
- name: BELLJAR_BLOBS_URL
  value: {{ required "blobs.url is needed" .Values.blobs.url | quote }}
- name: AWS_REGION
  value: {{ .Values.blobs.region | quote }}
{{- with .Values.blobs.endpoint }}
- name: AWS_ENDPOINT_URL
  value: {{ . | quote }}
{{- end }}
{{- if or .Values.blobs.accessKeyId .Values.blobs.existingSecret }}
{{- $own := .Values.blobs.accessKeyId }}
- name: AWS_ACCESS_KEY_ID
  valueFrom:
    secretKeyRef:
      name: {{ if $own }}{{ include "belljar.name" . }}-s3{{ else }}{{ .Values.blobs.existingSecret }}{{ end }}
      key: {{ if $own }}access-key-id{{ else }}{{ .Values.blobs.accessKeyIdKey }}{{ end }}
- name: AWS_SECRET_ACCESS_KEY
  valueFrom:
    secretKeyRef:
      name: {{ if $own }}{{ include "belljar.name" . }}-s3{{ else }}{{ .Values.blobs.existingSecret }}{{ end }}
      key: {{ if $own }}secret-access-key{{ else }}{{ .Values.blobs.secretAccessKeyKey }}{{ end }}
{{- end }}
{{- end -}}

{{/* What gateways and nodes share. */}}
{{- define "belljar.clusterEnv" -}}
{{ include "belljar.databaseEnv" . }}
- name: BELLJAR_CLUSTER_CA
  value: /etc/belljar/cluster-ca/{{ .Values.clusterCA.certKey }}
- name: BELLJAR_CLUSTER_CA_KEY
  value: /etc/belljar/cluster-ca/{{ .Values.clusterCA.keyKey }}
- name: BELLJAR_LEASE_S
  value: {{ .Values.leaseSeconds | quote }}
- name: BELLJAR_HEALTH_LISTEN
  value: 0.0.0.0:{{ .Values.healthPort }}
{{- end -}}

{{/* Settings as NAME: value. Takes two maps; the second overrides the first. */}}
{{- define "belljar.settings" -}}
{{- range $name, $value := merge (deepCopy (index . 1)) (index . 0) }}
- name: {{ $name }}
  value: {{ $value | toString | quote }}
{{- end }}
{{- end -}}

{{- define "belljar.clusterCAVolume" -}}
- name: cluster-ca
  secret:
    secretName: {{ required "clusterCA.existingSecret is needed" .Values.clusterCA.existingSecret }}
    defaultMode: {{ .mode }}
    # The default; podman 4.3 needs it.
    optional: false
{{- end -}}

{{/* Kubelet asks a port without TLS: it has no certificate of the cluster's authority. */}}
{{- define "belljar.probes" -}}
startupProbe:
  httpGet: { path: /healthz, port: health }
  periodSeconds: 2
  failureThreshold: 60
readinessProbe:
  httpGet: { path: /readyz, port: health }
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: 2
livenessProbe:
  httpGet: { path: /healthz, port: health }
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
{{- end -}}
