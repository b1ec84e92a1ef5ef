//go:build !no_devices

// The devices on the Nodes: Karpenter's own driver for tests publishes them as ResourceSlices.
// It reads what the weather says as if that was its configuration.
package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sigs.k8s.io/karpenter/dra-kwok-driver/pkg/apis/v1alpha1"
	dra "sigs.k8s.io/karpenter/dra-kwok-driver/pkg/controllers"
	v1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/operator"
)

func addDevices(ctx context.Context, op *operator.Operator, weather *station) error {
	driver := dra.NewResourceSliceController(&driverClient{Client: op.GetClient(), weather: weather})
	return driver.Register(ctx, op.Manager)
}

// driverClient is the client of the driver; it makes the driver's configuration of the weather.
type driverClient struct {
	client.Client
	weather *station
}

func (d *driverClient) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	configs, isConfigs := list.(*v1alpha1.DRAConfigList)
	if !isConfigs {
		return d.Client.List(ctx, list, opts...)
	}
	configs.Items = d.weather.recent(ctx).driverConfigs()
	return nil
}

// Create leaves out labels whose values are too long: the driver makes one of the Node's name.
func (d *driverClient) Create(ctx context.Context, object client.Object, opts ...client.CreateOption) error {
	maps.DeleteFunc(object.GetLabels(), func(_, value string) bool { return len(value) > validation.LabelValueMaxLength })
	return d.Client.Create(ctx, object, opts...)
}

func (w weather) driverConfigs() []v1alpha1.DRAConfig {
	var configs []v1alpha1.DRAConfig
	for _, r := range w {
		for _, driver := range slices.Sorted(maps.Keys(r.Devices)) {
			var devices []resourcev1.Device
			for n := range r.Devices[driver] {
				devices = append(devices, resourcev1.Device{Name: fmt.Sprintf("device-%d", n)})
			}
			pool := v1alpha1.Pool{
				Name:              cmp.Or(r.NodePool, "all"),
				NodeSelectorTerms: []corev1.NodeSelectorTerm{r.selector()},
				ResourceSlices:    []v1alpha1.ResourceSliceTemplate{{Devices: devices}},
			}
			spec := v1alpha1.DRAConfigSpec{Driver: driver, Pools: []v1alpha1.Pool{pool}}
			configs = append(configs, v1alpha1.DRAConfig{Spec: spec})
		}
	}
	return configs
}

// selector returns the Nodes in the rule's scope.
func (r *rule) selector() corev1.NodeSelectorTerm {
	wanted := maps.Clone(r.Labels)
	if wanted == nil {
		wanted = map[string]string{}
	}
	for key, value := range map[string]string{
		v1.NodePoolLabelKey:            r.NodePool,
		corev1.LabelInstanceTypeStable: r.InstanceType,
		corev1.LabelTopologyZone:       r.Zone,
		v1.CapacityTypeLabelKey:        r.CapacityType,
	} {
		if value != "" {
			wanted[key] = value
		}
	}
	term := corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{
		{Key: v1.NodePoolLabelKey, Operator: corev1.NodeSelectorOpExists},
	}}
	for _, key := range slices.Sorted(maps.Keys(wanted)) {
		term.MatchExpressions = append(term.MatchExpressions, corev1.NodeSelectorRequirement{
			Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{wanted[key]},
		})
	}
	return term
}
