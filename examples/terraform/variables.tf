variable "region" {
  description = "Region of the cluster, such as us-east-1."
  type        = string
}

variable "name" {
  description = "Name of the cluster and of what belongs to it."
  type        = string
  default     = "setu"
}

variable "kubernetes_version" {
  description = "Version of the cluster; Setu needs 1.33 or later."
  type        = string
  default     = "1.34"
}

variable "administrators" {
  description = "ARNs of the IAM roles or users that administer the cluster. Your own must be among them, or Terraform cannot install charts."
  type        = set(string)

  validation {
    condition     = length(var.administrators) > 0
    error_message = "Name at least the ARN of your own IAM role or user."
  }
}

variable "administrators_group" {
  description = "Kubernetes group of these administrators. Setu's admission policies let its members change NodeClaims by hand."
  type        = string
  default     = "platform-admins"

  validation {
    condition     = !startswith(var.administrators_group, "system:")
    error_message = "EKS refuses groups that begin with system: in an access entry."
  }
}

variable "setu_image" {
  description = "Setu's image without tag, such as 123456789012.dkr.ecr.us-east-1.amazonaws.com/setu. Push it before you apply."
  type        = string
}

variable "setu_tag" {
  description = "Tag of the image; the chart's own version if empty."
  type        = string
  default     = ""
}

variable "policy" {
  description = "File with Setu's policy, such as policy.yaml; Setu's defaults if empty."
  type        = string
  default     = ""
}

variable "karpenter_version" {
  description = "Version of Karpenter's chart."
  type        = string
  default     = "1.14.1"
}

variable "kueue_version" {
  description = "Version of Kueue's chart."
  type        = string
  default     = "0.19.2"
}
