module "karpenter" {
  source  = "terraform-aws-modules/eks/aws//modules/karpenter"
  version = "~> 21.19"

  cluster_name = module.eks.cluster_name
  # The EC2NodeClass names this role.
  node_iam_role_name            = "${var.name}-karpenter-node"
  node_iam_role_use_name_prefix = false
}

resource "helm_release" "karpenter" {
  name       = "karpenter"
  namespace  = "kube-system"
  repository = "oci://public.ecr.aws/karpenter"
  chart      = "karpenter"
  version    = var.karpenter_version
  values = [templatefile("${path.module}/values/karpenter.yaml", {
    cluster  = module.eks.cluster_name
    endpoint = module.eks.cluster_endpoint
    queue    = module.karpenter.queue_name
  })]

  # Without a node its pods would wait for the node group.
  depends_on = [module.eks]
}
