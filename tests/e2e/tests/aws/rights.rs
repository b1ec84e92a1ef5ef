//! Karpenter's rights in the cloud.

use anyhow::{Result, ensure};
use setu_e2e::aws::Cloud;
use std::collections::BTreeSet;

/// The actions that the documentation of this Karpenter version grants its controller.
const POLICY: [&str; 30] = [
    "ec2:CreateFleet",
    "ec2:CreateLaunchTemplate",
    "ec2:CreateTags",
    "ec2:DeleteLaunchTemplate",
    "ec2:DescribeCapacityReservations",
    "ec2:DescribeImages",
    "ec2:DescribeInstanceStatus",
    "ec2:DescribeInstanceTypeOfferings",
    "ec2:DescribeInstanceTypes",
    "ec2:DescribeInstances",
    "ec2:DescribeLaunchTemplates",
    "ec2:DescribePlacementGroups",
    "ec2:DescribeSecurityGroups",
    "ec2:DescribeSpotPriceHistory",
    "ec2:DescribeSubnets",
    "ec2:RunInstances",
    "ec2:TerminateInstances",
    "eks:DescribeCluster",
    "iam:AddRoleToInstanceProfile",
    "iam:CreateInstanceProfile",
    "iam:DeleteInstanceProfile",
    "iam:GetInstanceProfile",
    "iam:ListInstanceProfiles",
    "iam:RemoveRoleFromInstanceProfile",
    "iam:TagInstanceProfile",
    "pricing:GetProducts",
    "sqs:DeleteMessage",
    "sqs:GetQueueUrl",
    "sqs:ReceiveMessage",
    "ssm:GetParameter",
];

/// Checks that Karpenter's documented policy allows all calls, and that docs/eks.md lists them.
pub fn suffice(cloud: &Cloud) -> Result<()> {
    let actions = cloud.actions();
    let more: Vec<&String> = actions.keys().filter(|action| !POLICY.contains(&action.as_str())).collect();
    ensure!(more.is_empty(), "Karpenter's own policy does not allow {more:?}");
    let words = include_str!("../../../../docs/eks.md").split(|c: char| !c.is_alphanumeric());
    let listed: BTreeSet<&str> = words.collect();
    let names = actions.keys().filter_map(|action| action.split_once(':'));
    let more: Vec<_> = names.filter(|(_, name)| !listed.contains(name)).collect();
    ensure!(more.is_empty(), "docs/eks.md does not list {more:?}");
    Ok(())
}
