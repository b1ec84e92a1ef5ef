// Prints what plain Karpenter buys: its scheduler chooses instance types for the pods of
// random gangs, on random NodePools, from the EC2 types in Setu's catalogue. Cases and
// choices are printed as JSON lines; the same catalogue gives the same lines.
//
// Usage: choices TYPES.json.gz CASES
package main

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strconv"

	"github.com/samber/lo"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/go-logr/logr"
	v1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/controllers/provisioning/scheduling"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/events"
	"sigs.k8s.io/karpenter/pkg/operator/options"
	requirements "sigs.k8s.io/karpenter/pkg/scheduling"
	nodepool "sigs.k8s.io/karpenter/pkg/utils/nodepool"
)

const (
	region = "us-east-1"
	zone   = "us-east-1a"
)

// catalogue is the file that Setu embeds.
type catalogue struct {
	AWS struct {
		Keys    []string `json:"keys"`
		Regions []string `json:"regions"`
		Types   []struct {
			Name        string            `json:"name"`
			Labels      []string          `json:"labels"`
			Allocatable map[string]string `json:"allocatable"`
			Prices      []int64           `json:"prices"` // millionths an hour, 0 where none is known
		} `json:"types"`
	} `json:"aws"`
}

// podSet is a number of identical pods.
type podSet struct {
	Pods     int               `json:"pods"`
	Requests map[string]string `json:"requests"`
}

// pool is a NodePool, reduced to the fields that a choice depends on.
type pool struct {
	Name         string                           `json:"name"`
	Weight       int32                            `json:"weight"`
	Requirements []corev1.NodeSelectorRequirement `json:"requirements"`
}

// node is one node in a choice.
type node struct {
	Pool  string `json:"pool"`
	Pods  int    `json:"pods"`
	Price int64  `json:"price"` // of the cheapest type that is allowed, in millionths an hour
}

// line is one case and Karpenter's choice; it has no nodes if a pod cannot be placed.
type line struct {
	Pools []pool   `json:"pools"`
	Sets  []podSet `json:"sets"`
	Nodes []node   `json:"nodes"`
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "choices:", err)
		os.Exit(1)
	}
}

func run() error {
	if len(os.Args) != 3 {
		return fmt.Errorf("usage: choices TYPES.json.gz CASES")
	}
	cases, err := strconv.Atoi(os.Args[2])
	if err != nil {
		return fmt.Errorf("reading the number of cases: %w", err)
	}
	instanceTypes, keys, err := read(os.Args[1])
	if err != nil {
		return err
	}
	v1.WellKnownLabels.Insert(keys...)
	log.SetLogger(logr.Discard())
	ctx := options.ToContext(context.Background(), &options.Options{
		CPURequests:       1000,
		MinValuesPolicy:   options.MinValuesPolicyStrict,
		PreferencePolicy:  options.PreferencePolicyRespect,
		IgnoreDRARequests: true,
	})
	random := rand.New(rand.NewPCG(1, 2))
	out := json.NewEncoder(os.Stdout)
	for range cases {
		chosen := draw(random)
		if chosen.Nodes, err = choose(ctx, instanceTypes, chosen); err != nil {
			return err
		}
		if err := out.Encode(chosen); err != nil {
			return fmt.Errorf("writing a case: %w", err)
		}
	}
	return nil
}

