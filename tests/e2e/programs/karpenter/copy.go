//go:build !karpenter_1_6

package main

import "sigs.k8s.io/karpenter/pkg/cloudprovider"

func copyOf(instanceType *cloudprovider.InstanceType) *cloudprovider.InstanceType {
	return instanceType.DeepCopy()
}
