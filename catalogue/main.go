// Writes the catalogue of instance types that Setu embeds (src/plan/catalogue): the facts as Karpenter's own provider reckons
// with them, from its tables and from the recorded answers of EC2 that moto ships.
//
// Usage: catalogue MOTO_WHEEL PROVIDER_DIR OUT
package main

import (
	"archive/zip"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"log"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/ec2"
	ec2types "github.com/aws/aws-sdk-go-v2/service/ec2/types"
	corev1 "k8s.io/api/core/v1"
	karpv1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"

	v1 "github.com/aws/karpenter-provider-aws/pkg/apis/v1"
	"github.com/aws/karpenter-provider-aws/pkg/fake"
	"github.com/aws/karpenter-provider-aws/pkg/operator/options"
	"github.com/aws/karpenter-provider-aws/pkg/providers/instancetype"
	"github.com/aws/karpenter-provider-aws/pkg/providers/pricing"
)

// Catalogue is what is written, by provider.
type Catalogue struct {
	AWS Provider `json:"aws"`
}

// Provider has the types of one provider in the order of their names.
type Provider struct {
	// Date of the prices.
	Date string `json:"date"`
	// Keys of the labels.
	Keys []string `json:"keys"`
	// Regions of the prices.
	Regions []string `json:"regions"`
	Types   []Type   `json:"types"`
}

// Type is one instance type.
type Type struct {
	Name string `json:"name"`
	// Labels by key; empty for one that the type has not.
	Labels []string `json:"labels"`
	// What pods may use.
	Allocatable map[string]string `json:"allocatable"`
	// Prices on demand by region, in millionths an hour; 0 where it is not sold or nothing is known.
	Prices []int64 `json:"prices"`
}

func main() {
	if len(os.Args) != 4 {
		log.Fatal("usage: catalogue MOTO_WHEEL PROVIDER_DIR OUT")
	}
	if err := run(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		log.Fatal(err)
	}
}

func run(wheel, provider, out string) error {
	infos, err := fromMoto(wheel)
	if err != nil {
		return err
	}
	// The provider's own tests know a few more.
	tested, err := fake.NewEC2API().DescribeInstanceTypes(context.Background(), &ec2.DescribeInstanceTypesInput{})
	if err != nil {
		return err
	}
	for _, info := range tested.InstanceTypes {
		if _, ok := infos[string(info.InstanceType)]; !ok {
			infos[string(info.InstanceType)] = info
		}
	}
	date, err := pricesOf(provider)
	if err != nil {
		return err
	}
	return write(out, Catalogue{AWS: aws(infos, date)})
}

func fromMoto(wheel string) (map[string]ec2types.InstanceTypeInfo, error) {
	archive, err := zip.OpenReader(wheel)
	if err != nil {
		return nil, err
	}
	defer archive.Close()
	file, err := archive.Open("moto/ec2/resources/instance_types.json.gz")
	if err != nil {
		return nil, err
	}
	plain, err := gzip.NewReader(file)
	if err != nil {
		return nil, err
	}
	infos := map[string]ec2types.InstanceTypeInfo{}
	return infos, json.NewDecoder(plain).Decode(&infos)
}

// The day on which the provider's prices were generated, which stands in the file alone.
func pricesOf(dir string) (string, error) {
	text, err := os.ReadFile(filepath.Join(dir, "pkg/providers/pricing/zz_generated.pricing_aws.go"))
	if err != nil {
		return "", err
	}
	found := regexp.MustCompile(`generated at (\d{4}-\d{2}-\d{2})T`).FindSubmatch(text)
	if found == nil {
		return "", fmt.Errorf("no date in %s", dir)
	}
	return string(found[1]), nil
}

func aws(infos map[string]ec2types.InstanceTypeInfo, date string) Provider {
	ctx := options.ToContext(context.Background(), &options.Options{VMMemoryOverheadPercent: 0.075})
	prices := map[string]map[ec2types.InstanceType]float64{}
	tables := []map[string]map[ec2types.InstanceType]float64{
		pricing.InitialOnDemandPricesAWS, pricing.InitialOnDemandPricesUSGov, pricing.InitialOnDemandPricesCN,
	}
	for _, table := range tables {
		maps.Copy(prices, table)
	}
	provider := Provider{Date: date, Regions: slices.Sorted(maps.Keys(prices))}
	var all []*cloudprovider.InstanceType
	keys := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(infos)) {
		info := infos[name]
		if !usable(info) {
			continue
		}
		it := instancetype.NewInstanceType(ctx, info, "", nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, v1.AMIFamilyAL2023, nil)
		all = append(all, it)
		for key := range labels(it) {
			keys[key] = true
		}
	}
	provider.Keys = slices.Sorted(maps.Keys(keys))
	for _, it := range all {
		provider.Types = append(provider.Types, typed(it, provider, prices))
	}
	return provider
}

// Whether Karpenter would offer it: of an architecture that it knows, and no bare Mac.
func usable(info ec2types.InstanceTypeInfo) bool {
	if strings.HasPrefix(string(info.InstanceType), "mac") {
		return false
	}
	return slices.ContainsFunc(info.ProcessorInfo.SupportedArchitectures, func(a ec2types.ArchitectureType) bool {
		_, ok := v1.AWSToKubeArchitectures[string(a)]
		return ok
	})
}

// The labels that come with the machine and have one value.
func labels(it *cloudprovider.InstanceType) map[string]string {
	found := map[string]string{}
	for key, requirement := range it.Requirements {
		place := key == corev1.LabelTopologyZone || key == corev1.LabelTopologyRegion || key == karpv1.CapacityTypeLabelKey ||
			key == corev1.LabelInstanceTypeStable
		if !place && requirement.Operator() == corev1.NodeSelectorOpIn && requirement.Len() == 1 && requirement.Any() != "" {
			found[key] = requirement.Any()
		}
	}
	return found
}

func typed(it *cloudprovider.InstanceType, provider Provider, prices map[string]map[ec2types.InstanceType]float64) Type {
	one := Type{Name: it.Name, Allocatable: map[string]string{}}
	found := labels(it)
	for _, key := range provider.Keys {
		one.Labels = append(one.Labels, found[key])
	}
	for name, amount := range it.Allocatable() {
		// How large the root volume is, the EC2NodeClass says.
		if !amount.IsZero() && name != corev1.ResourceEphemeralStorage {
			one.Allocatable[string(name)] = amount.String()
		}
	}
	for _, region := range provider.Regions {
		one.Prices = append(one.Prices, int64(prices[region][ec2types.InstanceType(it.Name)]*1e6+0.5))
	}
	return one
}

func write(path string, catalogue Catalogue) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	plain, err := gzip.NewWriterLevel(file, gzip.BestCompression)
	if err != nil {
		return err
	}
	if err := json.NewEncoder(plain).Encode(catalogue); err != nil {
		return err
	}
	if err := plain.Close(); err != nil {
		return err
	}
	return file.Close()
}
