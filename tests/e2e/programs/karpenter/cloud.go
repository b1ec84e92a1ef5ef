// The weather-controlled cloud: chooses the offering for a NodeClaim, counts the live
// instances and delegates the rest to the kwok provider. An instance counts from
// before its launch until its termination, so capacity is never used twice.
package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"sigs.k8s.io/karpenter/kwok/apis/v1alpha1"
	v1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
)

const (
	providerPrefix = "kwok://"
	pollInterval   = 200 * time.Millisecond
)

type cloud struct {
	cloudprovider.CloudProvider // the kwok provider

	background context.Context // lives as long as the process
	types      []*cloudprovider.InstanceType
	weather    *station
	cached     client.Client
	live       client.Reader

	mu        sync.Mutex
	instances map[types.UID]*instance // by the UID of the NodeClaim
}

// instance is one launched machine. Its Node is written and deleted under `mu`, so
// that no Node appears after the termination.
type instance struct {
	place
	claim        *v1.NodeClaim // as it was at launch
	instanceType *cloudprovider.InstanceType
	launchedAt   time.Time
	neverReady   bool
	nodeName     string // of an instance from before a restart, else chosen by the kwok provider

	mu    sync.Mutex
	ended bool
}

func newCloud(
	background context.Context, kwok cloudprovider.CloudProvider, instanceTypes []*cloudprovider.InstanceType,
	weather *station, cached client.Client, live client.Reader,
) *cloud {
	return &cloud{
		CloudProvider: kwok,
		background:    background,
		types:         instanceTypes,
		weather:       weather,
		cached:        cached,
		live:          live,
		instances:     map[types.UID]*instance{},
	}
}

func (c *cloud) GetInstanceTypes(ctx context.Context, pool *v1.NodePool) ([]*cloudprovider.InstanceType, error) {
	p := place{}
	if pool != nil {
		p.NodePool = pool.Name
	}
	return priced(c.types, p, c.weather.recent(ctx)), nil
}

func (c *cloud) Create(ctx context.Context, claim *v1.NodeClaim) (*v1.NodeClaim, error) {
	offers := offersFor(claim, c.types, c.weather.now(ctx))
	if len(offers) == 0 {
		return nil, cloudprovider.NewInsufficientCapacityError(errors.New("no offering meets the requirements and fits the requests"))
	}
	if err := c.waitForLaunch(ctx, claim, offers); err != nil {
		return nil, err
	}
	launched, err := c.reserve(claim, offers, c.weather.now(ctx))
	if err != nil {
		return nil, err
	}
	created, err := c.launch(ctx, launched)
	if err != nil {
		c.release(claim.UID)
		return nil, err
	}
	return created, nil
}

// waitForLaunch blocks while the weather delays the offering that would be chosen.
func (c *cloud) waitForLaunch(ctx context.Context, claim *v1.NodeClaim, offers []offer) error {
	start := time.Now()
	for {
		w := c.weather.recent(ctx)
		candidate := offers[0].place
		if free, found := c.firstFree(offers, w); found {
			candidate = free.place
		}
		if time.Since(start) >= w.launchDelay(candidate) {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pollInterval):
		}
		current := &v1.NodeClaim{}
		err := c.cached.Get(ctx, client.ObjectKeyFromObject(claim), current)
		if apierrors.IsNotFound(err) || (err == nil && !current.DeletionTimestamp.IsZero()) {
			return errors.New("launch given up, the nodeclaim is being deleted")
		}
	}
}

func (c *cloud) firstFree(offers []offer, w weather) (offer, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.firstFreeLocked(offers, w)
}

func (c *cloud) firstFreeLocked(offers []offer, w weather) (offer, bool) {
	live := make([]place, 0, len(c.instances))
	for _, other := range c.instances {
		live = append(live, other.place)
	}
	for _, candidate := range offers {
		if !w.full(candidate.place, live) {
			return candidate, true
		}
	}
	return offer{}, false
}

func (c *cloud) reserve(claim *v1.NodeClaim, offers []offer, w weather) (*instance, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	chosen, found := c.firstFreeLocked(offers, w)
	if !found {
		return nil, cloudprovider.NewInsufficientCapacityError(
			fmt.Errorf("no capacity left in any of %d compatible offerings, the cheapest is %s in %s (%s)",
				len(offers), offers[0].InstanceType, offers[0].Zone, offers[0].CapacityType))
	}
	if failure := w.createError(chosen.place); failure != nil {
		return nil, cloudprovider.NewCreateError(errors.New(failure.Message), failure.Reason, failure.Message)
	}
	launched := &instance{
		place:        chosen.place,
		claim:        claim.DeepCopy(),
		instanceType: chosen.instanceType,
		launchedAt:   time.Now(),
		neverReady:   w.neverReady(chosen.place),
	}
	c.instances[claim.UID] = launched
	return launched, nil
}

func (c *cloud) launch(ctx context.Context, launched *instance) (*v1.NodeClaim, error) {
	created, err := c.CloudProvider.Create(ctx, narrowed(launched.claim, launched.place))
	if err != nil {
		return nil, err
	}
	// The provider shares its maps with the Node that it is still creating.
	created = created.DeepCopy()
	// Real clouds leave this label to the kubelet: registration would copy the claim's name onto the Node.
	delete(created.Labels, corev1.LabelHostname)
	created.Status.ProviderID = providerPrefix + hostName(strings.TrimPrefix(created.Status.ProviderID, providerPrefix))
	// Real clouds report the machine's resources, not the requested ones.
	created.Status.Capacity = launched.instanceType.Capacity.DeepCopy()
	created.Status.Allocatable = launched.instanceType.Allocatable().DeepCopy()
	if launched.neverReady {
		// Registration copies the claim's annotations onto the Node.
		delete(created.Annotations, v1alpha1.KwokLabelKey)
	}
	return created, nil
}

func (c *cloud) Delete(ctx context.Context, claim *v1.NodeClaim) error {
	if err := c.end(ctx, claim.UID, strings.TrimPrefix(claim.Status.ProviderID, providerPrefix)); err != nil {
		return err
	}
	return c.CloudProvider.Delete(ctx, claim)
}

func (c *cloud) release(claim types.UID) *instance {
	c.mu.Lock()
	defer c.mu.Unlock()
	ended := c.instances[claim]
	delete(c.instances, claim)
	return ended
}

// end terminates the instance of a claim together with its Node. The capacity is free
// once this has succeeded.
func (c *cloud) end(ctx context.Context, claim types.UID, nodeName string) error {
	c.mu.Lock()
	ended := c.instances[claim]
	c.mu.Unlock()
	if ended != nil {
		ended.mu.Lock()
		defer ended.mu.Unlock()
		ended.ended = true
		if ended.nodeName != "" {
			nodeName = ended.nodeName
		}
	}
	if nodeName != "" {
		node := &corev1.Node{}
		node.Name = nodeName
		if err := c.cached.Delete(ctx, node); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("deleting the node of a terminated instance, %w", err)
		}
	}
	c.release(claim)
	return nil
}
