// Karpenter with a weather-controlled kwok provider: the same controllers as in the
// provider's main, plus a cloud that can run out of capacity, be slow, fail or
// create broken nodes, and a driver of devices. A ConfigMap controls them at runtime.
package main

import (
	"os"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	dra "sigs.k8s.io/karpenter/dra-kwok-driver/pkg/controllers"
	kwok "sigs.k8s.io/karpenter/kwok/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/cloudprovider/overlay"
	"sigs.k8s.io/karpenter/pkg/controllers"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/operator"
)

func main() {
	ctx, op := operator.NewOperator()
	logger := log.FromContext(ctx)
	types, err := kwok.ConstructInstanceTypes(ctx)
	if err != nil {
		logger.Error(err, "reading instance types")
		os.Exit(1)
	}

	weather := newStation(op.GetAPIReader(), 200*time.Millisecond)
	nodes := &nodeClient{Client: op.GetClient()}
	cloud := newCloud(ctx, kwok.NewCloudProvider(ctx, nodes, types), types, weather, op.GetClient(), op.GetAPIReader())
	nodes.cloud = cloud
	if err := cloud.restore(ctx); err != nil {
		logger.Error(err, "counting the instances of existing nodeclaims")
		os.Exit(1)
	}
	if err := op.Add(manager.RunnableFunc(cloud.housekeeping)); err != nil {
		logger.Error(err, "adding the cloud's housekeeping")
		os.Exit(1)
	}

	driver := dra.NewResourceSliceController(&driverClient{Client: op.GetClient(), weather: weather})
	if err := driver.Register(ctx, op.Manager); err != nil {
		logger.Error(err, "adding the driver of devices")
		os.Exit(1)
	}

	decorated := overlay.Decorate(cloud, op.GetClient(), op.InstanceTypeStore)
	clusterState := state.NewCluster(op.Clock, op.GetClient(), decorated)
	op.WithControllers(ctx, controllers.NewControllers(
		ctx,
		op.Manager,
		op.Clock,
		op.GetClient(),
		op.EventRecorder,
		decorated,
		cloud,
		clusterState,
		op.InstanceTypeStore,
	)...).Start(ctx)
}
