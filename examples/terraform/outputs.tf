output "kubeconfig" {
  description = "The command that adds the cluster to your kubeconfig."
  value       = "aws eks update-kubeconfig --name ${module.eks.cluster_name} --region ${var.region}"
}

output "node_class" {
  description = "The EC2NodeClass for the NodePool of docs/eks.md; pipe it to kubectl apply."
  value = templatefile("${path.module}/node-class.yaml", {
    cluster = module.eks.cluster_name
    role    = module.karpenter.node_iam_role_name
  })
}
