# An EKS cluster whose only own nodes are for controllers. Karpenter makes all others.

provider "aws" {
  region = var.region
}

provider "helm" {
  kubernetes = {
    host                   = module.eks.cluster_endpoint
    cluster_ca_certificate = base64decode(module.eks.cluster_certificate_authority_data)
    exec = {
      api_version = "client.authentication.k8s.io/v1beta1"
      command     = "aws"
      args        = ["eks", "get-token", "--cluster-name", module.eks.cluster_name, "--region", var.region]
    }
  }
}

data "aws_availability_zones" "available" {
  # No local zones.
  filter {
    name   = "opt-in-status"
    values = ["opt-in-not-required"]
  }
}

locals {
  cidr  = "10.0.0.0/16"
  zones = slice(data.aws_availability_zones.available.names, 0, 3)
  # Karpenter finds subnets and the security group by this tag.
  discovery = { "karpenter.sh/discovery" = var.name }
}

module "vpc" {
  source  = "terraform-aws-modules/vpc/aws"
  version = "~> 6.6"

  name                = var.name
  cidr                = local.cidr
  azs                 = local.zones
  private_subnets     = [for n, zone in local.zones : cidrsubnet(local.cidr, 4, n)]
  public_subnets      = [for n, zone in local.zones : cidrsubnet(local.cidr, 8, n + 48)]
  enable_nat_gateway  = true
  single_nat_gateway  = true
  private_subnet_tags = local.discovery
}

module "eks" {
  source  = "terraform-aws-modules/eks/aws"
  version = "~> 21.19"

  name                     = var.name
  kubernetes_version       = var.kubernetes_version
  endpoint_public_access   = true
  vpc_id                   = module.vpc.vpc_id
  subnet_ids               = module.vpc.private_subnets
  node_security_group_tags = local.discovery

  # The policies of Setu know administrators by a group, and the entry that EKS makes for a cluster's creator has none.
  enable_cluster_creator_admin_permissions = false
  access_entries = {
    for arn in var.administrators : arn => {
      principal_arn     = arn
      kubernetes_groups = [var.administrators_group]
      policy_associations = {
        admin = {
          policy_arn   = "arn:aws:eks::aws:cluster-access-policy/AmazonEKSClusterAdminPolicy"
          access_scope = { type = "cluster" }
        }
      }
    }
  }

  addons = {
    coredns                = {}
    kube-proxy             = {}
    vpc-cni                = { before_compute = true }
    eks-pod-identity-agent = { before_compute = true }
  }

  # Karpenter, Kueue and Setu run here: none of them runs on a node that Karpenter made.
  eks_managed_node_groups = {
    controllers = {
      ami_type       = "AL2023_x86_64_STANDARD"
      instance_types = ["m6i.large"]
      min_size       = 2
      max_size       = 3
      desired_size   = 2
    }
  }
}
