// The weather: how a test wants the cloud to behave, read from the ConfigMap `weather`
// in `kube-system`. Each data key holds a YAML document `rules: [...]`. The rules of all
// keys are combined, in the order of the keys. A launch always does a fresh read, so
// that a rule written before a NodeClaim applies to that NodeClaim.
package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/yaml"
)

var weatherKey = types.NamespacedName{Namespace: "kube-system", Name: "weather"}

// place is the scope of a rule: the claim's pool, slot and labels, and its actual or
// potential offering.
type place struct {
	NodePool     string `json:"nodePool,omitempty"`
	Slot         string `json:"slot,omitempty"`
	InstanceType string `json:"instanceType,omitempty"`
	Zone         string `json:"zone,omitempty"`
	CapacityType string `json:"capacityType,omitempty"`
	// In a rule, the labels that the claim must have.
	Labels map[string]string `json:"labels,omitempty"`
}

// rule is a place with its weather. An empty matcher matches everything.
type rule struct {
	place `json:",inline"`

	// The maximum number of live instances in this place.
	Capacity *int `json:"capacity,omitempty"`
	// A launch takes this long while the rule exists.
	LaunchDelay metav1.Duration `json:"launchDelay,omitempty"`
	// Every launch fails with this condition on the NodeClaim.
	CreateError *createError `json:"createError,omitempty"`
	// The Node appears this long after the launch while the rule exists.
	RegistrationDelay metav1.Duration `json:"registrationDelay,omitempty"`
	// A Node launched under this rule has no kubelet.
	NeverReady bool `json:"neverReady,omitempty"`
	// The Node shows zero of these.
	MissingResources []corev1.ResourceName `json:"missingResources,omitempty"`
	// The Node shows these amounts instead of those of its type.
	Shows corev1.ResourceList `json:"shows,omitempty"`
	// The number of devices of each driver on a Node. They are published within half a minute.
	Devices map[string]int `json:"devices,omitempty"`
	// A factor on the price of the offerings; the factors of several rules multiply.
	PriceFactor *float64 `json:"priceFactor,omitempty"`
}

type createError struct {
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

type weather []rule

func (r *rule) matches(p place) bool {
	return matches(r.NodePool, p.NodePool) && matches(r.Slot, p.Slot) &&
		matches(r.InstanceType, p.InstanceType) && matches(r.Zone, p.Zone) &&
		matches(r.CapacityType, p.CapacityType) && hasAll(p.Labels, r.Labels)
}

func matches(wanted, value string) bool { return wanted == "" || wanted == value }

func hasAll(labels, wanted map[string]string) bool {
	for key, value := range wanted {
		if labels[key] != value {
			return false
		}
	}
	return true
}

func (w weather) at(p place) weather {
	var out weather
	for _, r := range w {
		if r.matches(p) {
			out = append(out, r)
		}
	}
	return out
}

// full reports whether one more instance at p would exceed a rule's capacity.
func (w weather) full(p place, live []place) bool {
	for _, r := range w.at(p) {
		if r.Capacity == nil {
			continue
		}
		count := 0
		for _, other := range live {
			if r.matches(other) {
				count++
			}
		}
		if count >= *r.Capacity {
			return true
		}
	}
	return false
}

func (w weather) launchDelay(p place) time.Duration {
	var longest time.Duration
	for _, r := range w.at(p) {
		longest = max(longest, r.LaunchDelay.Duration)
	}
	return longest
}

func (w weather) registrationDelay(p place) time.Duration {
	var longest time.Duration
	for _, r := range w.at(p) {
		longest = max(longest, r.RegistrationDelay.Duration)
	}
	return longest
}

func (w weather) createError(p place) *createError {
	for _, r := range w.at(p) {
		if r.CreateError != nil {
			return r.CreateError
		}
	}
	return nil
}

func (w weather) neverReady(p place) bool {
	return slices.ContainsFunc(w.at(p), func(r rule) bool { return r.NeverReady })
}

func (w weather) missingResources(p place) []corev1.ResourceName {
	var out []corev1.ResourceName
	for _, r := range w.at(p) {
		out = append(out, r.MissingResources...)
	}
	return out
}

// shows returns the amounts that the Node shows instead of its type's; the first rule wins.
func (w weather) shows(p place) corev1.ResourceList {
	out := corev1.ResourceList{}
	for _, r := range slices.Backward(w.at(p)) {
		maps.Copy(out, r.Shows)
	}
	return out
}

func (w weather) priceFactor(p place) float64 {
	factor := 1.0
	for _, r := range w.at(p) {
		if r.PriceFactor != nil {
			factor *= *r.PriceFactor
		}
	}
	return factor
}

// station reads the weather and caches it for `maxAge`, so that a hundred waiting
// launches cause one read.
type station struct {
	reader client.Reader
	maxAge time.Duration

	mu     sync.Mutex
	last   weather
	readAt time.Time
}

func newStation(reader client.Reader, maxAge time.Duration) *station {
	return &station{reader: reader, maxAge: maxAge}
}

// now reads the ConfigMap. If this fails, the last known weather stays.
func (s *station) now(ctx context.Context) weather {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.refresh(ctx)
}

// recent returns the weather, at most `maxAge` old.
func (s *station) recent(ctx context.Context) weather {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.readAt) < s.maxAge {
		return s.last
	}
	return s.refresh(ctx)
}

func (s *station) refresh(ctx context.Context) weather {
	configMap := &corev1.ConfigMap{}
	if err := s.reader.Get(ctx, weatherKey, configMap); err != nil && !errors.IsNotFound(err) {
		log.FromContext(ctx).Error(err, "reading the weather")
		return s.last
	}
	read, err := parseWeather(configMap.Data)
	if err != nil {
		log.FromContext(ctx).Error(err, "the weather has a mistake, the last one stays")
		return s.last
	}
	s.last, s.readAt = read, time.Now()
	return s.last
}

func parseWeather(data map[string]string) (weather, error) {
	var all weather
	for _, key := range slices.Sorted(maps.Keys(data)) {
		document := struct {
			Rules weather `json:"rules"`
		}{}
		if err := yaml.UnmarshalStrict([]byte(data[key]), &document); err != nil {
			return nil, fmt.Errorf("weather key %q: %w", key, err)
		}
		all = append(all, document.Rules...)
	}
	return all, nil
}
