resource "helm_release" "setu" {
  name      = "setu"
  namespace = "kueue-system"
  # With a release: repository = "oci://ghcr.io/OWNER/setu/charts", chart = "setu", and its version.
  chart = "${path.module}/../../charts/setu"
  values = [templatefile("${path.module}/values/setu.yaml", {
    image  = var.setu_image
    tag    = var.setu_tag
    group  = var.administrators_group
    # Text in JSON is text in YAML too.
    policy = jsonencode(var.policy == "" ? "" : file(var.policy))
  })]

  # Setu's chart has an AdmissionCheck of Kueue, and on the way back `setu uninstall` needs both.
  depends_on = [helm_release.karpenter, helm_release.kueue]
}
