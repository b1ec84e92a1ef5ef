resource "helm_release" "kueue" {
  name             = "kueue"
  namespace        = "kueue-system"
  create_namespace = true
  repository       = "oci://registry.k8s.io/kueue/charts"
  chart            = "kueue"
  version          = var.kueue_version
  values           = [file("${path.module}/values/kueue.yaml")]

  # As for Karpenter.
  depends_on = [module.eks]
}
