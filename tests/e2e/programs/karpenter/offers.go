// The offerings for a NodeClaim, cheapest first. Pure. The rule is that of the real
// providers: the claim's requests must fit into the type's allocatable resources, and
// type, zone and capacity type must meet the requirements.
package main

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"

	v1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/scheduling"
	"sigs.k8s.io/karpenter/pkg/utils/resources"
)

// slotKey is the key of a claim's slot: an annotation, or a label on claims of earlier versions.
const slotKey = "setu.kueue.x-k8s.io/slot"

// offer is one instance type in one zone with one capacity type.
type offer struct {
	place
	instanceType *cloudprovider.InstanceType
	price        float64
}

func claimPlace(claim *v1.NodeClaim) place {
	slot := cmp.Or(claim.Annotations[slotKey], claim.Labels[slotKey])
	return place{NodePool: claim.Labels[v1.NodePoolLabelKey], Slot: slot, Labels: claim.Labels}
}

func on(p place, instanceType *cloudprovider.InstanceType, offering *cloudprovider.Offering) place {
	p.InstanceType, p.Zone, p.CapacityType = instanceType.Name, offering.Zone(), offering.CapacityType()
	return p
}

func offersFor(claim *v1.NodeClaim, types []*cloudprovider.InstanceType, w weather) []offer {
	requirements := scheduling.NewNodeSelectorRequirementsWithMinValues(claim.Spec.Requirements...)
	var offers []offer
	for _, instanceType := range types {
		if requirements.Compatible(instanceType.Requirements, scheduling.AllowUndefinedWellKnownLabels) != nil ||
			!resources.Fits(claim.Spec.Resources.Requests, instanceType.Allocatable()) {
			continue
		}
		for _, offering := range instanceType.Offerings.Available().Compatible(requirements) {
			p := on(claimPlace(claim), instanceType, offering)
			offers = append(offers, offer{place: p, instanceType: instanceType, price: offering.Price * w.priceFactor(p)})
		}
	}
	slices.SortStableFunc(offers, func(a, b offer) int {
		return cmp.Or(
			cmp.Compare(a.price, b.price),
			cmp.Compare(a.InstanceType, b.InstanceType),
			cmp.Compare(a.Zone, b.Zone),
			cmp.Compare(a.CapacityType, b.CapacityType),
		)
	})
	return offers
}

// narrowed returns a copy of the claim that only this place satisfies. The kwok provider
// requires the type as `In`, and cannot handle a type without an offering.
func narrowed(claim *v1.NodeClaim, p place) *v1.NodeClaim {
	chosen := map[string]string{
		corev1.LabelInstanceTypeStable: p.InstanceType,
		corev1.LabelTopologyZone:       p.Zone,
		v1.CapacityTypeLabelKey:        p.CapacityType,
	}
	out := claim.DeepCopy()
	out.Spec.Requirements = slices.DeleteFunc(out.Spec.Requirements, func(r v1.NodeSelectorRequirementWithMinValues) bool {
		_, replaced := chosen[r.Key]
		return replaced
	})
	for key, value := range chosen {
		// Older versions of Karpenter embed these fields.
		var requirement v1.NodeSelectorRequirementWithMinValues
		requirement.Key, requirement.Operator, requirement.Values = key, corev1.NodeSelectorOpIn, []string{value}
		out.Spec.Requirements = append(out.Spec.Requirements, requirement)
	}
	return out
}

// priced returns the types with the weather's prices; unchanged types are shared.
func priced(types []*cloudprovider.InstanceType, p place, w weather) []*cloudprovider.InstanceType {
	out := make([]*cloudprovider.InstanceType, 0, len(types))
	for _, instanceType := range types {
		var changed *cloudprovider.InstanceType
		for i, offering := range instanceType.Offerings {
			factor := w.priceFactor(on(p, instanceType, offering))
			if factor == 1 {
				continue
			}
			if changed == nil {
				changed = copyOf(instanceType)
			}
			changed.Offerings[i].Price = offering.Price * factor
		}
		if changed == nil {
			changed = instanceType
		}
		out = append(out, changed)
	}
	return out
}
