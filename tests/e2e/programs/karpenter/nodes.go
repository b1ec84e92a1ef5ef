// The Nodes of the cloud's instances. The weather can make them late or broken. They
// are never written for a terminated instance, and are swept once nothing owns them.
package main

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"sigs.k8s.io/karpenter/kwok/apis/v1alpha1"
	v1 "sigs.k8s.io/karpenter/pkg/apis/v1"
)

const (
	sweepInterval = time.Second
	// A Node without a claim may belong to a launch whose result is not stored yet.
	strayAge = 20 * time.Second
)

// nodeClient is the client of the kwok provider; it intercepts the creation of Nodes.
type nodeClient struct {
	client.Client
	cloud *cloud
}

func (n *nodeClient) Create(ctx context.Context, object client.Object, opts ...client.CreateOption) error {
	node, isNode := object.(*corev1.Node)
	if !isNode {
		return n.Client.Create(ctx, object, opts...)
	}
	return n.cloud.join(ctx, node.DeepCopy(), opts...)
}

// join writes the Node after its registration delay, unless its instance is terminated
// first. It runs in the goroutine that the kwok provider starts per launch. That
// goroutine retries errors only a few times, so join retries by itself.
func (c *cloud) join(_ context.Context, node *corev1.Node, opts ...client.CreateOption) error {
	ctx := c.background
	launched := c.byClaimName(node.Labels[corev1.LabelHostname])
	if launched == nil {
		return nil
	}
	for time.Since(launched.launchedAt) < c.weather.recent(ctx).registrationDelay(launched.place) {
		if launched.isEnded() {
			return nil
		}
		time.Sleep(pollInterval)
	}
	launched.shape(node, c.weather.recent(ctx))
	for {
		done, err := c.write(ctx, launched, node, opts...)
		if done {
			return nil
		}
		log.FromContext(ctx).Error(err, "creating the node of an instance, trying again", "node", node.Name)
		time.Sleep(time.Second)
	}
}

func (c *cloud) write(ctx context.Context, launched *instance, node *corev1.Node, opts ...client.CreateOption) (bool, error) {
	launched.mu.Lock()
	defer launched.mu.Unlock()
	if launched.ended {
		return true, nil
	}
	node.ResourceVersion = ""
	err := c.cached.Create(ctx, node, opts...)
	if err == nil || apierrors.IsAlreadyExists(err) {
		launched.nodeName = node.Name
		return true, nil
	}
	return false, err
}

func (i *instance) isEnded() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.ended
}

// shape makes the Node show the machine's resources, not the requested ones, and its own name as the host name.
func (i *instance) shape(node *corev1.Node, w weather) {
	i.mu.Lock()
	defer i.mu.Unlock()
	node.Name = hostName(node.Name)
	if i.nodeName != "" {
		node.Name = i.nodeName
	}
	node.Spec.ProviderID = providerPrefix + node.Name
	node.Labels[corev1.LabelHostname] = node.Name
	node.Status.Capacity = i.instanceType.Capacity.DeepCopy()
	node.Status.Allocatable = i.instanceType.Allocatable().DeepCopy()
	maps.Copy(node.Status.Capacity, w.shows(i.place))
	maps.Copy(node.Status.Allocatable, w.shows(i.place))
	for _, name := range w.missingResources(i.place) {
		node.Status.Capacity[name] = resource.MustParse("0")
		node.Status.Allocatable[name] = resource.MustParse("0")
	}
	if i.neverReady {
		delete(node.Annotations, v1alpha1.KwokLabelKey)
	}
}

// hostName is the end of the name that the kwok provider gives a Node: its random part, and as much as a label holds.
func hostName(name string) string {
	const most = 63
	return strings.TrimLeft(name[max(0, len(name)-most):], "-.")
}

// byClaimName returns the latest launch for a claim with that name, because names are reused.
func (c *cloud) byClaimName(name string) *instance {
	c.mu.Lock()
	defer c.mu.Unlock()
	var latest *instance
	for _, candidate := range c.instances {
		if candidate.claim.Name == name && (latest == nil || candidate.launchedAt.After(latest.launchedAt)) {
			latest = candidate
		}
	}
	return latest
}