// read returns the instance types with an on-demand price, and the keys of their labels.
func read(path string) ([]*cloudprovider.InstanceType, []string, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, nil, fmt.Errorf("opening the catalogue: %w", err)
	}
	defer file.Close()
	unpacked, err := gzip.NewReader(file)
	if err != nil {
		return nil, nil, fmt.Errorf("unpacking the catalogue: %w", err)
	}
	var all catalogue
	if err := json.NewDecoder(unpacked).Decode(&all); err != nil {
		return nil, nil, fmt.Errorf("reading the catalogue: %w", err)
	}
	at := lo.IndexOf(all.AWS.Regions, region)
	var found []*cloudprovider.InstanceType
	for _, one := range all.AWS.Types {
		if one.Prices[at] == 0 {
			continue
		}
		room := corev1.ResourceList{}
		for name, amount := range one.Allocatable {
			room[corev1.ResourceName(name)] = resource.MustParse(amount)
		}
		labels := requirements.NewRequirements(
			requirements.NewRequirement(corev1.LabelInstanceTypeStable, corev1.NodeSelectorOpIn, one.Name),
			requirements.NewRequirement(corev1.LabelTopologyZone, corev1.NodeSelectorOpIn, zone),
			requirements.NewRequirement(v1.CapacityTypeLabelKey, corev1.NodeSelectorOpIn, v1.CapacityTypeOnDemand),
		)
		for i, key := range all.AWS.Keys {
			if value := one.Labels[i]; value != "" {
				labels.Add(requirements.NewRequirement(key, corev1.NodeSelectorOpIn, value))
			} else {
				labels.Add(requirements.NewRequirement(key, corev1.NodeSelectorOpDoesNotExist))
			}
		}
		found = append(found, &cloudprovider.InstanceType{
			Name:         one.Name,
			Requirements: labels,
			Capacity:     room,
			Overhead:     &cloudprovider.InstanceTypeOverhead{},
			Offerings: cloudprovider.Offerings{{
				Available: true,
				Price:     float64(one.Prices[at]) / 1e6,
				Requirements: requirements.NewLabelRequirements(map[string]string{
					v1.CapacityTypeLabelKey:  v1.CapacityTypeOnDemand,
					corev1.LabelTopologyZone: zone,
				}),
			}},
		})
	}
	return found, all.AWS.Keys, nil
}

// draw creates a random case.
func draw(random *rand.Rand) line {
	is := func(key string, operator corev1.NodeSelectorOperator, values ...string) corev1.NodeSelectorRequirement {
		return corev1.NodeSelectorRequirement{Key: key, Operator: operator, Values: values}
	}
	one := func(of ...string) string { return of[random.IntN(len(of))] }
	aws := func(label string) string { return "karpenter.k8s.aws/instance-" + label }
	in, over, under := corev1.NodeSelectorOpIn, corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt

	general := func() [][]corev1.NodeSelectorRequirement {
		return [][]corev1.NodeSelectorRequirement{
			{is(aws("category"), in, "c", "m", "r"), is(aws("generation"), over, one("2", "4", "5"))},
			{is(aws("family"), in, one("m5", "m6i", "m7i"), one("c6i", "c7i", "c5"))},
			{is(aws("category"), in, one("c", "m", "r")), is(aws("cpu"), under, one("17", "33", "65"))},
			{is(aws("cpu"), in, "4", "8", "16", "32"), is(aws("category"), in, "c", "m", "r")},
			{is(corev1.LabelInstanceTypeStable, in, one("m5.4xlarge", "m5.12xlarge"), "c5.9xlarge", "r5.2xlarge")},
		}
	}
	devices := func() [][]corev1.NodeSelectorRequirement {
		return [][]corev1.NodeSelectorRequirement{
			{is(aws("family"), in, one("g5", "g6"), one("g4dn", "g6e"))},
			{is(aws("category"), in, "g", "p")},
			{is(aws("gpu-name"), in, one("a10g", "l4", "t4"))},
			{is(aws("gpu-count"), in, one("1", "4", "8")), is(aws("category"), in, "g", "p")},
			{is(aws("family"), in, one("p4d", "p5"))},
			{is(aws("gpu-manufacturer"), in, "nvidia"), is(aws("gpu-memory"), over, one("16000", "23000"))},
		}
	}
	drawn := func(of [][]corev1.NodeSelectorRequirement) []corev1.NodeSelectorRequirement {
		arch := is(corev1.LabelArchStable, in, "amd64")
		capacity := is(v1.CapacityTypeLabelKey, in, v1.CapacityTypeOnDemand)
		return append(of[random.IntN(len(of))], arch, capacity)
	}
	set := func(pods, gpus int) podSet {
		requests := map[string]string{
			"cpu":    one("500m", "1500m", "3", "3500m", "7", "11"),
			"memory": one("1Gi", "3Gi", "6500Mi", "12Gi", "27Gi"),
		}
		if gpus > 0 {
			requests["nvidia.com/gpu"] = strconv.Itoa(gpus)
		}
		return podSet{Pods: pods, Requests: requests}
	}

	var made line
	gpus := []int{0, 0, 1, 1, 2, 4, 8}[random.IntN(7)]
	made.Sets = append(made.Sets, set(1+random.IntN(64), gpus))
	if gpus > 0 && random.IntN(3) == 0 {
		made.Sets = append(made.Sets, set(1, 0)) // a leader without devices
	}
	for i := range 1 + random.IntN(3) {
		of := general()
		if gpus > 0 && (i == 0 || random.IntN(2) == 0) {
			of = devices()
		}
		weight := int32(random.IntN(3) * 10)
		made.Pools = append(made.Pools, pool{Name: fmt.Sprintf("pool-%d", i), Weight: weight, Requirements: drawn(of)})
	}
	return made
}

