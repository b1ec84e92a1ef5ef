//go:build karpenter_1_15

package main

import (
	"context"

	"github.com/awslabs/operatorpkg/controller"
	"github.com/samber/lo"

	"sigs.k8s.io/karpenter/pkg/cloudprovider/overlay"
	"sigs.k8s.io/karpenter/pkg/controllers"
	"sigs.k8s.io/karpenter/pkg/controllers/node/health"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/operator"
)

// controllersOf returns Karpenter's controllers for a cloud, as the provider's main of this Karpenter does.
func controllersOf(ctx context.Context, op *operator.Operator, cloud *cloud) []controller.Controller {
	decorated := overlay.Decorate(cloud, op.GetClient(), op.InstanceTypeStore)
	repairs := lo.Must(health.NewRepairPolicyMatcher(ctx, decorated))
	clusterState := state.NewCluster(op.Clock, op.GetClient(), decorated, state.WithRepairPolicyMatcher(repairs))
	return controllers.NewControllers(
		ctx,
		op.Manager,
		op.Clock,
		op.GetClient(),
		op.EventRecorder,
		decorated,
		cloud,
		clusterState,
		op.InstanceTypeStore,
		op.PredictionStore,
	)
}
