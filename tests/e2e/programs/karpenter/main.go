// Karpenter with a weather-controlled kwok provider: the same controllers as in the
// provider's main, plus a cloud that can run out of capacity, be slow, fail or
// create broken nodes, and a driver of devices. A ConfigMap controls them at runtime.
package main

import (
	"os"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	kwok "sigs.k8s.io/karpenter/kwok/cloudprovider"
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
	if err := addDevices(ctx, op, weather); err != nil {
		logger.Error(err, "adding the driver of devices")
		os.Exit(1)
	}
	op.WithControllers(ctx, controllersOf(ctx, op, cloud)...).Start(ctx)
}