// choose lets Karpenter's scheduler place the pods of a case. It prices each node as the provider launches it: on the
// cheapest allowed type.
func choose(ctx context.Context, instanceTypes []*cloudprovider.InstanceType, of line) ([]node, error) {
	var pools []*v1.NodePool
	offered := map[string][]*cloudprovider.InstanceType{}
	for _, one := range of.Pools {
		made := &v1.NodePool{ObjectMeta: metav1.ObjectMeta{Name: one.Name, UID: types.UID(one.Name)}}
		made.Spec.Template.Spec.NodeClassRef = &v1.NodeClassReference{Group: "karpenter.k8s.aws", Kind: "EC2NodeClass", Name: "default"}
		made.Spec.Weight = lo.EmptyableToPtr(one.Weight)
		made.Spec.Template.Spec.Requirements = lo.Map(one.Requirements, func(r corev1.NodeSelectorRequirement, _ int) v1.NodeSelectorRequirementWithMinValues {
			return v1.NodeSelectorRequirementWithMinValues{Key: r.Key, Operator: r.Operator, Values: r.Values}
		})
		pools = append(pools, made)
		offered[one.Name] = instanceTypes
	}
	nodepool.OrderByWeight(pools)
	var pods []*corev1.Pod
	for s, set := range of.Sets {
		for i := range set.Pods {
			name := fmt.Sprintf("pod-%d-%d", s, i)
			requests := corev1.ResourceList{}
			for resourceName, amount := range set.Requests {
				requests[corev1.ResourceName(resourceName)] = resource.MustParse(amount)
			}
			pods = append(pods, &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name)},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{
					Name: "main", Resources: corev1.ResourceRequirements{Requests: requests, Limits: requests},
				}}},
			})
		}
	}
	client, now := fake.NewFakeClient(), clock.RealClock{}
	cluster := state.NewCluster(now, client, nil)
	topology, err := scheduling.NewTopology(ctx, client, cluster, nil, pools, offered, pods)
	if err != nil {
		return nil, fmt.Errorf("making the topology: %w", err)
	}
	scheduler := scheduling.NewScheduler(
		ctx, client, pools, cluster, nil, topology, offered, nil,
		events.NewRecorder(&record.FakeRecorder{}), now, nil, nil, scheduling.NumConcurrentReconciles(1),
	)
	results, err := scheduler.Solve(ctx, pods)
	if err != nil {
		return nil, fmt.Errorf("scheduling: %w", err)
	}
	if len(results.PodErrors) > 0 {
		return []node{}, nil
	}
	return lo.Map(results.NewNodeClaims, func(claim *scheduling.NodeClaim, _ int) node {
		cheapest := lo.Min(lo.Map(claim.InstanceTypeOptions, func(one *cloudprovider.InstanceType, _ int) float64 {
			return one.Offerings[0].Price
		}))
		return node{Pool: claim.NodePoolName, Pods: len(claim.Pods), Price: int64(math.Round(cheapest * 1e6))}
	}), nil
}
