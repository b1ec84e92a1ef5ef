//go:build karpenter_1_6

package main

import (
	"context"

	"github.com/awslabs/operatorpkg/controller"

	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/controllers"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/operator"
)

// controllersOf returns Karpenter's controllers for a cloud, as the provider's main of this Karpenter does.
func controllersOf(ctx context.Context, op *operator.Operator, cloud *cloud) []controller.Controller {
	clusterState := state.NewCluster(op.Clock, op.GetClient(), cloud)
	return controllers.NewControllers(
		ctx,
		op.Manager,
		op.Clock,
		op.GetClient(),
		op.EventRecorder,
		cloud,
		clusterState,
	)
}

// copyOf shares everything but the offerings.
func copyOf(instanceType *cloudprovider.InstanceType) *cloudprovider.InstanceType {
	copied := &cloudprovider.InstanceType{
		Name:         instanceType.Name,
		Requirements: instanceType.Requirements,
		Capacity:     instanceType.Capacity,
		Overhead:     instanceType.Overhead,
	}
	for _, offering := range instanceType.Offerings {
		own := *offering
		copied.Offerings = append(copied.Offerings, &own)
	}
	return copied
}