// restore counts the instances of the claims that an earlier process launched.
func (c *cloud) restore(ctx context.Context) error {
	claims := &v1.NodeClaimList{}
	if err := c.live.List(ctx, claims); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range claims.Items {
		claim := &claims.Items[i]
		nodeName, isOurs := strings.CutPrefix(claim.Status.ProviderID, providerPrefix)
		if !isOurs {
			continue
		}
		p := claimPlace(claim)
		p.InstanceType = claim.Labels[corev1.LabelInstanceTypeStable]
		p.Zone = claim.Labels[corev1.LabelTopologyZone]
		p.CapacityType = claim.Labels[v1.CapacityTypeLabelKey]
		for _, instanceType := range c.types {
			if instanceType.Name == p.InstanceType {
				_, managed := claim.Annotations[v1alpha1.KwokLabelKey]
				c.instances[claim.UID] = &instance{
					place: p, claim: claim.DeepCopy(), instanceType: instanceType,
					launchedAt: claim.CreationTimestamp.Time, neverReady: !managed, nodeName: nodeName,
				}
			}
		}
	}
	return nil
}

// housekeeping writes the Nodes that an earlier process did not write, and then
// terminates instances without a claim as long as the process runs.
func (c *cloud) housekeeping(ctx context.Context) error {
	if err := c.rejoin(ctx); err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(sweepInterval):
			if err := c.sweep(ctx); err != nil && !errors.Is(err, context.Canceled) {
				log.FromContext(ctx).Error(err, "sweeping instances without a claim")
			}
		}
	}
}

func (c *cloud) rejoin(ctx context.Context) error {
	c.mu.Lock()
	var owed []*instance
	for _, candidate := range c.instances {
		owed = append(owed, candidate)
	}
	c.mu.Unlock()
	for _, candidate := range owed {
		registered := candidate.claim.StatusConditions().Get(v1.ConditionTypeRegistered).IsTrue()
		if registered || !candidate.claim.DeletionTimestamp.IsZero() {
			continue
		}
		// If the Node exists already, joining again changes nothing.
		if _, err := c.launch(ctx, candidate); err != nil {
			log.FromContext(ctx).Error(err, "launching again after a restart", "nodeclaim", candidate.claim.Name)
		}
	}
	return nil
}

// sweep terminates instances whose claim is gone, and deletes Nodes without an owner.
func (c *cloud) sweep(ctx context.Context) error {
	suspects, err := c.instancesWithoutClaim(ctx)
	if err != nil {
		return err
	}
	for _, uid := range suspects {
		if err := c.end(ctx, uid, ""); err != nil {
			return err
		}
	}
	return c.sweepStrayNodes(ctx)
}

func (c *cloud) instancesWithoutClaim(ctx context.Context) ([]types.UID, error) {
	c.mu.Lock()
	known := map[types.UID]client.ObjectKey{}
	for uid, candidate := range c.instances {
		known[uid] = client.ObjectKeyFromObject(candidate.claim)
	}
	c.mu.Unlock()
	var gone []types.UID
	for uid, key := range known {
		claim := &v1.NodeClaim{}
		err := c.cached.Get(ctx, key, claim)
		if err == nil && claim.UID == uid {
			continue
		}
		// The cache may lag, so only a live read can terminate an instance.
		err = c.live.Get(ctx, key, claim)
		if client.IgnoreNotFound(err) != nil {
			return nil, err
		}
		if apierrors.IsNotFound(err) || claim.UID != uid {
			gone = append(gone, uid)
		}
	}
	return gone, nil
}

// nodesOfInstances returns the provider IDs of the Nodes written for instances. Their claims
// may not have them yet: this takes a while after an outage of the API server.
func (c *cloud) nodesOfInstances() sets.Set[string] {
	// end takes the cloud's lock while it holds an instance's lock, so never hold both here.
	c.mu.Lock()
	all := slices.Collect(maps.Values(c.instances))
	c.mu.Unlock()
	ids := sets.New[string]()
	for _, running := range all {
		running.mu.Lock()
		if running.nodeName != "" {
			ids.Insert(providerPrefix + running.nodeName)
		}
		running.mu.Unlock()
	}
	return ids
}

func (c *cloud) sweepStrayNodes(ctx context.Context) error {
	nodes, claims := &corev1.NodeList{}, &v1.NodeClaimList{}
	if err := c.cached.List(ctx, nodes); err != nil {
		return err
	}
	if err := c.cached.List(ctx, claims); err != nil {
		return err
	}
	owned := c.nodesOfInstances()
	for i := range claims.Items {
		owned.Insert(claims.Items[i].Status.ProviderID)
	}
	for i := range nodes.Items {
		node := &nodes.Items[i]
		if !strings.HasPrefix(node.Spec.ProviderID, providerPrefix) || owned.Has(node.Spec.ProviderID) ||
			!node.DeletionTimestamp.IsZero() || time.Since(node.CreationTimestamp.Time) < strayAge {
			continue
		}
		if err := c.cached.Delete(ctx, node); client.IgnoreNotFound(err) != nil {
			return err
		}
	}
	return nil
}
