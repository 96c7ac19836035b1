{{- define "offbeat.labels" -}}
app.kubernetes.io/name: offbeat
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: {{ .Values.role }}
{{- end -}}

{{- define "offbeat.backup.labels" -}}
app.kubernetes.io/name: offbeat
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: backup
{{- end -}}

{{- define "offbeat.checked" -}}
{{- if not (has .Values.role (list "server" "site")) }}{{ fail "role: server or site" }}{{ end }}
{{- $_ := required "secret: the name of a Secret with the credentials" .Values.secret }}
{{- if eq .Values.role "site" }}
{{- if .Values.backup.enabled }}{{ fail "backup.enabled: of a server only, a site that has lost its state begins anew" }}{{ end }}
{{- $_ := required "site.address: the server, HOST:PORT" .Values.site.address }}
{{- $_ := required "site.data: what the site trains on" .Values.site.data }}
{{- end }}
{{- end -}}

{{- define "offbeat.port" -}}
{{- if eq .Values.role "site" }}{{ regexFind "[0-9]+$" .Values.site.address }}{{ else }}7117{{ end }}
{{- end -}}
